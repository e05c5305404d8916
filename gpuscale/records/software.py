"""Software used by the processes of a run: packages, and the libraries that were loaded."""

import re
from collections.abc import Iterable
from posixpath import basename

import msgspec

from gpuscale.records.environment import Environment, without_software
from gpuscale.records.record import Line, Name, Record


def normalised(package: str) -> str:
    """Return the name of a package in the normalised form of PEP 503."""
    return re.sub(r"[-_.]+", "-", package).lower()


class Library(Record, frozen=True, kw_only=True):
    """A shared library that a process has loaded."""

    name: Name
    """Name of the library, such as `NCCL`."""
    path: Line
    """Path of the real file, as the process sees it."""
    version: Line | None = None
    """Version that the library itself reports; None if it was not asked, or reports none."""

    @property
    def label(self) -> str:
        """The version; if unknown, the name of the real file, which may contain it."""
        return self.version or basename(self.path)


class ProcessSoftware(msgspec.Struct, frozen=True, kw_only=True):
    """Software of the processes that a command, or one rank of it, started."""

    host: str
    libraries: tuple[Library, ...] = ()
    cpus: tuple[str, ...] = ()
    """CPUs on which the processes may run; each list appears once."""
    software: Environment = without_software()
    """Software of the interpreter among the processes; all other fields are unknown."""


def merged(libraries: Iterable[Library]) -> tuple[Library, ...]:
    """Return each library once, sorted by name; different files of one library are kept."""
    return tuple(sorted(set(libraries), key=lambda library: (library.name, library.path)))
