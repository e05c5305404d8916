"""Differences between two environments, and measurement with a subset of them applied."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from gpuscale.base.errors import FileError, GpuscaleError, UsageError
from gpuscale.base.process_ends import signal_at_parent_death
from gpuscale.base.text import visible
from gpuscale.campaigns.bisection.decision import Applied, OutOfBudgetError
from gpuscale.records import Environment, Run
from gpuscale.records.environment_diff import listed
from gpuscale.store.files import file_errors
from gpuscale.store.results import read_results


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
    """Base class for one kind of change, such as packages; creates environments that apply some."""

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


def last_line(text: str) -> str:
    """Return the last line that is not blank, cut to 200 characters."""
    return visible((text.strip() or "it said nothing").splitlines()[-1].strip()[:200])


@dataclass(slots=True, kw_only=True)
class TrialRunner:
    """Executes runs in the environments of trials, and keeps each run as a results file.

    Valid runs that a killed bisection left in the folder are read instead of repeated.
    Failed runs are repeated, since the reason for the failure may be gone.
    """

    kind: Kind
    folder: Path
    scratch: Path
    """Folder for temporary files of the runs, which a killed torchrun does not remove itself."""
    measured: Sequence[str]
    """The test file to measure, or the words of the command to measure."""
    is_command: bool
    options: Sequence[str]
    end_s: float
    """Time on the monotonic clock, in seconds, after which no run is started."""
    made_s: float = 0.0
    """Time that this process has spent on runs, in seconds."""
    environment: Environment | None = None
    """The machine and software of the latest run."""
    failure: str = ""
    """Reason why the latest failed run has no step time."""
    _counts: Counter[str] = field(default_factory=Counter)

    def make_run(self, applied: Applied) -> float | None:
        """Execute a run in an environment, or read its stored result; return the log step time.

        Return None if the run failed; raise OutOfBudgetError if it is too late to start a run.
        """
        name = self.kind.name_of(applied)
        self._counts[name] += 1
        path = self.folder / "runs" / name / f"{self._counts[name]}.jsonl"
        log_s = self._read(path)
        if log_s is None:
            if time.monotonic() > self.end_s:
                raise OutOfBudgetError("time")
            started_s = time.monotonic()
            with file_errors(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                self._measure(applied, path)
                self.made_s += time.monotonic() - started_s
                log_s = self._read(path)
                if log_s is None:
                    # A full disk, which would look like a broken environment, raises an error here.
                    probe = path.with_suffix(".probe")
                    probe.write_bytes(bytes(2**16))
                    probe.unlink()
        return log_s

    def _measure(self, applied: Applied, path: Path) -> None:
        log = path.with_suffix(".log")
        try:
            setting = self.kind.setting(applied)
        except EnvironmentBuildError as error:
            log.write_text(str(error))
            return
        variables = {**os.environ, "TMPDIR": os.fspath(self.scratch)}
        for name, value in setting.variables.items():
            variables.pop(name, None)
            if value is not None:
                variables[name] = value
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command(setting, path),
                env=variables,
                cwd=setting.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # The pytest session must end if this process dies.
                preexec_fn=lambda: signal_at_parent_death(signal.SIGTERM),
            )
            try:
                process.wait()
            finally:
                process.terminate()
                process.wait()

    def _command(self, setting: Setting, path: Path) -> list[str]:
        words = ["--runs", "1", "--results", str(path.absolute()), *self.options]
        if self.is_command:
            return [sys.executable, "-m", "gpuscale", "run", *words, "--", *self.measured]
        cases = ["-p", "gpuscale.plugin", "-p", "no:cacheprovider", *self.measured]
        return [str(setting.python or sys.executable), "-m", "pytest", *cases, *words]

    def _read(self, path: Path) -> float | None:
        log = path.with_suffix(".log")
        runs: Sequence[Run] = ()
        with suppress(FileError):
            results = read_results(path)
            runs, self.environment = results.runs, results.environment
        if not runs:
            self.failure = last_line(log.read_text(errors="replace")) if log.exists() else ""
            return None
        if len(runs) != 1:
            labels = ", ".join(sorted({run.label for run in runs}))
            remedy = "name one test as FILE.py::test, one --strategy and one number of --gpus"
            raise UsageError(f"a run measured {labels}; a bisection has one row: {remedy}")
        if (failure := runs[0].failure) is not None:
            self.failure = failure.message.splitlines()[0]
            if failure.detail:
                self.failure = f"{self.failure.partition(';')[0]}: {last_line(failure.detail)}"
        return runs[0].log_cost if runs[0].is_valid else None
