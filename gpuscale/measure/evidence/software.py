"""Detect the software of processes: loaded libraries and Python packages.

A user's command may run in another environment or container. gpuscale does not start the Python
interpreter there: the libraries that the command has loaded reveal its package folders, which
gpuscale reads through `/proc/PID/root`.
"""

import ctypes
import os
import platform
import re
import socket
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gpuscale.base.host import UNRECORDED, allowed_cpus, text_of
from gpuscale.base.process_ends import parent_of
from gpuscale.base.text import clean
from gpuscale.records.environment import Environment, without_software
from gpuscale.records.evidence import Library, ProcessSoftware, merged, normalised

_PACKAGES = re.compile(r".*/(?:site|dist)-packages(?=/)")
_MAPPED_FILE = re.compile(r"^(?:\S+ +){5}(/.*)$", re.MULTILINE)
"""Path in a line of /proc/PID/maps, after address, permissions, offset, device and inode."""
_PYTHON = re.compile(r"/python(\d\.\d+)/")
_VERSION_LINE = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*= *['\"]([^'\"\n]+)", re.MULTILINE)
KNOWN_LIBRARIES = {
    "NCCL": "nccl",
    "RCCL": "rccl",
    "NCCL network plugin": r"[nr]ccl-net[\w-]*",
    "CUDA runtime": "cudart",
    "HIP runtime": "amdhip64",
    "cuBLAS": "cublas",
    "cuDNN": "cudnn",
    "MPI": r"mpi(ch|_(cray|gnu|nvidia|amd|aocc)\w*)?",
    "libfabric": "fabric",
    "libibverbs": "ibverbs",
}
"""Libraries that affect performance: a pattern for the file name between `lib` and `.so`."""
# Wheels add a hash to the names of libraries that they bundle.
_FILE_NAMES = {
    name: re.compile(rf"lib{stem}([.-][0-9a-f]{{8}})?\.so(\.[\d.]+)?")
    for name, stem in KNOWN_LIBRARIES.items()
}
VARIABLE_PREFIXES = (
    *("CUBLAS_", "CUDA_", "CUDNN_", "CXI_", "FI_", "GLOO_", "HIP_", "HSA_", "MIOPEN_", "MKL_"),
    *("MPICH_", "NCCL_", "NVIDIA_TF32_OVERRIDE", "OMP_", "PYTORCH_", "RCCL_", "ROCR_", "TORCH_"),
    *("TORCHINDUCTOR_", "UCX_"),
)
"""Prefixes of the environment variables that affect how ranks compute and communicate."""


def own_software() -> ProcessSoftware:
    """Return this process's allowed CPUs and loaded libraries, and the version of NCCL or RCCL."""
    return software_of([os.getpid()], with_packages=False)


def libraries_among(files: Iterable[str], *, are_own: bool = False) -> tuple[Library, ...]:
    """Return known libraries among files, with NCCL's version if this process has loaded them."""
    found = []
    for path in (file.removesuffix(" (deleted)") for file in files):
        for name, pattern in _FILE_NAMES.items():
            if pattern.fullmatch(path.rpartition("/")[2]):
                version = _nccl_version(path) if are_own and name in ("NCCL", "RCCL") else None
                found.append(Library(name=name, path=clean(path), version=version))
    return merged(found)


def _nccl_version(path: str) -> str | None:
    """Return the version of the NCCL or RCCL this process loaded from `path`; None if unknown."""
    number = ctypes.c_int()
    # A build may lack the function.
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        if library.ncclGetVersion(ctypes.byref(number)) == 0:
            # Up to NCCL 2.8 a minor version had one digit.
            major, rest = divmod(number.value, 10_000 if number.value >= 10_000 else 1000)
            return f"{major}.{rest // 100}.{rest % 100}"
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
    """Describe a package's origin, without credentials, from its `direct_url.json` ('' if absent).

    Only the last part of a local path is kept: the rest may differ between identical set-ups.
    """
    try:
        direct_url = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        url = urlsplit(direct_url["url"])
        if url.scheme == "file":
            kind = "editable, folder" if direct_url.get("dir_info", {}).get("editable") else "from"
            return f"{kind} {Path(url.path).name}"
        commit = direct_url.get("vcs_info", {}).get("commit_id", "")[:12]
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}{commit and '@'}{commit}"
    except OSError:
        return ""
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError):
        return f"{file.name} cannot be read"


def software_of(
    processes: Collection[int], *, with_packages: bool = True, root: Path = Path("/")
) -> ProcessSoftware:
    """Return the libraries that processes have loaded, and the Python packages of one process.

    The packages are those of the process that has loaded the most files from Python packages;
    if they cannot be read, `software.packages_absent` of the result gives the reason.
    """
    files: dict[int, list[str]] = {}
    absent: str | None = "no process of the command was left"
    for process in sorted(number for number in processes if not _is_fork(number, processes, root)):
        try:
            mapped = (root / f"proc/{process}/maps").read_text(encoding="utf-8", errors="replace")
            files[process] = [*dict.fromkeys(_MAPPED_FILE.findall(mapped))]
        except OSError as error:
            # The process may have ended, or be another user's; others may have the same libraries.
            absent = _refusal(process, error)
    software = without_software(None if files else absent)
    if files and with_packages:
        # A rank imports at least as many packages as its launcher, such as torchrun.
        process = max(files, key=lambda process: len(_packages_in(files[process])))
        try:
            software = _software(process, files[process], root)
        except OSError as error:
            software = without_software(_refusal(process, error))
    all_files = [file for of_process in files.values() for file in of_process]
    libraries = libraries_among(all_files, are_own=os.getpid() in files)
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
    """Return an `Environment` with the packages in folders from which a process loaded `files`."""
    place = root / "proc" / str(process)
    paths = [*dict.fromkeys(_packages_in(files))]
    fields = python_packages([place / "root" / path.lstrip("/") for path in paths])
    if not fields["packages"]:
        program = clean(str((place / "exe").readlink()))
        return without_software(f"{program} has loaded no library of a package")
    python = _PYTHON.search("".join(paths))
    is_own = (place / "exe").exists() and (place / "exe").samefile(sys.executable)
    version = platform.python_version() if is_own else python and python[1]
    return Environment(device=UNRECORDED, python_version=version, **fields)


def python_packages(folders: Sequence[Path]) -> dict[str, Any]:
    """Return the `Environment` fields about packages in these folders, without importing any."""
    packages = installed_packages(folders)
    torch, vision = _in_version_file(folders, "torch"), _in_version_file(folders, "torchvision")
    return {
        "torch_version": torch.get("__version__", packages.get("torch")),
        "torchvision_version": vision.get("__version__", packages.get("torchvision")),
        "lightning_version": packages.get("lightning"),
        "cuda_version": torch.get("cuda"),
        "rocm_version": torch.get("hip"),
        "packages": packages,
    }


def _in_version_file(folders: Sequence[Path], package: str) -> Mapping[str, str]:
    """Return `__version__`, `cuda` and `hip` from a package's `version.py`, if set; {} if none."""
    texts = (text_of(folder / package / "version.py") for folder in folders)
    found = _VERSION_LINE.findall(next(filter(None, texts), ""))
    return {name: clean(value) for name, value in found}
