"""The commits between a good and a bad one, each checked out into a folder of its own."""

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from gpuscale.base.errors import UsageError
from gpuscale.base.printable import visible
from gpuscale.campaigns.bisection.decision import Applied
from gpuscale.campaigns.bisection.kind import CannotBeMadeError, Change, Kind, Setting, last_line


@dataclass(slots=True, kw_only=True)
class Commits(Kind):
    """A range of commits along first parents.

    They are checked out from a clone that shares the repository's objects, so that neither a trial
    nor a kill leaves anything in the repository.
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
        listed = ("rev-list", "--first-parent", "--reverse", f"{first}..{last}")
        self._commits = [first, *self._git(*listed).split()]
        if len(self._commits) == 1 or self._git("merge-base", first, last) != first:
            raise UsageError(f"--git: {visible(good)} is not an earlier commit of {visible(bad)}")

    def identity(self) -> object:
        """Return the repository and its commits."""
        return str(self._top), self._commits

    def prepare(self, folder: Path) -> None:
        """Clone the repository without a work tree, and read the subjects of the commits."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        clone = folder / "repository"
        shutil.rmtree(clone, ignore_errors=True)
        self._git("clone", "-q", "--shared", "--no-checkout", str(self._top), str(clone))
        format_of = ("log", "--no-walk=unsorted", "--format=%h%x09%s")
        lines = self._git(*format_of, *self._commits[1:]).splitlines()
        self.take(
            Change(name=short, text=visible(f"{short} {subject}"), remedy=f"git show {short}")
            for short, _, subject in (line.partition("\t") for line in lines)
        )

    def content(self, applied: Applied) -> str:
        """Return the hash of the last commit applied."""
        return self._commits[len(applied)]

    def setting(self, applied: Applied) -> Setting:
        """Return the setting for the last commit applied; check it out unless its folder exists."""
        place = self._folder / self.name_of(applied)
        if not (place / ".git").exists():
            clone = ("-C", str(self._folder / "repository"), "worktree", "add", "-f", "--detach")
            try:
                self._git(*clone, str(place), self.content(applied))
            except UsageError as error:
                shutil.rmtree(place, ignore_errors=True)
                raise CannotBeMadeError(str(error)) from None
        # The same part of the repository as that in which the user stands.
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
