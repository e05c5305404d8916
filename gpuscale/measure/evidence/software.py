"""Software of processes: the libraries that they have loaded, and a command's Python packages.

A command's interpreter may belong to another environment or container. gpuscale does not start that
interpreter: loaded libraries reveal the folders from which it imports, and gpuscale reads these
folders through `/proc/PID/root`.
"""

import ctypes
import os
import platform
import re
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from gpuscale.base.host import UNRECORDED, allowed_cpus
from gpuscale.base.process_ends import parent_of
from gpuscale.base.text import clean
from gpuscale.records.environment import Environment, without_software
from gpuscale.records.evidence import Library, ProcessSoftware, merged, normalised

_LONGEST_MPI_TEXT = 8192
"""Size, in bytes, of the buffer for MPI_Get_library_version; MPICH needs the largest."""
_DELETED = " (deleted)"
_SHORT_COMMIT = 12
_PACKAGES = re.compile(r".*/(?:site|dist)-packages(?=/)")
_PYTHON = re.compile(r"/python(\d\.\d+)/")
_VERSION_LINE = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*= *['\"]([^'\"\n]+)", re.MULTILINE)
_HEAD_CHARACTERS = 4096


def _stored(symbol: str, library: ctypes.CDLL, *arguments: int) -> int:
    """Return the integer that a function stores through its last argument, a pointer."""
    number = ctypes.c_int()
    if getattr(library, symbol)(*arguments, ctypes.byref(number)):
        raise OSError(f"{symbol} failed")
    return number.value


