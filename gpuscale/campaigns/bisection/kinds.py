"""Kinds of differences between two environments, and environments with some of the changes."""

import hashlib
import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from gpuscale.base.errors import GpuscaleError, UsageError
from gpuscale.base.text import visible
from gpuscale.records.environment_diff import listed

Applied = frozenset[int]
"""Indices of the changes that an environment applies to the good environment."""


class EnvironmentBuildError(GpuscaleError):
    """Raised if the environment of a trial cannot be created; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between the good and the bad environment, which a trial may apply."""

    name: str
    text: str
    """Description of the change: `torch 2.14 → 2.15`."""
    remedy: str
    """Advice on how to undo or examine the change: `keep torch==2.14`, `git show 1a2b3c4`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Interpreter, working folder and environment variables for runs in a trial's environment."""

    variables: Mapping[str, str | None] = field(default_factory=dict)
    """Environment variables to set; a variable whose value is None is removed."""
    python: Path | None = None
    """Interpreter that trains cases; None for gpuscale's own."""
    folder: Path | None = None
    """Working folder; None for the current folder."""


@dataclass(slots=True, kw_only=True)
class Kind(ABC):
    """Base class for a kind of change, such as packages; makes environments with some changes."""

    noun: ClassVar[str]
    is_ordered: ClassVar[bool] = False
    """True if a change requires all earlier ones to be applied, as with commits."""
    changes: tuple[Change, ...] = ()
    groups: tuple[int, ...] = ()
    """Group number of each change; changes in the same group are applied together."""
    not_tried: list[str] = field(default_factory=list)
    """Differences between the environments that cannot be tried, described in words."""

    def take(self, changes: Iterable[Change]) -> None:
        """Store the changes, each in a group of its own."""
        self.changes = (*changes,)
        self.groups = (*range(len(self.changes)),)

    def prepare(self, folder: Path) -> None:  # noqa: B027 - variables need nothing
        """Prepare to create environments in `folder`; may drop changes that cannot be tried."""

    @abstractmethod
    def content(self, applied: Applied) -> object:
        """Return a value that identifies the environment with the given changes applied."""

    def name_of(self, applied: Applied) -> str:
        """Return a short hash as an environment's name; it is the same in every process."""
        return hashlib.sha256(repr(self.content(applied)).encode()).hexdigest()[:12]

    def words_of(self, applied: Applied) -> str:
        """Describe an environment by its changes: `good + torch, triton`, `up to 1a2b3c4`."""
        names = [self.changes[at].name for at in sorted(applied)]
        if len(names) in (0, len(self.changes)):
            return "bad" if names else "good"
        return f"up to {names[-1]}" if self.is_ordered else f"good + {listed(names, 3)}"

    @abstractmethod
    def setting(self, applied: Applied) -> Setting:
        """Create an environment if necessary, and return how to start runs in it.

        Raise an EnvironmentBuildError if the environment cannot be created.
        """


@dataclass(slots=True, kw_only=True)
class Variables(Kind):
    """Environment variables of both sides; variables that do not differ are set in every trial."""

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

    def content(self, applied: Applied) -> object:
        """Return the variables that an environment sets, which identify it."""
        return sorted(self.setting(applied).variables.items())

    def setting(self, applied: Applied) -> Setting:
        """Return the variables to set for runs in an environment."""
        values: dict[str, str | None] = {**self.good}
        for number, change in enumerate(self.changes):
            values[change.name] = (self.bad if number in applied else self.good).get(change.name)
        return Setting(variables=values)


@dataclass(slots=True, kw_only=True)
class Commits(Kind):
    """A range of git commits, following first parents.

    Commits are checked out from a clone that shares the repository's objects, so that a trial
    leaves nothing behind in the repository, even if the trial is killed.
    """

    noun = "commit"
    is_ordered = True
    repository: Path
    span: str
    """The range, `GOOD..BAD`, as the user wrote it."""
    _commits: list[str] = field(default_factory=list)
    """The good commit, followed by the commit of each change."""
    _top: Path = Path()
    _folder: Path = Path()

    def __post_init__(self) -> None:
        good, dots, bad = self.span.partition("..")
        if not (good and dots and bad) or bad.startswith("."):
            raise UsageError(f"--git: '{visible(self.span)}' is no range; write GOOD..BAD")
        self._top = Path(self._git("rev-parse", "--show-toplevel"))
        first, last = (
            self._git("rev-parse", "--verify", f"{end}^{{commit}}") for end in (good, bad)
        )
        if first == last or self._git("merge-base", first, last) != first:
            raise UsageError(f"--git: {visible(good)} is not an earlier commit of {visible(bad)}")
        listed = ("log", "--first-parent", "--reverse", "--format=%H%x09%h%x09%s")
        lines = self._git(*listed, f"{first}..{last}").splitlines()
        found = [line.split("\t", 2) for line in lines]
        self._commits = [first, *(commit for commit, _, _ in found)]
        self.take(
            Change(name=short, text=visible(f"{short} {subject}"), remedy=f"git show {short}")
            for _, short, subject in found
        )

    def prepare(self, folder: Path) -> None:
        """Clone the repository without a work tree."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        clone = folder / "repository"
        shutil.rmtree(clone, ignore_errors=True)
        self._git("clone", "-q", "--shared", "--no-checkout", str(self._top), str(clone))

    def content(self, applied: Applied) -> str:
        """Return the hash of the last commit applied."""
        return self._commits[len(applied)]

    def setting(self, applied: Applied) -> Setting:
        """Check out the last commit applied, unless its folder exists; return the folder to use."""
        place = self._folder / self.name_of(applied)
        if not (place / ".git").exists():
            clone = ("-C", str(self._folder / "repository"), "worktree", "add", "-f", "--detach")
            try:
                self._git(*clone, str(place), self.content(applied))
            except UsageError as error:
                shutil.rmtree(place, ignore_errors=True)
                raise EnvironmentBuildError(str(error)) from None
        # Use the folder that corresponds to the user's current folder in the repository.
        here = Path.cwd()
        inner = here.relative_to(self._top) if here.is_relative_to(self._top) else Path()
        folder = place / inner
        return Setting(folder=folder if folder.is_dir() else place)

    def _git(self, *words: str) -> str:
        command = ["git", "-C", os.fspath(self.repository), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        except OSError as error:
            raise UsageError(f"git does not start: {error.strerror}; install it") from None
        except subprocess.CalledProcessError as error:
            raise UsageError(f"--git: {last_line(error.stderr)}; write REPO GOOD..BAD") from None
        return done.stdout.strip()


def last_line(text: str) -> str:
    """Return the last line that is not blank, cut to 200 characters."""
    return visible((text.strip() or "it said nothing").splitlines()[-1].strip()[:200])
