"""What may differ between a good and a bad environment: the interface of the kinds of changes."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
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
    """One difference, which an environment has or does not have."""

    name: str
    text: str
    """The change in words: `torch 2.14 → 2.15`."""
    remedy: str
    """What undoes it: `torch==2.14`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and how the runs of one environment are started."""

    variables: Mapping[str, str | None] = field(default_factory=dict)
    """Variables to set; None removes one."""
    python: Path | None = None
    """Interpreter that trains cases; None: that of gpuscale."""
    folder: Path | None = None
    """Working folder; None: the current one."""


@dataclass(slots=True, kw_only=True)
class Kind(ABC):
    """Changes of one kind, and the environments that have some of them."""

    noun: ClassVar[str]
    is_ordered: ClassVar[bool] = False
    """True if a change can be applied only after all that come before it, as with commits."""
    changes: tuple[Change, ...] = ()
    groups: tuple[int, ...] = ()
    """A number for each change, equal for those that move together."""
    not_tried: list[str] = field(default_factory=list)
    """What differs and cannot be changed here."""

    def take(self, changes: Iterable[Change]) -> None:
        """Set the changes, each of which moves by itself."""
        self.changes = (*changes,)
        self.groups = (*range(len(self.changes)),)

    @abstractmethod
    def identity(self) -> object:
        """Return what distinguishes this bisection from others; its `repr` names the folder."""

    def prepare(self, folder: Path) -> None:  # noqa: B027 - variables need nothing
        """Find the changes; environments are made in `folder`, which is removed at the end."""

    @abstractmethod
    def content(self, applied: Applied) -> object:
        """Return what distinguishes an environment from others of this bisection."""

    def name_of(self, applied: Applied) -> str:
        """Return a name for an environment, the same in each process."""
        return hashlib.sha256(repr(self.content(applied)).encode()).hexdigest()[:12]

    @abstractmethod
    def setting(self, applied: Applied, *, is_command: bool) -> Setting:
        """Make an environment if needed; raise a CannotBeMadeError if that fails."""


def last_line(text: str) -> str:
    """Return the last line that says something, cut to a line's length."""
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return visible(lines[-1][:200]) if lines else "it said nothing"
