"""Software that a run's processes used: their packages, and the libraries that they had loaded."""

from collections.abc import Iterable, Mapping
from posixpath import basename

import msgspec

from gpuscale.records.environment import Environment
from gpuscale.records.record import Line, Name, Record


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
        """The version, or the name of the real file, which may contain a version."""
        return self.version or basename(self.path)


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """Software of the interpreter that runs a command's ranks, as fields of an Environment."""

    python_version: str | None = None
    torch_version: str | None = None
    torchvision_version: str | None = None
    lightning_version: str | None = None
    cuda_version: str | None = None
    cudnn_version: str | None = None
    nccl_version: str | None = None
    rocm_version: str | None = None
    miopen_version: str | None = None
    rccl_version: str | None = None
    packages: Mapping[str, str] = {}
    packages_absent: str | None = None

    def put_into(self, environment: Environment) -> Environment:
        """Return the environment with this software only; what is unknown here becomes None."""
        return msgspec.structs.replace(environment, **msgspec.structs.asdict(self))


def software_in(environment: Environment) -> Software:
    """Return the fields of an environment that describe the interpreter's software."""
    return Software(**{name: getattr(environment, name) for name in Software.__struct_fields__})


class ProcessSoftware(msgspec.Struct, frozen=True, kw_only=True):
    """Software of the processes that one rank of a command, or the whole command, started."""

    host: str
    libraries: tuple[Library, ...] = ()
    software: Software = Software()


def merged(libraries: Iterable[Library]) -> tuple[Library, ...]:
    """Return each library once, sorted by name; different files of one library are kept."""
    return tuple(sorted(set(libraries), key=lambda library: (library.name, library.path)))
