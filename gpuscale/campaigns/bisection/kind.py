"""The interface of the kinds of changes between a good and a bad environment."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from gpuscale.base.errors import GpuscaleError
from gpuscale.base.printable import visible
from gpuscale.campaigns.bisection.decision import Applied


class CannotBeMadeError(GpuscaleError):
    """A trial's environment cannot be made; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between the good and the bad environment, which a trial may apply."""

    name: str
    text: str
    """Description of the change: `torch 2.14 → 2.15`."""
    remedy: str
    """Text that undoes the change: `torch==2.14`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Interpreter, working folder and variables with which an environment's runs are started."""

    variables: Mapping[str, str | None] = field(default_factory=dict)
    """Variables to set; None removes one."""
    python: Path | None = None
    """Interpreter that trains cases; None for gpuscale's own."""
    folder: Path | None = None
    """Working folder; None for the current folder."""


@dataclass(slots=True, kw_only=True)
class Kind(ABC):
    """Changes of one kind, and the environments in which some of them are applied."""

    noun: ClassVar[str]
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

    @abstractmethod
    def identity(self) -> object:
        """Return the identity of this bisection; its `repr` determines the name of the folder."""

    def prepare(self, folder: Path) -> None:  # noqa: B027 - variables need nothing
        """Find the changes; environments will be made in `folder`, which is removed at the end."""

    @abstractmethod
    def content(self, applied: Applied) -> object:
        """Return the identity of an environment within this bisection."""

    def name_of(self, applied: Applied) -> str:
        """Return the name of an environment, which is the same in every process."""
        return hashlib.sha256(repr(self.content(applied)).encode()).hexdigest()[:12]

    @abstractmethod
    def setting(self, applied: Applied) -> Setting:
        """Return how to start runs in an environment, after making it if necessary.

        Raise a CannotBeMadeError if it cannot be made.
        """


def last_line(text: str) -> str:
    """Return the last line that is not blank, cut to 200 characters."""
    return visible((text.strip() or "it said nothing").splitlines()[-1].strip()[:200])
