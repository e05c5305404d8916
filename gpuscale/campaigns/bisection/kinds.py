"""The good and the bad environment of a bisection, and kinds of changes between them."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import msgspec

from gpuscale.base.errors import FileError, GpuscaleError, UsageError
from gpuscale.base.host import JOB_VARIABLES
from gpuscale.base.text import visible
from gpuscale.records import Environment, Results
from gpuscale.records.environment import without_software
from gpuscale.records.environment_diff import environment_changes, environment_text, listed
from gpuscale.records.evidence import normalised
from gpuscale.store.files import file_errors, read_any

Applied = frozenset[int]
"""Indices of the changes that an environment applies to the good environment."""
_PIN = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[^]]*\])? *(?:===?|@) *\S+")
_OPTION = re.compile(r"\s+--\w.*|\s+#.*|\s*\\$|;.*")


class EnvironmentBuildError(GpuscaleError):
    """Raised if the environment of a trial cannot be created; the message says why."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between the good and bad environments; a trial may apply it to the good one."""

    name: str
    text: str
    """Description of the change: `torch 2.14 → 2.15`."""
    remedy: str
    """Advice on how to undo or examine the change: `keep torch==2.14`, `git show 1a2b3c4`."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Interpreter, working folder and environment variables for runs in a trial's environment."""

    variables: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    """Environment variables to set; a variable whose value is None is removed."""
    python: Path | None = None
    """Interpreter that trains cases; None for gpuscale's own."""
    folder: Path | None = None


@dataclass(slots=True, kw_only=True)
class Kind(ABC):
    """Base class for kinds of changes, such as packages; creates environments that apply them."""

    noun: ClassVar[str]
    is_ordered: ClassVar[bool] = False
    """True if a change requires all earlier ones to be applied, as with commits."""
    changes: tuple[Change, ...] = ()
    groups: tuple[int, ...] = ()
    """Group number of each change; changes in the same group are applied together."""
    not_tried: list[str] = field(default_factory=list)
    """Differences between the environments that cannot be tried, described in words."""

    def take(self, changes: Iterable[Change]) -> None:
        """Set `changes`, and put each change in a group of its own."""
        self.changes = (*changes,)
        self.groups = (*range(len(self.changes)),)

    def prepare(self, folder: Path) -> None:  # noqa: B027 - variables need nothing
        """Prepare `folder` before environments are created in it; do nothing unless overridden."""

    @abstractmethod
    def _content(self, applied: Applied) -> object:
        """Return a value that identifies the environment with these changes applied."""

    def name_of(self, applied: Applied) -> str:
        """Return an environment's name: a hash of its content that is the same in every process."""
        return hashlib.sha256(repr(self._content(applied)).encode()).hexdigest()[:12]

    def words_of(self, applied: Applied) -> str:
        """Describe an environment by its changes, as `good + torch, triton` or `up to 1a2b3c4`."""
        names = [self.changes[at].name for at in sorted(applied)]
        if len(names) in (0, len(self.changes)):
            return "bad" if names else "good"
        return f"up to {names[-1]}" if self.is_ordered else f"good + {listed(names, 3)}"

    @abstractmethod
    def setting(self, applied: Applied) -> Setting:
        """Create the environment if missing; return its Setting or raise EnvironmentBuildError."""


@dataclass(slots=True, kw_only=True)
class Variables(Kind):
    """Differences in environment variables; variables that do not differ are set in all trials."""

    noun = "variable"
    good: Mapping[str, str]
    bad: Mapping[str, str]

    def __post_init__(self) -> None:
        names = sorted({*self.good, *self.bad})
        self.take(self._change(name) for name in names if self.good.get(name) != self.bad.get(name))

    def _change(self, name: str) -> Change:
        values = [side.get(name) for side in (self.good, self.bad)]
        words = [visible(value) if value is not None else "not set" for value in values]
        remedy = f"unset {name}" if values[0] is None else f"{name}={words[0]}"
        return Change(name=name, text=f"{name} {' → '.join(words)}", remedy=remedy)

    def _content(self, applied: Applied) -> object:
        return sorted(self.setting(applied).variables.items())

    def setting(self, applied: Applied) -> Setting:
        """Return a Setting: applied variables as in the bad environment, others as in the good."""
        values: dict[str, str | None] = {**self.good}
        for number, change in enumerate(self.changes):
            values[change.name] = (self.bad if number in applied else self.good).get(change.name)
        return Setting(variables=values)


def last_line(text: str) -> str:
    """Return the last non-blank line of a text, truncated to 200 characters."""
    return visible((text.strip() or "it said nothing").splitlines()[-1].strip()[:200])


