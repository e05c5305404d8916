"""The good or the bad environment: from its interpreter, a list of pins, results or variables."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuscale.base.errors import FileError, UsageError
from gpuscale.base.printable import visible
from gpuscale.campaigns.bisection.kind import last_line
from gpuscale.campaigns.bisection.variables import SUFFIX, lasting, variables_in
from gpuscale.records import Environment, Results
from gpuscale.records.environment import without_software
from gpuscale.records.environment_diff import environment_changes, environment_text
from gpuscale.records.software import normalised
from gpuscale.store import read_any
from gpuscale.store.files import READ_PROBLEMS, file_errors

_PIN = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[^]]*\])? *(?:===?|@) *\S+")
_EDITABLE = re.compile(r"-e +(\S+)")
_OPTION = re.compile(r"\s+--\w.*|\s+#.*|\s*\\$|;.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two environments between which a bisection searches."""

    pins: Mapping[str, str] = field(default_factory=dict)
    """Requirement that installs each package, keyed by the package's name."""
    python: str = ""
    """Path of an interpreter, or a version such as `3.12`; empty if any will do."""
    python_version: str | None = None
    not_tried: tuple[str, ...] = ()
    """Packages of the environment that uv cannot install."""
    recorded: tuple[Environment, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables, from a file or as recorded in results."""


def uv_program() -> str:
    """Return the path of uv; raise a UsageError if it is missing."""
    beside = os.fspath(Path(sys.executable).parent)
    found = shutil.which("uv") or shutil.which("uv", path=beside)
    if found is None:
        problem = "uv, which makes the environments of trials, is not installed"
        raise UsageError(f"{problem}; install it with: pip install uv")
    return found


def side_of(path: Path) -> Side:
    """Read an environment's folder or interpreter, pinned requirements, variables, or results."""
    if path.suffix == SUFFIX:
        return Side(variables=variables_in(path))
    python = path / "bin" / "python" if path.is_dir() else path
    if path.is_dir() or path.name.startswith("python"):
        return _installed(path, python)
    if path.suffix == ".txt":
        with file_errors(path, READ_PROBLEMS):
            return Side(pins=_pins(path, path.read_text("utf-8", "replace").splitlines()))
    content = read_any(path)
    environments = (
        (content.environment,)
        if isinstance(content, Results)
        else (*content.environments.values(),)
    )
    last = environments[-1] if environments else without_software()
    packages = last.packages
    minor = ".".join((last.python_version or "").split(".")[:2])
    foreign = {name for name, version in packages.items() if set(version) & set(" ,")}
    return Side(
        pins={name: f"{name}=={packages[name]}" for name in packages if name not in foreign},
        # Another patch of that Python will do.
        python=minor,
        python_version=minor or None,
        not_tried=tuple(f"{name} {packages[name]}" for name in sorted(foreign)),
        recorded=environments,
        variables=lasting(last.variables),
    )


def differences_elsewhere(good: Side, bad: Side, tried: Collection[str] = ()) -> list[str]:
    """Return the differences between recorded environments other than packages, such as the driver.

    Variables named in `tried` are left out.
    """
    of_packages = ("torch", "torchvision", "lightning", "nccl", "cudnn", "cuda", "rccl", "miopen")
    names = {*tried, *(f"{name}_version" for name in of_packages)}
    changes = environment_changes(good.recorded, bad.recorded)
    return [environment_text(change) for change in changes if change.name not in names]


def validate_sides(good: Side, bad: Side) -> None:
    """Raise a UsageError if no packages differ or are known, or if the interpreters differ."""
    for name, side in (("GOOD", good), ("BAD", bad)):
        if not side.pins:
            remedy = "name the folder of an environment, or its pip freeze in a .txt"
            raise UsageError(f"{name} has no packages with pip's records; {remedy}")
    versions = {side.python_version for side in (good, bad)} - {None}
    if len(versions) > 1:
        named = " and ".join(sorted(map(str, versions)))
        raise UsageError(f"the environments are of Python {named}; make both with one Python")
    if good.pins == bad.pins:
        others = [*differences_elsewhere(good, bad), *sorted({*good.not_tried, *bad.not_tried})]
        left = f"; what is left: {', '.join(others)}" if others else ""
        raise UsageError(f"the same packages are in both environments{left}; name two that differ")


def _installed(path: Path, python: Path) -> Side:
    code = "import sys; print('%d.%d' % sys.version_info[:2], sys.prefix)"
    try:
        told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        version, prefix = told.stdout.strip().split(" ", 1)
    except (OSError, subprocess.CalledProcessError, ValueError):
        remedy = "name an environment's folder or bin/python, a requirements .txt, or results"
        raise UsageError(f"{visible(str(path))}: no Python starts there; {remedy}") from None
    asked = [uv_program(), "pip", "freeze", "--python", str(python)]
    frozen = subprocess.run(asked, capture_output=True, text=True, check=False)
    pins, lost = {}, []
    for name, line in _pins(path, frozen.stdout.splitlines()).items():
        # Packages of conda and of a build's folder have a path that is gone.
        local = line.partition("file://")[2]
        if local and not Path(local.partition("#")[0]).exists():
            lost.append(line)
        else:
            pins[name] = line
    if frozen.returncode:
        raise UsageError(f"{visible(str(path))}: uv cannot read it: {last_line(frozen.stderr)}")
    if (Path(prefix) / "conda-meta").is_dir():
        lost.append("packages of conda that are not Python's")
    return Side(
        pins=pins, python=str(python.absolute()), python_version=version, not_tried=tuple(lost)
    )


def _pins(path: Path, lines: Iterable[str]) -> dict[str, str]:
    found = {}
    for number, line in enumerate(lines, 1):
        text = _OPTION.sub("", line).strip()
        if not text or text.startswith(("#", "--")):
            continue
        pin, editable = _PIN.fullmatch(text), _EDITABLE.fullmatch(text)
        if pin is None and editable is None:
            problem = f"'{visible(text)}' is no pinned version; write NAME==VERSION, as pip freeze"
            raise FileError(path, problem, line=number)
        name = pin[1] if pin else Path((editable or [text])[1]).name
        found[normalised(name)] = text
    found.pop("gpuscale", None)
    return found