def _parts(number: int, *factors: int) -> str:
    """Split a number such as 22803 by the factors 10000, 100 and 1 into `2.28.3`."""
    wholes = (sys.maxsize, *factors)
    return ".".join(str(number % whole // factor) for whole, factor in pairwise(wholes))


def _number(symbol: str, *factors: int) -> Callable[[ctypes.CDLL], str]:
    return lambda library: _parts(_stored(symbol, library), *factors)


def _nccl(library: ctypes.CDLL) -> str:
    number = _stored("ncclGetVersion", library)
    # Up to NCCL 2.8 a minor version had one digit.
    return _parts(number, 10_000 if number >= 10_000 else 1000, 100, 1)


def _cublas(library: ctypes.CDLL) -> str:
    # cublasGetVersion needs a handle, which takes GPU memory.
    return ".".join(str(_stored("cublasGetProperty", library, part)) for part in range(3))


def _cudnn(library: ctypes.CDLL) -> str:
    library.cudnnGetVersion.restype = ctypes.c_size_t
    number = library.cudnnGetVersion()
    return _parts(number, 10_000 if number >= 90_000 else 1000, 100, 1)


def _mpi(library: ctypes.CDLL) -> str:
    text, length = ctypes.create_string_buffer(_LONGEST_MPI_TEXT), ctypes.c_int()
    if library.MPI_Get_library_version(text, ctypes.byref(length)):
        raise OSError("MPI_Get_library_version failed")
    # Open MPI describes its build after a comma, MPICH on further lines.
    return re.split("[,\n]", text.value.decode(errors="replace"), maxsplit=1)[0].strip()


def _fabric(library: ctypes.CDLL) -> str:
    number = library.fi_version()
    return f"{number >> 16 & 0xFFFF}.{number & 0xFFFF}"


class KnownLibrary(NamedTuple):
    """A library that affects performance."""

    name: str
    stem: str
    """Regular expression for the part of the file name between `lib` and `.so`."""
    version: Callable[[ctypes.CDLL], str] | None = None
    """Function that queries the loaded library's version; None if the library has no such query."""
    parts: str = ""
    """Text in the paths of the files that the library loads at its first use; empty if none.
    The version is queried only after that use, because the query would also load the files."""


KNOWN_LIBRARIES = (
    KnownLibrary("NCCL", "nccl", _nccl),
    KnownLibrary("RCCL", "rccl", _nccl),
    KnownLibrary("NCCL network plugin", r"[nr]ccl-net[\w-]*"),
    KnownLibrary("CUDA runtime", "cudart", _number("cudaRuntimeGetVersion", 1000, 10)),
    KnownLibrary("HIP runtime", "amdhip64", _number("hipRuntimeGetVersion", 10**7, 10**5, 1)),
    KnownLibrary("cuBLAS", "cublas", _cublas),
    KnownLibrary("cuDNN", "cudnn", _cudnn, parts="/libcudnn_"),
    KnownLibrary("MPI", r"mpi(ch|_(cray|gnu|nvidia|amd|aocc)\w*)?", _mpi),
    KnownLibrary("libfabric", "fabric", _fabric),
    KnownLibrary("libibverbs", "ibverbs"),
)
# Wheels add a hash to the names of libraries that they bundle.
_FILE_NAMES = [
    (known, re.compile(rf"lib{known.stem}([.-][0-9a-f]{{8}})?\.so(\.[\d.]+)?"))
    for known in KNOWN_LIBRARIES
]


def mapped_files(process: int | None = None, *, root: Path = Path("/")) -> list[str]:
    """Return the paths of the files that a process (default: this one) has mapped into memory.

    Raise an OSError if the process has ended or belongs to another user.
    """
    maps = root / "proc" / str(process or "self") / "maps"
    lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    # Address, permissions, offset, device, inode, path.
    columns = (line.split(None, 5) for line in lines)
    paths = (fields[5] for fields in columns if len(fields) == 6)
    return [path for path in dict.fromkeys(paths) if path.startswith("/")]


def own_software() -> ProcessSoftware:
    """Return this process's libraries, with the versions that they report, and its CPUs."""
    files: list[str] = []
    # There is no /proc in some containers.
    with suppress(OSError):
        files = mapped_files()
    return ProcessSoftware(
        host=socket.gethostname(),
        libraries=libraries_among(files, are_own=True),
        cpus=(allowed_cpus("self"),),
    )


def libraries_among(files: Sequence[str], *, are_own: bool = False) -> tuple[Library, ...]:
    """Return the known libraries among mapped files, with versions if this process mapped them."""
    found = []
    for file in files:
        path = file.removesuffix(_DELETED)
        for known, pattern in _FILE_NAMES:
            if pattern.fullmatch(path.rpartition("/")[2]):
                is_asked = are_own and any(known.parts in each for each in files)
                version = _version(known, path) if is_asked else None
                found.append(Library(name=known.name, path=clean(path), version=version))
    return merged(found)


def _version(known: KnownLibrary, path: str) -> str | None:
    """Return the version that a loaded library reports; None if unknown or not loaded."""
    # A build may lack the function, and the call may fail.
    with suppress(OSError, AttributeError):
        loaded = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return known.version and clean(known.version(loaded))
    return None


def installed_packages(folders: Iterable[Path]) -> Mapping[str, str]:
    """Return the version of each package, and its origin if recorded, keyed by normalised name.

    Several versions of a package are separated by commas, in the order of the folders. Folders that
    do not exist or cannot be read are skipped. gpuscale itself is left out.
    """
    # importlib.metadata parses whole descriptions and takes ten times as long.
    found: dict[str, dict[str, None]] = {}
    for folder in dict.fromkeys(folders):
        with suppress(OSError):
            for entry in sorted(folder.iterdir()):
                if entry.suffix == ".dist-info":
                    package, _, version = entry.stem.partition("-")
                    notes = _origin(entry / "direct_url.json")
                    text = f"{version} ({notes})" if notes else version
                    found.setdefault(normalised(clean(package)), {})[text or "unknown"] = None
    # gpuscale's version is recorded separately, and it may be importable without being installed.
    found.pop("gpuscale", None)
    return {name: clean(", ".join(found[name])) for name in sorted(found)}


def _origin(file: Path) -> str:
    """Describe where a package came from, without credentials; empty if from a package index.

    Only the last part of a local path is kept: other parts differ between jobs with the same
    set-up.
    """
    try:
        direct_url = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        url = urlsplit(direct_url["url"])
        if url.scheme == "file":
            kind = "editable, folder" if direct_url.get("dir_info", {}).get("editable") else "from"
            return f"{kind} {Path(url.path).name}"
        commit = direct_url.get("vcs_info", {}).get("commit_id", "")[:_SHORT_COMMIT]
        host = url.netloc.rpartition("@")[2]
        return f"{url.scheme}://{host}{url.path}{commit and '@'}{commit}"
    except OSError:
        return ""
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError):
        return f"{file.name} cannot be read"


def software_of(
    processes: Collection[int], *, with_packages: bool = True, root: Path = Path("/")
) -> ProcessSoftware:
    """Return the libraries that processes have loaded, and the Python packages of one process.

    The packages are those of the process that has loaded the most libraries of packages; if they
    cannot be read, `software.packages_absent` of the result gives the reason.
    """
    files: dict[int, list[str]] = {}
    absent: str | None = "no process of the command was left"
    for process in sorted(number for number in processes if not _is_fork(number, processes, root)):
        try:
            files[process] = mapped_files(process, root=root)
        except OSError as error:
            # The process may have ended; another may have loaded the same libraries.
            absent = _refusal(process, error)
    software = without_software(None if files else absent)
    if files and with_packages:
        # A rank imports at least as many packages as its launcher, such as torchrun.
        process = max(files, key=lambda process: len(_packages_in(files[process])))
        try:
            software = _software(process, files[process], root)
        except OSError as error:
            software = without_software(_refusal(process, error))
    libraries = libraries_among([file for mapped in files.values() for file in mapped])
    cpus = {allowed_cpus(process, root) for process in files}
    return ProcessSoftware(
        host=socket.gethostname(), libraries=libraries, cpus=tuple(sorted(cpus)), software=software
    )


def _refusal(process: int, error: OSError) -> str:
    return f"process {process} cannot be read: {error.strerror}"


def _is_fork(process: int, processes: Collection[int], root: Path) -> bool:
    """Return True if a process, such as a data loader worker, is a fork of one of `processes`."""
    # The process may have ended; the caller finds that out when it reads the mapped files.
    with suppress(OSError):
        family = (process, parent_of(process, root))
        words = [(root / f"proc/{member}/cmdline").read_bytes() for member in family]
        return family[1] in processes and words[0] == words[1]
    return False


def _packages_in(files: Sequence[str]) -> list[str]:
    return [found[0] for found in map(_PACKAGES.match, files) if found]


def _software(process: int, files: Sequence[str], root: Path) -> Environment:
    """Return the Python packages in the folders from which a process has loaded libraries."""
    place = root / "proc" / str(process)
    paths = [*dict.fromkeys(_packages_in(files))]
    folders = [place / "root" / path.lstrip("/") for path in paths]
    packages = installed_packages(folders)
    if not packages:
        program = clean(str((place / "exe").readlink()))
        return without_software(f"{program} has loaded no library of a package")
    python = _PYTHON.search("".join(paths))
    is_own = (place / "exe").exists() and (place / "exe").samefile(sys.executable)
    torch, vision = read_version_file(folders, "torch"), read_version_file(folders, "torchvision")
    return Environment(
        device=UNRECORDED,
        python_version=platform.python_version() if is_own else python and python[1],
        torch_version=torch.get("__version__", packages.get("torch")),
        torchvision_version=vision.get("__version__", packages.get("torchvision")),
        lightning_version=packages.get("lightning"),
        cuda_version=torch.get("cuda"),
        rocm_version=torch.get("hip"),
        packages=packages,
    )


def read_version_file(folders: Sequence[Path], package: str) -> Mapping[str, str]:
    """Return `__version__`, `cuda` and `hip` from a package's `version.py`, if set; {} if none."""
    for folder in folders:
        with suppress(OSError), (folder / package / "version.py").open(errors="replace") as file:
            found = _VERSION_LINE.findall(file.read(_HEAD_CHARACTERS))
            return {name: clean(value) for name, value in found}
    return {}
