"""What can go wrong, as exceptions that carry what, where and the remedy."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of `gpuscale` (docs/design.md, "How it judges")."""

    OK = 0
    REGRESSED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    NOTHING_COMPARABLE = 4


class GpuscaleError(Exception):
    """An expected failure: its text is one line for the user, and no traceback is shown."""


class UsageError(GpuscaleError):
    """The user asked for something that cannot be done; the message names what can."""


class FileError(GpuscaleError):
    """A file that cannot be read or written: path, place in the file, problem and remedy."""

    def __init__(self, path: object, problem: str, *, place: str | None = None) -> None:
        where = f"{path}: {place}" if place else f"{path}"
        super().__init__(f"{where}: {problem}")
        self.path = path
        self.place = place
        self.problem = problem


class DecodeError(GpuscaleError):
    """Data that is not a valid record: the place inside the data and the problem."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}" if place else problem)
        self.place = place
        self.problem = problem


class CaseError(GpuscaleError):
    """A training case that cannot be built or run as it was asked for."""
