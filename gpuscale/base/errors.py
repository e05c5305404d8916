"""Exceptions for expected failures; messages state what happened, where, and how to fix it."""

import signal
from collections.abc import Iterable, Sequence
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path

from gpuscale.base.text import escaped


class ExitCode(IntEnum):
    """Exit codes of the `gpuscale` command, explained in docs/reading.md."""

    OK = 0
    REGRESSED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    NOTHING_COMPARABLE = 4
    INCOMPLETE = 5
    INFRASTRUCTURE = 6


CANNOT_WRITE = 74
"""Exit code of a pytest session that cannot write its results (`EX_IOERR` of sysexits.h)."""


class RunTerminated(BaseException):
    """Raised if SIGTERM or SIGHUP arrives during a run; gpuscale then ends the ranks."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


class GpuscaleError(Exception):
    """An expected failure, whose message is shown to the user without a traceback."""


class UsageError(GpuscaleError):
    """Raised if the user asks for something impossible; the message says what to do instead."""


READING = ("msgspec", "tabulate", "wcwidth")
"""Import names of the packages that every command needs."""
MEASURING = ("torch", "numpy", "pytest", "pytest_benchmark", "pynvml")
"""Import names of the packages that only measurements need."""
_PIP_NAMES = {"pytest_benchmark": "pytest-benchmark", "pynvml": "nvidia-ml-py"}


def require_packages(user: str, packages: Iterable[str]) -> None:
    """Raise UsageError with a pip command if a package that a feature (`user`) needs is missing."""
    if missing := [_PIP_NAMES.get(name, name) for name in packages if find_spec(name) is None]:
        problem = f"{user} needs {', '.join(missing)}, not installed here"
        raise UsageError(f"{problem}; install with: pip install {' '.join(missing)}")


class FileError(GpuscaleError):
    """Raised for an unusable file; the message gives path, problem and, if known, line number."""

    def __init__(
        self, path: object, problem: str, *, line: int | None = None, rows: Sequence[str] = ()
    ) -> None:
        self.problem = "\n  ".join(map(escaped, (problem, *rows)))
        place = f"{path}" if line is None else f"{path}:{line}"
        super().__init__(f"{escaped(place)}: {self.problem}")


class DecodeError(GpuscaleError):
    """Raised for invalid record data; the message names the field, such as `runs[2].measured`."""

    def __init__(
        self, place: str, problem: str, *, line: int | None = None, rows: Sequence[str] = ()
    ) -> None:
        where = "" if line is None else f"line {line}: "
        super().__init__(f"{where}{place}: {problem}" if place else f"{where}{problem}")
        self.place, self.problem, self.line, self.rows = place, problem, line, rows


class FieldError(DecodeError, ValueError):
    """Raised for an invalid record field; a ValueError, so that msgspec adds the field's path."""


class CaseError(GpuscaleError):
    """Raised if a training case cannot be built or run as requested."""


class InvalidTrainingError(CaseError):
    """Raised if training diverged or differed between ranks, so that a speedup is meaningless."""


class MachineError(GpuscaleError):
    """Raised if GPUs or nodes are missing or unresponsive, so that the machine is at fault."""


class DriverAbsentError(GpuscaleError):
    """Raised if this machine has no usable GPU driver; the message gives the reason."""


class DriverBrokenError(DriverAbsentError):
    """Raised if this machine has a GPU driver that does not work."""


class DeviceAbsentError(GpuscaleError):
    """Raised if the driver cannot measure the requested GPU; the message gives the reason."""


class QueryError(GpuscaleError):
    """Raised if a GPU's driver does not answer a query; the message gives the reason."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code


class NotSupportedError(QueryError):
    """Raised if a query can never succeed on this device; gpuscale does not repeat such a query."""


class DeviceGoneError(QueryError):
    """Raised if a GPU is lost or needs a reset; gpuscale sends that GPU no further queries."""


class SchedulerError(GpuscaleError):
    """Raised if the scheduler is missing, or rejects or loses a job; the message explains why."""


def as_place(file: str, line: int | None) -> str:
    """Format as `mine.py:12`, or without a line; paths in the current folder become relative."""
    shown = Path(file).relative_to(Path.cwd()) if Path(file).is_relative_to(Path.cwd()) else file
    return f"{shown}" if line is None else f"{shown}:{line}"
