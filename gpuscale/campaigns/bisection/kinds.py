"""Differences between two environments: the base class of their kinds, and variables."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from gpuscale.base.errors import GpuscaleError
from gpuscale.base.text import visible
from gpuscale.records.environment_diff import listed

Applied = frozenset[int]
"""Indices of the changes that an environment applies to the good environment."""


class EnvironmentBuildError(GpuscaleError):
    """Raised if the environment of a trial cannot be created; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between the good and the bad environment, which a trial may apply."""

    name: str
    text: str
    """Description of the change: `torch 2.14 → 2.15`."""
    remedy: str
    """Advice on how to undo or examine the change: `keep torch==2.14`, `git show 1a2b3c4`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Interpreter, working folder and environment variables for runs in a trial's environment."""

    variables: Mapping[str, str | None] = field(default_factory=dict)
    """Environment variables to set; a variable whose value is None is removed."""
    python: Path | None = None
    """Interpreter that trains cases; None for gpuscale's own."""
    folder: Path | None = None
    """Working folder; None for the current folder."""


@dataclass(slots=True, kw_only=True)
class Kind(ABC):
    """The changes of one kind, such as packages; subclasses make environments with some of them."""

    noun: ClassVar[str]
    """Name of one change in messages: `package`."""
    is_ordered: ClassVar[bool] = False
    """True if a change requires all earlier ones to be applied, as with commits."""
    changes: tuple[Change, ...] = ()
    groups: tuple[int, ...] = ()
    """Group number of each change; changes in the same group are applied together."""
    not_tried: list[str] = field(default_factory=list)
    """Differences between the environments that cannot be tried, described in words."""

    def take(self, changes: Iterable[Change]) -> None:
        """Store the changes, each in a group of its own."""
        self.changes = (*changes,)
        self.groups = (*range(len(self.changes)),)

    def prepare(self, folder: Path) -> None:  # noqa: B027 - variables need nothing
        """Prepare to create environments in `folder`."""

    @abstractmethod
    def _content(self, applied: Applied) -> object:
        """Return a value that identifies the environment with these changes applied."""

    def name_of(self, applied: Applied) -> str:
        """Return a short hash as an environment's name; it is the same in every process."""
        return hashlib.sha256(repr(self._content(applied)).encode()).hexdigest()[:12]

    def words_of(self, applied: Applied) -> str:
        """Describe an environment by its changes: `good + torch, triton`, `up to 1a2b3c4`."""
        names = [self.changes[at].name for at in sorted(applied)]
        if len(names) in (0, len(self.changes)):
            return "bad" if names else "good"
        return f"up to {names[-1]}" if self.is_ordered else f"good + {listed(names, 3)}"

    @abstractmethod
    def setting(self, applied: Applied) -> Setting:
        """Make an environment if necessary, or raise EnvironmentBuildError; return its setting."""


@dataclass(slots=True, kw_only=True)
class Variables(Kind):
    """Environment variables of both sides; variables that do not differ are set in every trial."""

    noun = "variable"
    good: Mapping[str, str]
    bad: Mapping[str, str]

    def __post_init__(self) -> None:
        names = sorted({*self.good, *self.bad})
        self.take(self._change(name) for name in names if self.good.get(name) != self.bad.get(name))

    def _change(self, name: str) -> Change:
        values = [side.get(name) for side in (self.good, self.bad)]
        words = [visible(value) if value is not None else "not set" for value in values]
        remedy = f"unset {name}" if values[0] is None else f"{name}={words[0]}"
        return Change(name=name, text=f"{name} {' → '.join(words)}", remedy=remedy)

    def _content(self, applied: Applied) -> object:
        return sorted(self.setting(applied).variables.items())

    def setting(self, applied: Applied) -> Setting:
        """Return the variables to set for runs in an environment."""
        values: dict[str, str | None] = {**self.good}
        for number, change in enumerate(self.changes):
            values[change.name] = (self.bad if number in applied else self.good).get(change.name)
        return Setting(variables=values)


def last_line(text: str) -> str:
    """Return the last line that is not blank, cut to 200 characters."""
    return visible((text.strip() or "it said nothing").splitlines()[-1].strip()[:200])
