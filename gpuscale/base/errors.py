"""Expected failures, as exceptions that carry what, where and the remedy."""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path


class ExitCode(IntEnum):
    """The exit codes of `gpuscale` (docs/reading.md); the last two are a night's alone."""

    OK = 0
    REGRESSED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    NOTHING_COMPARABLE = 4
    INCOMPLETE = 5
    INFRASTRUCTURE = 6


CANNOT_WRITE = 74
"""With what a pytest session ends whose results cannot be written (`EX_IOERR` of sysexits.h)."""


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """`did you mean 'compare'?` for a mistyped name, or all that are known where none is near."""
    # Needed only on the way to an error; a long name would make the search slow.
    from difflib import get_close_matches

    known = [*known]
    close = get_close_matches(name[:60], known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"{otherwise} {', '.join(known)}"


class GpuscaleError(Exception):
    """An expected failure: its text is one line for the user, and no traceback is shown."""


class UsageError(GpuscaleError):
    """The user asked for something that cannot be done; the message names what can."""


READING = ("msgspec", "tabulate", "wcwidth")
"""The packages that every command needs, by the names under which they are imported."""
MEASURING = ("torch", "numpy", "pytest", "pytest_benchmark", "pynvml")
"""The packages that measuring needs besides."""
_NAMES_OF_PIP = {"pytest_benchmark": "pytest-benchmark", "pynvml": "nvidia-ml-py"}


def require_packages(user: str, packages: Iterable[str]) -> None:
    """Raise a UsageError with the command that installs those of the packages that are missing.

    Gpuscale can be installed without its requirements: a login node needs no torch to compare.
    """
    missing = [_NAMES_OF_PIP.get(name, name) for name in packages if find_spec(name) is None]
    if missing:
        problem = f"{user} needs {', '.join(missing)}, not installed here"
        raise UsageError(f"{problem}; install with: pip install {' '.join(missing)}")


class FileError(GpuscaleError):
    """A file that cannot be read or written: path, place in the file, problem and remedy."""

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
    """Data that is not a valid record: the place, such as `runs[2].measured`, and the problem.

    The line is known of a text only; `key` is a field that the object at the place may not have.
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
    """A record that breaks a rule of its own: the place of the field in it, and the problem."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}" if place else problem)
        self.place = place
        self.problem = problem


class CaseError(GpuscaleError):
    """A training case that cannot be built or run as it was asked for."""


class InvalidTrainingError(CaseError):
    """Ranks that do not train one model together: what they measured is no speedup."""


class MachineError(GpuscaleError):
    """GPUs or nodes that are missing or do not answer: the machine's fault, and no option's."""

    def __init__(self, problem: str, *, hosts: Sequence[str] = ()) -> None:
        """Takes the whole message, and the hosts that are at fault where they are known."""
        super().__init__(problem)
        self.hosts = tuple(hosts)


class SchedulerError(GpuscaleError):
    """A batch scheduler that is not there, did not take a job, or lost one; with what it said."""


def as_place(file: str, line: int | None) -> str:
    """A line of a file as seen from the current folder, `test_mine.py:12`."""
    path, here = Path(file), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{line}"