class BisectionSide(msgspec.Struct, frozen=True, kw_only=True):
    """The good or the bad environment of a bisection: its packages, Python and variables."""

    pins: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Pinned requirements, such as `torch==2.14`, keyed by package name."""
    python: str = ""
    """Path of an interpreter, or a version such as `3.12`; empty if any will do."""
    python_version: str | None = None
    not_tried: tuple[str, ...] = ()
    """Packages of the environment that uv cannot install."""
    recorded: tuple[Environment, ...] = ()
    variables: Mapping[str, str] = msgspec.field(default_factory=dict)


def uv_program() -> str:
    """Return the path of uv; raise a UsageError if it is missing."""
    beside = os.fspath(Path(sys.executable).parent)
    if (found := shutil.which("uv") or shutil.which("uv", path=beside)) is None:
        problem = "uv, which makes the environments of trials, is not installed"
        raise UsageError(f"{problem}; install it with: pip install uv")
    return found


def side_of(path: Path) -> BisectionSide:
    """Read an environment from a folder, interpreter, requirements file, results or baseline."""
    python = path / "bin" / "python" if path.is_dir() else path
    if path.is_dir() or path.name.startswith("python"):
        return _installed(path, python)
    if path.suffix == ".txt":
        with file_errors(path):
            return BisectionSide(pins=_pins(path, path.read_text("utf-8", "replace").splitlines()))
    content = read_any(path)
    found = [content.environment] if isinstance(content, Results) else content.environments.values()
    environments = tuple(found)
    last = environments[-1] if environments else without_software()
    packages = last.packages
    minor = ".".join((last.python_version or "").split(".")[:2])
    foreign = {name for name, version in packages.items() if set(version) & set(" ,")}
    return BisectionSide(
        pins={name: f"{name}=={packages[name]}" for name in packages if name not in foreign},
        # Any patch release of that Python version will do.
        python=minor,
        python_version=minor or None,
        not_tried=tuple(f"{name} {packages[name]}" for name in sorted(foreign)),
        recorded=environments,
        variables={
            name: value for name, value in last.variables.items() if name not in JOB_VARIABLES
        },
    )


def differences_elsewhere(
    good: BisectionSide, bad: BisectionSide, tried: Collection[str] = ()
) -> list[str]:
    """Describe the recorded differences in anything but packages and the variables in `tried`."""
    of_packages = ("torch", "torchvision", "lightning", "nccl", "cudnn", "cuda", "rccl", "miopen")
    names = {*tried, *(f"{name}_version" for name in of_packages)}
    changes = environment_changes(good.recorded, bad.recorded)
    return [environment_text(change) for change in changes if change.name not in names]


def validate_sides(good: BisectionSide, bad: BisectionSide) -> None:
    """Raise UsageError if a side has no packages, if both have the same, or if Pythons differ."""
    for name, side in (("GOOD", good), ("BAD", bad)):
        if not side.pins:
            remedy = "name the folder of an environment, or its pip freeze in a .txt"
            raise UsageError(f"{name} lists no packages that pip has recorded; {remedy}")
    versions = {side.python_version for side in (good, bad)} - {None}
    if len(versions) > 1:
        named = " and ".join(sorted(map(str, versions)))
        raise UsageError(f"the environments have Python {named}; make both with one version")
    if good.pins == bad.pins:
        others = [*differences_elsewhere(good, bad), *sorted({*good.not_tried, *bad.not_tried})]
        left = f"; they differ in {', '.join(others)}" if others else ""
        raise UsageError(f"both environments have the same packages{left}; name two that differ")


def _installed(path: Path, python: Path) -> BisectionSide:
    code = "import sys; print('%d.%d' % sys.version_info[:2], sys.prefix)"
    try:
        completed = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        version, prefix = completed.stdout.strip().split(" ", 1)
    except (OSError, subprocess.CalledProcessError, ValueError):
        remedy = "name an environment's folder or bin/python, a requirements .txt, or results"
        raise UsageError(f"{visible(str(path))}: no Python starts there; {remedy}") from None
    asked = [uv_program(), "pip", "freeze", "--python", str(python)]
    frozen = subprocess.run(asked, capture_output=True, text=True, check=False)
    if frozen.returncode:
        raise UsageError(f"{visible(str(path))}: uv cannot read it: {last_line(frozen.stderr)}")
    kept: list[str] = []
    lost: list[str] = []
    for line in frozen.stdout.splitlines():
        # Packages from conda or a build folder may refer to a path that no longer exists.
        local = line.partition("file://")[2].partition("#")[0]
        is_lost = line.startswith("-e") or (local and not Path(local).exists())
        (lost if is_lost else kept).append(line)
    if (Path(prefix) / "conda-meta").is_dir():
        lost.append("packages of conda that are not Python's")
    return BisectionSide(
        pins=_pins(path, kept),
        python=str(python.absolute()),
        python_version=version,
        not_tried=tuple(lost),
    )


def _pins(path: Path, lines: Iterable[str]) -> dict[str, str]:
    found = {}
    for number, line in enumerate(lines, 1):
        text = _OPTION.sub("", line).strip()
        if not text or text.startswith(("#", "--")):
            continue
        if (pin := _PIN.fullmatch(text)) is None:
            problem = f"'{visible(text)}' pins no version; write NAME==VERSION, as pip freeze does"
            raise FileError(path, problem, line=number)
        found[normalised(pin[1])] = text
    found.pop("gpuscale", None)
    return found
