"""Software of a command's ranks: the interpreter among its processes, and the loaded libraries.

The interpreter may be that of another environment or container. It is not started: a process's
files show where it imports from, and are read through `/proc/PID/root`.
"""

import os
import re
import shutil
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpuscale.base.host import parent_of, variables_of
from gpuscale.base.printable import clean
from gpuscale.measure.evidence.libraries import libraries_among, mapped_files
from gpuscale.measure.evidence.packages import installed_packages
from gpuscale.records.environment import UNRECORDED, Environment, without_software
from gpuscale.records.software import ProcessSoftware

_PACKAGES = re.compile(r".*/(?:site|dist)-packages(?=/)")
_PYTHON = re.compile(r"python(\d\.\d+)")
_TOLD = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*= *['\"]([^'\"\n]+)", re.MULTILINE)
_HEAD_CHARACTERS = 4096


def software_of(
    processes: Collection[int], *, with_packages: bool = True, root: Path = Path("/")
) -> ProcessSoftware:
    """Return the libraries of these processes, and the software of the interpreter among them.

    The reason for what cannot be read is in `packages_absent` of the software.
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
    by_packages = sorted(files, key=lambda process: -len([*_packages_in(files[process])]))
    for process in by_packages if with_packages else ():
        try:
            software = _software(process, files[process], root)
        except OSError as error:
            software = without_software(_refusal(process, error))
        if software.packages:
            break
    libraries = libraries_among([file for mapped in files.values() for file in mapped])
    return ProcessSoftware(host=socket.gethostname(), libraries=libraries, software=software)


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


def _packages_in(files: Sequence[str]) -> Iterator[str]:
    """Yield the folder of packages of each file that lies in one."""
    for file in files:
        if found := _PACKAGES.match(file):
            yield found[0]


def _software(process: int, files: Sequence[str], root: Path) -> Environment:
    place = root / "proc" / str(process)
    program = str((place / "exe").readlink())
    python = _PYTHON.fullmatch(Path(program).name)
    paths = (*_import_folders(place, program, python), *_packages_in(files))
    folders = [place / "root" / path.lstrip("/") for path in dict.fromkeys(paths)]
    packages = installed_packages(folders)
    if not packages:
        return without_software(f"{clean(program)} has no packages that can be seen")
    torch = _told_by(folders, "torch")
    return Environment(
        device=UNRECORDED,
        python_version=python and python[1],
        torch_version=torch.get("__version__", packages.get("torch")),
        torchvision_version=_told_by(folders, "torchvision").get(
            "__version__", packages.get("torchvision")
        ),
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


def _told_by(folders: Sequence[Path], package: str) -> Mapping[str, str]:
    """Return the constants of a package's `version.py`, which has more than its metadata."""
    for folder in folders:
        with suppress(OSError), (folder / package / "version.py").open(errors="replace") as file:
            return {
                name: clean(value) for name, value in _TOLD.findall(file.read(_HEAD_CHARACTERS))
            }
    return {}
