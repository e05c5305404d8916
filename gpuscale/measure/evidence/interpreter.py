"""Software of a command's ranks: the interpreter among its processes, and the loaded libraries.

The interpreter may be that of another environment or container. It is not started: a process's
files show where it imports from, and are read through `/proc/PID/root`.
"""

import os
import re
import shutil
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gpuscale.base.cpus import allowed_cpus
from gpuscale.base.host import parent_of, variables_of
from gpuscale.base.printable import clean
from gpuscale.measure.evidence.libraries import libraries_among, mapped_files
from gpuscale.records.environment import UNRECORDED, Environment, without_software
from gpuscale.records.software import ProcessSoftware, normalised

_METADATA = {".dist-info": "METADATA", ".egg-info": "PKG-INFO"}
_VERSION = re.compile(r"^Version: *(\S+)", re.MULTILINE)
_SHORT_COMMIT = 12


def installed_packages(folders: Iterable[Path]) -> Mapping[str, str]:
    """Return the version of each package by its normalised name, with its origin if it has one.

    Several versions of a package are separated by commas, first that of the first folder. Folders
    that do not exist or cannot be read have no packages. gpuscale itself is left out.
    """
    # importlib.metadata parses whole descriptions and takes ten times as long.
    found: dict[str, dict[str, None]] = {}
    for folder in dict.fromkeys(folders):
        try:
            entries = sorted(entry for entry in folder.iterdir() if entry.suffix in _METADATA)
        except OSError:
            continue
        for entry in entries:
            package, _, rest = entry.stem.partition("-")
            version = _version(entry, rest, _METADATA[entry.suffix])
            found.setdefault(normalised(clean(package)), {})[version] = None
    # Its version is recorded as such, and how it is imported depends on how a session is started.
    found.pop("gpuscale", None)
    return {name: clean(", ".join(found[name])) for name in sorted(found)}


def _version(metadata: Path, rest: str, file_name: str) -> str:
    """Return a version such as `2.11.0`, `0.1 (editable, folder site)` or `1.2 (no METADATA)`.

    `rest` is the part of the metadata folder's name after the package: a version, or empty.
    """
    # An .egg-info may be a file, and its name may contain the version of Python.
    version, _, _ = rest.partition("-py")
    notes = []
    try:
        file = metadata if metadata.is_file() else metadata / file_name
        file.stat()
        if not version:
            with file.open(encoding="utf-8", errors="replace") as text:
                found = _VERSION.search(text.read(_HEAD_CHARACTERS))
            version = found[1] if found else ""
    except OSError:
        notes.append(f"no {file_name}")
    notes += _origin(metadata / "direct_url.json")
    return f"{version or 'unknown'} ({', '.join(notes)})" if notes else version or "unknown"


def _origin(file: Path) -> list[str]:
    """Describe where a package came from unless from an index, without names and passwords.

    Only the last part of a local path is kept: other parts differ between jobs with the same
    set-up.
    """
    try:
        told = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        url = urlsplit(told["url"])
        if url.scheme == "file":
            kind = "editable, folder" if told.get("dir_info", {}).get("editable") else "from"
            return [f"{kind} {Path(url.path).name}"]
        commit = told.get("vcs_info", {}).get("commit_id", "")[:_SHORT_COMMIT]
        host = url.netloc.rpartition("@")[2]
        return [f"{url.scheme}://{host}{url.path}{commit and '@'}{commit}"]
    except OSError:
        return []
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError):
        return [f"{file.name} cannot be read"]


_PACKAGES = re.compile(r".*/(?:site|dist)-packages(?=/)")
_PYTHON = re.compile(r"python(\d\.\d+)")
_TOLD = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*= *['\"]([^'\"\n]+)", re.MULTILINE)
_HEAD_CHARACTERS = 4096


