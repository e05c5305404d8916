"""Find the libraries that a process has loaded in `/proc/PID/maps`, and ask for their versions."""

import ctypes
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from gpuscale.base.printable import clean
from gpuscale.records.software import Library, merged

_LONGEST_MPI_TEXT = 8192
"""Size of the buffer for MPI_Get_library_version; MPICH asks for the largest."""
_DELETED = " (deleted)"


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
    """A library that bears on performance."""

    name: str
    stem: str
    """Regular expression for the part of the file name between `lib` and `.so`."""
    version: Callable[[ctypes.CDLL], str] | None = None
    """Function that queries the loaded library's version; None if the library has no such query."""
    parts: str = ""
    """Part of the paths of files that the library has loaded once it is used. An unused library is
    not asked, since it would load them to answer."""


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
    """Return the files that a process (default: this one) has mapped, each once.

    Raise an OSError if the process has ended or belongs to another user.
    """
    maps = root / "proc" / str(process or "self") / "maps"
    lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    # Address, permissions, offset, device, inode, path.
    columns = (line.split(None, 5) for line in lines)
    paths = (fields[5] for fields in columns if len(fields) == 6)
    return [path for path in dict.fromkeys(paths) if path.startswith("/")]


def own_libraries() -> tuple[Library, ...]:
    """Return the known libraries that this process has loaded, with the versions they report."""
    try:
        files = mapped_files()
    except OSError:
        # No /proc, as in some containers.
        return ()
    return libraries_among(files, are_own=True)


def libraries_among(files: Sequence[str], *, are_own: bool = False) -> tuple[Library, ...]:
    """Return the known libraries among mapped files; only those of this process report versions."""
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
    """Return the version that a loaded library reports; None if unknown. This loads nothing."""
    # A build may lack the function, and the call may fail.
    with suppress(OSError, AttributeError):
        loaded = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return known.version and clean(known.version(loaded))
    return None
