"""Bisection over packages: trials run in environments that mix good and bad package versions."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gpuscale
from gpuscale.base.errors import UsageError
from gpuscale.base.known_error_messages import DISK_FULL
from gpuscale.campaigns.bisection import kinds
from gpuscale.records.evidence import normalised

_PINNED = re.compile(r"([A-Za-z0-9][\w.-]*) *(?:\[[^]]*\])? *\(?===?")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_KEPT = 6
"""Maximum number of environments kept on disk; creating one again takes only seconds."""


@dataclass(slots=True, kw_only=True)
class Packages(kinds.Kind):
    """Differences in packages; uv creates environments that mix good and bad package versions.

    Dependencies are not resolved, so a library can differ from the version that torch pins.
    """

    noun = "package"
    uv: str
    python: str
    good: kinds.BisectionSide
    bad: kinds.BisectionSide
    needs_gpuscale: bool
    """True if trials run training cases, which import gpuscale in the trial's environment."""
    options: Sequence[str] = ()
    """Options of uv that select the source of packages, such as an index."""
    _all: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    """Each package's requirement in the good and the bad environment; None if absent there."""
    _folder: Path = Path()

    def __post_init__(self) -> None:
        good, bad = self.good, self.bad
        left = [*kinds.differences_elsewhere(good, bad), *good.not_tried, *bad.not_tried]
        self.not_tried = [*dict.fromkeys(left)]
        names = sorted({*good.pins, *bad.pins})
        self._all = {name: (good.pins.get(name), bad.pins.get(name)) for name in names}
        self.take(_change(name, *pair) for name, pair in self._all.items() if pair[0] != pair[1])

    def prepare(self, folder: Path) -> None:
        """Make the good and the bad environment, and find packages that must change together."""
        self._folder = folder
        ends = frozenset[int](), frozenset(range(len(self.changes)))
        try:
            places = [self._made(end) for end in ends]
        except kinds.EnvironmentBuildError as error:
            step = "give --index-url, UV_EXTRA_INDEX_URL, --wheelhouse, or lists (.txt) without it"
            raise UsageError(f"{error}; {step}") from None
        self._group(map(_site, places))

    def setting(self, applied: kinds.Applied) -> kinds.Setting:
        """Create the environment if missing; return the interpreter and variables for its runs."""
        place = self._made(applied)
        if self.needs_gpuscale:
            self._add_gpuscale(place)
        path = f"{place / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        variables = {"VIRTUAL_ENV": str(place), "PATH": path, "PYTHONHOME": None}
        return kinds.Setting(variables=variables, python=place / "bin" / "python")

    def _made(self, applied: kinds.Applied) -> Path:
        place = self._folder / self.name_of(applied)
        complete = place / "complete"
        if not complete.exists():
            made = [*self._folder.glob("*/complete")]
            for old in sorted(made, key=lambda file: file.stat().st_mtime)[: 1 - _KEPT]:
                shutil.rmtree(old.parent, ignore_errors=True)
            shutil.rmtree(place, ignore_errors=True)
            self._folder.mkdir(parents=True, exist_ok=True)
            version = ["--python", self.python] if self.python else []
            if self._uv("venv", "--no-python-downloads", *version, str(place)) is not None:
                problem = f"uv finds no Python {self.python} for the environments"
                raise UsageError(f"{problem}; install it, or name an environment that has it")
            pins = place / "packages.txt"
            pins.write_text("".join(f"{line}\n" for line in self._lines(applied)))
            interpreter = ("--python", str(place / "bin" / "python"))
            command = ("pip", "install", "--no-deps", *self.options, *interpreter, "-r", str(pins))
            # Try uv's cache first, so that trials can continue without a network.
            if refusal := self._uv(*command, "--offline") and self._uv(*command):
                raise kinds.EnvironmentBuildError(f"uv cannot make the environment: {refusal}")
        complete.touch()
        return place

    def _content(self, applied: kinds.Applied) -> object:
        return self.python, self._lines(applied)

    def _lines(self, applied: kinds.Applied) -> list[str]:
        bad = {self.changes[number].name for number in applied}
        chosen = (pair[name in bad] for name, pair in self._all.items())
        return sorted(line for line in chosen if line is not None)

    def _uv(self, *arguments: str) -> str | None:
        """Run uv; return None on success, else uv's error; raise UsageError if the disk is full."""
        command = [self.uv, *arguments, "-q"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.returncode:
            return None
        if DISK_FULL.search(done.stderr):
            raise UsageError("the disk is full, so uv makes no environment; free some space")
        causes = [line for line in done.stderr.splitlines() if "hint" not in line]
        reason = kinds.last_line(" ".join(" ".join(causes).split()))
        return reason.removeprefix("error: ").replace(" cause:", ":")

    def _group(self, sites: Iterable[Path]) -> None:
        """Group packages if one pins the other in metadata in `sites`; sort changes by group."""
        numbers = {change.name: number for number, change in enumerate(self.changes)}
        group = dict(enumerate(self.groups))
        for package in importlib.metadata.distributions(path=[*map(str, sites)]):
            one = numbers.get(normalised(package.metadata["Name"] or ""))
            for asked in package.requires or ():
                pin = _PINNED.match(asked)
                other = numbers.get(normalised(pin[1])) if pin else None
                if one is not None and other is not None and "extra ==" not in asked:
                    old, new = group[one], group[other]
                    group = {at: new if of == old else of for at, of in group.items()}
        order = sorted(group, key=lambda number: (group[number], number))
        self.changes = tuple(self.changes[number] for number in order)
        self.groups = tuple(group[number] for number in order)

    def _add_gpuscale(self, place: Path) -> None:
        """Append gpuscale and its dependencies to the `sys.path` of the environment at `place`."""
        folder = self._folder / "gpuscale_needs"
        if not folder.exists():
            folder.mkdir()
            source = Path(gpuscale.__file__).parent
            for file in {source, *_needed_files({change.name for change in self.changes})}:
                (folder / file.name).symlink_to(file)
        (_site(place) / "zz_gpuscale.pth").write_text(f"{folder.absolute()}\n")


def _needed_files(without: set[str]) -> Iterator[Path]:
    """For each dependency of gpuscale not in `without`, yield its top-level files and folders."""
    site = Path(sysconfig.get_path("purelib"))
    waiting, seen = ["gpuscale"], {"gpuscale", *without}
    while waiting:
        try:
            package = importlib.metadata.distribution(waiting.pop())
        except importlib.metadata.PackageNotFoundError:
            continue
        if package.metadata["Name"] != "gpuscale":
            for file in package.files or ():
                # Paths of files outside site-packages, such as programs, start with "..".
                if file.parts[0] not in ("..", "__pycache__"):
                    yield site / file.parts[0]
        for asked in package.requires or ():
            name = _NAME.match(asked)
            if name and "extra ==" not in asked and normalised(name[0]) not in seen:
                seen.add(normalised(name[0]))
                waiting.append(name[0])


def _site(place: Path) -> Path:
    return next(place.glob("lib/python*/site-packages"))


def _change(name: str, before: str | None, after: str | None) -> kinds.Change:
    versions = [re.split(r"[/=@\s]", line)[-1] if line else "none" for line in (before, after)]
    if versions[0] == versions[1]:  # two builds of one version
        versions = [str(before), str(after)]
    remedy = f"keep {before}" if before else f"leave out {name}"
    return kinds.Change(name=name, text=f"{name} {' → '.join(versions)}", remedy=remedy)