def software_of(
    processes: Collection[int], *, with_packages: bool = True, root: Path = Path("/")
) -> ProcessSoftware:
    """Return the libraries of these processes, and the software of the interpreter among them.

    If the software cannot be read, its `packages_absent` has the reason.
    """
    files: dict[int, list[str]] = {}
    absent: str | None = "no process of the command was left"
    for process in _without_forks(processes, root):
        try:
            files[process] = mapped_files(process, root=root)
        except OSError as error:
            # It may have ended meanwhile; another may show the same.
            absent = _refusal(process, error)
    software = without_software(None if files else absent)
    # The ranks import at least what a starter such as torchrun imports.
    by_packages = sorted(files, key=lambda process: -len(_packages_in(files[process])))
    for process in by_packages if with_packages else ():
        try:
            software = _software(process, files[process], root)
        except OSError as error:
            software = without_software(_refusal(process, error))
        if software.packages:
            break
    libraries = libraries_among([file for mapped in files.values() for file in mapped])
    cpus = {allowed_cpus(process, root) for process in files}
    return ProcessSoftware(
        host=socket.gethostname(), libraries=libraries, cpus=tuple(sorted(cpus)), software=software
    )


def _refusal(process: int, error: OSError) -> str:
    return f"process {process} cannot be read: {error.strerror}"


def _without_forks(processes: Collection[int], root: Path) -> Iterator[int]:
    """Yield the processes except forks, such as those of data loaders, which load nothing new."""
    words: dict[int, bytes] = {}
    parents: dict[int, int] = {}
    for process in processes:
        # A process may have ended; reading what it has mapped will say so.
        with suppress(OSError):
            parents[process] = parent_of(process, root)
            words[process] = (root / f"proc/{process}/cmdline").read_bytes()
    for process in sorted(processes):
        parent = parents.get(process)
        if parent not in words or words[parent] != words.get(process):
            yield process


def _packages_in(files: Sequence[str]) -> list[str]:
    """Return the `site-packages` folder of each file that lies in one."""
    return [found[0] for found in map(_PACKAGES.match, files) if found]


def _software(process: int, files: Sequence[str], root: Path) -> Environment:
    place = root / "proc" / str(process)
    program = str((place / "exe").readlink())
    python = _PYTHON.fullmatch(Path(program).name)
    paths = (*_import_folders(place, program, python), *_packages_in(files))
    folders = [place / "root" / path.lstrip("/") for path in dict.fromkeys(paths)]
    packages = installed_packages(folders)
    if not packages:
        return without_software(f"{clean(program)} has no packages that can be seen")
    torch, vision = told_by(folders, "torch"), told_by(folders, "torchvision")
    return Environment(
        device=UNRECORDED,
        python_version=python and python[1],
        torch_version=torch.get("__version__", packages.get("torch")),
        torchvision_version=vision.get("__version__", packages.get("torchvision")),
        lightning_version=packages.get("lightning"),
        cuda_version=torch.get("cuda"),
        rocm_version=torch.get("hip"),
        packages=packages,
    )


def _import_folders(place: Path, program: str, python: re.Match[str] | None) -> Iterator[str]:
    """Yield the folders from which an interpreter imports, by its environment and location."""
    if python is None:
        return
    variables = variables_of(place.name, place.parents[1])
    yield from filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    folder = f"python{python[1]}/site-packages"
    if "PYTHONNOUSERSITE" not in variables and "HOME" in variables:
        yield f"{variables['HOME']}/.local/lib/{folder}"
    words = (place / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")
    # The interpreter of a virtual environment is a link to another, so its name in the command
    # counts; a name such as `python` is that of the first in the PATH of the process.
    started = shutil.which(words[0], path=variables.get("PATH", ""))
    if "/" in words[0]:
        started = str((place / "cwd").readlink() / words[0])
    for name in filter(None, (started, program)):
        site = Path(name).parent.parent / "lib" / folder
        if (place / "root" / str(site).lstrip("/")).is_dir():
            yield str(site)
            return


def told_by(folders: Sequence[Path], package: str) -> Mapping[str, str]:
    """Return the constants in a package's `version.py`, some of which its metadata lacks."""
    for folder in folders:
        with suppress(OSError), (folder / package / "version.py").open(errors="replace") as file:
            found = _TOLD.findall(file.read(_HEAD_CHARACTERS))
            return {name: clean(value) for name, value in found}
    return {}
