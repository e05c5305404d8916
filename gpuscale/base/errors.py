"""Exceptions for expected failures; messages say what happened, where, and how to fix it."""

import signal
from collections.abc import Iterable, Sequence
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path


class ExitCode(IntEnum):
    """Exit codes of `gpuscale` (docs/reading.md); the last two come from nightly runs."""

    OK = 0
    REGRESSED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    NOTHING_COMPARABLE = 4
    INCOMPLETE = 5
    INFRASTRUCTURE = 6


CANNOT_WRITE = 74
"""Exit code of a pytest session that cannot write its results (`EX_IOERR` of sysexits.h)."""


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Suggest a similar name (`did you mean 'compare'?`), or list all known names."""
    # Imported only for an error message. A long name would make the search slow.
    from difflib import get_close_matches

    known = [*known]
    close = get_close_matches(name[:60], known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"{otherwise} {', '.join(known)}"


class RunTerminated(BaseException):
    """Raised by SIGTERM or SIGHUP during a run; the ranks are ended as the exception propagates."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


class GpuscaleError(Exception):
    """An expected failure, shown to the user as one line without a traceback."""


class UsageError(GpuscaleError):
    """The user asked for something impossible; the message names the alternatives."""


READING = ("msgspec", "tabulate", "wcwidth")
"""Import names of the packages that every command needs."""
MEASURING = ("torch", "numpy", "pytest", "pytest_benchmark", "pynvml")
"""Import names of the packages that only measurements need."""
_PIP_NAMES = {"pytest_benchmark": "pytest-benchmark", "pynvml": "nvidia-ml-py"}


def require_packages(user: str, packages: Iterable[str]) -> None:
    """Raise a UsageError with an install command if any of the packages is missing.

    gpuscale can be installed without its dependencies, since comparing results on a login node, for
    example, does not need torch.
    """
    missing = [_PIP_NAMES.get(name, name) for name in packages if find_spec(name) is None]
    if missing:
        problem = f"{user} needs {', '.join(missing)}, not installed here"
        raise UsageError(f"{problem}; install with: pip install {' '.join(missing)}")


class FileError(GpuscaleError):
    """A file that cannot be read or written; the message names path, place, problem and remedy."""

    def __init__(
        self, path: object, problem: str, *, place: str | None = None, line: int | None = None
    ) -> None:
        named = f"{path}" if line is None else f"{path}:{line}"
        where = f"{named}: {place}" if place else named
        super().__init__(f"{where}: {problem}")
        self.path = path
        self.place = place
        self.line = line
        self.problem = problem


class DecodeError(GpuscaleError):
    """Invalid record data; the message names the problem and its place (`runs[2].measured`).

    `line` is set only for text files; `key` only if a field is not allowed at this place.
    """

    def __init__(
        self, place: str, problem: str, *, line: int | None = None, key: str | None = None
    ) -> None:
        where = "" if line is None else f"line {line}: "
        super().__init__(f"{where}{place}: {problem}" if place else f"{where}{problem}")
        self.place = place
        self.problem = problem
        self.line = line
        self.key = key


class FieldError(ValueError):
    """A record with invalid contents; the message names the field and the problem."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}" if place else problem)
        self.place = place
        self.problem = problem


class CaseError(GpuscaleError):
    """A training case that cannot be built or run as requested."""


class InvalidTrainingError(CaseError):
    """Ranks that did not train the same model, so that the speedup is meaningless."""


class MachineError(GpuscaleError):
    """Missing or unresponsive GPUs or nodes: a fault of the machine, not of an option."""

    def __init__(self, problem: str, *, hosts: Sequence[str] = ()) -> None:
        """Store the whole message and the hosts at fault, if known."""
        super().__init__(problem)
        self.hosts = tuple(hosts)


class DriverAbsentError(GpuscaleError):
    """This machine has no usable driver of GPUs; the message says why."""


class DriverBrokenError(DriverAbsentError):
    """This machine has a driver of GPUs, but the driver does not work."""


class DeviceAbsentError(GpuscaleError):
    """The driver does not offer the requested device; the message says why."""


class QueryError(GpuscaleError):
    """A query that a GPU's driver did not answer; the message is the driver's own."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        """Store the driver's reason and its error code."""
        super().__init__(reason)
        self.code = code


class NeverOfferedError(QueryError):
    """A query that is not repeated on the same device, because it would always fail."""


class DeviceGoneError(QueryError):
    """A query of a lost GPU, which is not queried again: such calls can take seconds."""


class SchedulerError(GpuscaleError):
    """The batch scheduler is missing, rejected a job or lost a job; the message quotes it."""


def as_place(file: str, line: int | None) -> str:
    """Format a file and line as `test_mine.py:12`, with a relative path if possible."""
    path, here = Path(file), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{line}"
