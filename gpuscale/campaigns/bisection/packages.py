"""Environments that have some packages as in the bad one and all others as in the good one."""

import hashlib
import importlib.metadata
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuscale.base.errors import UsageError
from gpuscale.campaigns.bisection.decision import Applied
from gpuscale.campaigns.bisection.package_sides import Side, last_line
from gpuscale.records.software import normalised

_PINNED = re.compile(r"([A-Za-z0-9][\w.-]*) *(?:\[[^]]*\])? *\(?===?")
_KEPT = 6
"""Environments kept at a time; another one costs seconds again, but files only once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageChange:
    """A package whose requirement differs; None if a side does not have it."""

    name: str
    before: str | None
    after: str | None

    @property
    def text(self) -> str:
        """The change in words: `torch 2.14 → 2.15`."""
        versions = [_version(self.name, line) for line in (self.before, self.after)]
        return f"{self.name} {' → '.join(versions)}"


@dataclass(slots=True, kw_only=True)
class Environments:
    """The environments of trials, made by uv in a folder.

    Dependencies are not resolved: each trial gets exactly the packages named, whatever they ask
    for. This is how a library is changed beneath a torch that pins another one.
    """

    uv: str
    python: str
    folder: Path
    options: Sequence[str] = ()
    """Options of uv that say where packages come from."""
    common: tuple[str, ...] = ()
    changes: tuple[PackageChange, ...] = ()
    groups: tuple[int, ...] = ()
    not_tried: list[str] = field(default_factory=list)
    """Packages that cannot be installed, each with uv's reason."""
    reasons: dict[Applied, str] = field(default_factory=dict)
    """Why an environment could not be made."""

    def prepare(self, good: Side, bad: Side) -> None:
        """Find what can be changed, and which changes move together."""
        names = sorted({*good.pins, *bad.pins})
        pairs = {name: (good.pins.get(name), bad.pins.get(name)) for name in names}
        self._take(pairs)
        every = frozenset(range(len(self.changes)))
        ends = (frozenset[int](), every)
        if any(self.interpreter(end) is None for end in ends):
            self._take({name: self._installable(*pair) for name, pair in pairs.items()})
            every = frozenset(range(len(self.changes)))
            for end in (frozenset[int](), every):
                if self.interpreter(end) is None:
                    raise UsageError(f"uv cannot make the environments: {self.reasons[end]}")
        if not self.changes:
            listed = ", ".join(self.not_tried)
            raise UsageError(f"no package that differs can be installed: {listed}; see --index-url")
        self._group([self.site_of(end) for end in (frozenset[int](), every)])

    def interpreter(self, applied: Applied) -> Path | None:
        """Return the interpreter of an environment, which is made if needed; None if uv cannot."""
        place = self.place_of(applied)
        python, complete = place / "bin" / "python", place / "complete"
        if not complete.exists():
            self._clean()
            shutil.rmtree(place, ignore_errors=True)
            place.parent.mkdir(parents=True, exist_ok=True)
            base = [self.python] if self.python else []
            version = ["--python", *base] if base else []
            refusal = self._uv("venv", "--no-python-downloads", *version, str(place))
            if refusal is None:
                listed = place / "packages.txt"
                listed.write_text("".join(f"{line}\n" for line in self._lines(applied)))
                refusal = self._install("--python", str(python), "-r", str(listed))
            if refusal is not None:
                self.reasons[applied] = refusal
                return None
        complete.touch()
        return python

    def place_of(self, applied: Applied) -> Path:
        """Return the folder of an environment, named after its packages."""
        text = "\n".join([self.python, *self._lines(applied)])
        return self.folder / hashlib.sha256(text.encode()).hexdigest()[:12]

    def site_of(self, applied: Applied) -> Path:
        """Return the folder of an environment's packages."""
        return next(self.place_of(applied).glob("lib/python*/site-packages"))

    def _lines(self, applied: Applied) -> list[str]:
        chosen = (
            change.after if number in applied else change.before
            for number, change in enumerate(self.changes)
        )
        return sorted([*self.common, *(line for line in chosen if line is not None)])

    def _take(self, pairs: Mapping[str, tuple[str | None, str | None]]) -> None:
        self.common = tuple(one for one, other in pairs.values() if one == other and one)
        self.changes = tuple(
            PackageChange(name=name, before=before, after=after)
            for name, (before, after) in pairs.items()
            if before != after
        )
        self.groups = tuple(range(len(self.changes)))

    def _installable(self, *pair: str | None) -> tuple[str | None, str | None]:
        """Return both requirements of a package; of one that cannot be installed, the other."""
        probe = self.folder / "probe"
        can: dict[str | None, bool] = {None: True}
        for line in {*pair} - {None}:
            target = ("--python", self.python) if self.python.startswith("/") else ()
            refusal = self._install(*target, "--target", str(probe), str(line))
            can[line] = refusal is None
            if refusal is not None:
                self.not_tried.append(f"{line} ({refusal})")
            shutil.rmtree(probe, ignore_errors=True)
        usable = [line for line in pair if can[line]]
        before, after = pair if len(usable) == len(pair) else (usable or [None]) * 2
        return before, after

    def _install(self, *arguments: str) -> str | None:
        return self._uv("pip", "install", "--no-deps", *self.options, *arguments)

    def _uv(self, *arguments: str) -> str | None:
        """Run uv; return why it failed, or None."""
        command = [self.uv, *arguments, "-q"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        causes = [line for line in done.stderr.splitlines() if "hint" not in line]
        return last_line("\n".join(causes)) if done.returncode else None

    def _clean(self) -> None:
        made = [*self.folder.glob("*/complete")]
        for old in sorted(made, key=lambda file: file.stat().st_mtime)[: 1 - _KEPT]:
            shutil.rmtree(old.parent, ignore_errors=True)

    def _group(self, sites: Iterable[Path]) -> None:
        """Put changes next to each other of which one pins another one."""
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


def _version(name: str, line: str | None) -> str:
    if line is None:
        return "none"
    return re.sub(r"^.*?(===?|@) *", "", line) if re.search("==|@", line) else line
