"""Bisection over the environment variables that differ between two recorded results."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuscale.base.text import visible
from gpuscale.campaigns.bisection.kinds import Applied, Change, Kind, Setting


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

    def content(self, applied: Applied) -> object:
        """Return the variables that an environment sets, which identify it."""
        return sorted(self.setting(applied).variables.items())

    def setting(self, applied: Applied) -> Setting:
        """Return the variables to set for runs in an environment."""
        values: dict[str, str | None] = {**self.good}
        for number, change in enumerate(self.changes):
            values[change.name] = (self.bad if number in applied else self.good).get(change.name)
        return Setting(variables=values)
