"""Environment variables that differ, between two files or between the records of two results."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuscale.base.errors import FileError, UsageError
from gpuscale.base.host import CACHE_VARIABLES, JOB_VARIABLES
from gpuscale.base.printable import visible
from gpuscale.campaigns.bisection.decision import Applied
from gpuscale.campaigns.bisection.kind import Change, Kind, Setting
from gpuscale.store.files import READ_PROBLEMS, file_errors

SUFFIX = ".env"
_LINE = re.compile(r"(?:export +)?([A-Za-z_]\w*)=(.*)")
_SESSIONS = re.compile(
    r"_|OLDPWD|PWD|SHLVL|HOSTNAME|TERM|TMPDIR|(SLURM|SRUN|PBS|LSB|PMIX?|OMPI|SSH|XDG|LC)_\w*"
)
"""Variables that belong to a shell, a login or a job; a bisection ignores them."""


@dataclass(slots=True, kw_only=True)
class Variables(Kind):
    """Variables of two environments; those with the same value in both are set in every trial."""

    noun = "variable"
    good: Mapping[str, str]
    bad: Mapping[str, str]

    def __post_init__(self) -> None:
        names = sorted({*self.good, *self.bad})
        self.take(self._change(name) for name in names if self.good.get(name) != self.bad.get(name))
        if not self.changes:
            raise UsageError("the same variables are in both environments; name two that differ")

    def identity(self) -> object:
        """Return the variables of both sides."""
        return sorted(self.good.items()), sorted(self.bad.items())

    def _change(self, name: str) -> Change:
        values = [side.get(name) for side in (self.good, self.bad)]
        words = [visible(value) if value is not None else "not set" for value in values]
        remedy = f"unset {name}" if values[0] is None else f"{name}={words[0]}"
        return Change(name=name, text=f"{name} {' → '.join(words)}", remedy=remedy)

    def content(self, applied: Applied) -> object:
        """Return the values of all variables."""
        return sorted(self.setting(applied).variables.items())

    def setting(self, applied: Applied) -> Setting:
        """Return the values of all variables."""
        values: dict[str, str | None] = {**self.good}
        for number, change in enumerate(self.changes):
            values[change.name] = (self.bad if number in applied else self.good).get(change.name)
        return Setting(variables=values)


def variables_in(path: Path) -> dict[str, str]:
    """Read lines of NAME=VALUE, as `env` prints them."""
    with file_errors(path, READ_PROBLEMS):
        lines = path.read_text("utf-8", "replace").splitlines()
    found = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise FileError(path, f"'{visible(line)}' is not NAME=VALUE; mend it", line=number)
        name, value = match.groups()
        is_quoted = len(value) > 1 and value[0] in "'\"" and value[0] == value[-1]
        found[name] = value[1:-1] if is_quoted else value
    return lasting(found)


def lasting(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that belong to one session or job."""
    others = JOB_VARIABLES | CACHE_VARIABLES | {*filter(_SESSIONS.fullmatch, variables)}
    return {name: value for name, value in variables.items() if name not in others}
