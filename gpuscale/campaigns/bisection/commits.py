"""Bisection over git commits: each commit that is tried gets a checkout in its own folder."""

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from gpuscale.base.errors import UsageError
from gpuscale.base.text import visible
from gpuscale.campaigns.bisection import kinds


@dataclass(slots=True, kw_only=True)
class Commits(kinds.Kind):
    """The commits of a range, as candidates of a bisection; only first parents are followed.

    Trials check them out from a clone, so that nothing is left behind in the user's repository.
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
        names = (f"{end}^{{commit}}" for end in (good, bad))
        first, last = (self._git("rev-parse", "--verify", name) for name in names)
        if first == last or self._git("merge-base", first, last) != first:
            raise UsageError(f"--git: {visible(good)} is not an earlier commit of {visible(bad)}")
        listed = ("log", "--first-parent", "--reverse", "--format=%H%x09%h%x09%s")
        lines = self._git(*listed, f"{first}..{last}").splitlines()
        found = [line.split("\t", 2) for line in lines]
        self._commits = [first, *(commit for commit, _, _ in found)]
        self.take(
            kinds.Change(name=short, text=visible(f"{short} {subject}"), remedy=f"git show {short}")
            for _, short, subject in found
        )

    def prepare(self, folder: Path) -> None:
        """Clone the repository into a subfolder of `folder`, without checking out any files."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        clone = folder / "repository"
        shutil.rmtree(clone, ignore_errors=True)
        self._git("clone", "-q", "--shared", "--no-checkout", str(self._top), str(clone))

    def _content(self, applied: kinds.Applied) -> str:
        return self._commits[len(applied)]

    def setting(self, applied: kinds.Applied) -> kinds.Setting:
        """Check out an environment's commit if not yet done; return a Setting for the checkout."""
        place = self._folder / self.name_of(applied)
        if not (place / ".git").exists():
            clone = ("-C", str(self._folder / "repository"), "worktree", "add", "-f", "--detach")
            try:
                self._git(*clone, str(place), self._content(applied))
            except UsageError as error:
                shutil.rmtree(place, ignore_errors=True)
                raise kinds.EnvironmentBuildError(str(error)) from None
        # Use the folder that corresponds to the user's current folder in the repository.
        here = Path.cwd()
        folder = place / here.relative_to(self._top) if here.is_relative_to(self._top) else place
        return kinds.Setting(folder=folder if folder.is_dir() else place)

    def _git(self, *words: str) -> str:
        command = ["git", "-C", os.fspath(self.repository), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        except OSError as error:
            raise UsageError(f"git does not start: {error.strerror}; install it") from None
        except subprocess.CalledProcessError as error:
            raise UsageError(
                f"--git: {kinds.last_line(error.stderr)}; write REPO GOOD..BAD"
            ) from None
        return done.stdout.strip()
