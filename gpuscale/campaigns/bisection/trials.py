"""Trials, which run environments in turn until a sequential test has compared their speeds."""

import itertools
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from gpuscale.analysis.estimates import Difference, Term
from gpuscale.base.errors import FileError, UsageError
from gpuscale.base.process_ends import signal_at_parent_death
from gpuscale.campaigns.bisection.kinds import (
    Applied,
    EnvironmentBuildError,
    Kind,
    Setting,
    last_line,
)
from gpuscale.judge.compare.verdict import ErrorRates
from gpuscale.judge.stopping import SequentialPlan
from gpuscale.records import Environment, Estimate, Run
from gpuscale.store.files import file_errors
from gpuscale.store.results import read_results

MakeRun = Callable[[Applied], float | None]
"""Function that executes a run in an environment; returns the log step time, None on failure."""

_PRIOR_DF = 6.0
"""Maximum weight, in degrees of freedom, of the noise estimated from earlier trials."""
_ATTEMPTS = 2
"""Number of successive failed runs after which an environment counts as broken."""


class OutOfBudgetError(Exception):
    """Raised if no further run may start because the budget of trials or of time is spent."""

    def __init__(self, budget: Literal["trials", "time"]) -> None:
        super().__init__(budget)
        self.budget = budget


class TrialAnswer(StrEnum):
    """Answer of a trial, which measures two environments in turn: is the second one slower?"""

    SLOWER = "slower"
    LIKE = "not slower"
    OPEN = "undecided"


class SpeedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Difference in log step time between successive environments of a trial, with a verdict."""

    answer: TrialAnswer
    difference: Difference

    @property
    def speed(self) -> Estimate:
        """Relative speed change from one environment to the next; 0.02 means 2% faster."""
        return (-self.difference).relative_change()


class TrialLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds that decide if an environment is slower, as differences in log step time."""

    slower: float
    """An environment is slower if its slowdown is significantly above this."""
    like: float
    """An environment is as fast as its predecessor if its slowdown is significantly below this."""


@dataclass(slots=True, kw_only=True)
class TrialRunner:
    """Executes runs in the environments of trials, and keeps each run as a results file.

    Valid runs that an earlier, killed bisection left in the folder are used instead of new ones.
    """

    kind: Kind
    folder: Path
    scratch: Path
    """Folder for temporary files of the runs, which a killed torchrun does not remove itself."""
    measured: Sequence[str]
    is_command: bool
    options: Sequence[str]
    end_s: float
    """Time on the monotonic clock, in seconds, after which no run is started."""
    environment: Environment | None = None
    """The machine and software of the latest run."""
    failure: str = ""
    """Reason why the latest failed run has no step time."""
    _counts: Counter[str] = field(default_factory=Counter)

    def make_run(self, applied: Applied) -> float | None:
        """Execute or reuse an environment's next run; return its log step time, None on failure."""
        name = self.kind.name_of(applied)
        self._counts[name] += 1
        path = self.folder / "runs" / name / f"{self._counts[name]}.jsonl"
        run = self._read(path)
        if run is None:
            if time.monotonic() > self.end_s:
                raise OutOfBudgetError("time")
            with file_errors(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                self._measure(applied, path)
                run = self._read(path)
                if run is None:
                    # A full disk, which would look like a broken environment, raises an error here.
                    probe = path.with_suffix(".probe")
                    probe.write_bytes(bytes(2**16))
                    probe.unlink()
        return None if run is None else run.log_cost

    def _measure(self, applied: Applied, path: Path) -> None:
        log = path.with_suffix(".log")
        try:
            setting = self.kind.setting(applied)
        except EnvironmentBuildError as error:
            log.write_text(str(error))
            return
        given = {**os.environ, "TMPDIR": os.fspath(self.scratch), **setting.variables}
        variables = {name: value for name, value in given.items() if value is not None}
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

    def _read(self, path: Path) -> Run | None:
        """Return the valid run in a results file; if it has none, set `failure` and return None."""
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
        return runs[0] if runs[0].is_valid else None


@dataclass(slots=True)
class AlternatingTrials:
    """Compares environments by running them in turn until a sequential test ends the trial."""

    make_run: MakeRun
    plan: SequentialPlan
    broken: set[Applied] = field(default_factory=set)
    """Environments that are not tried again, since `_ATTEMPTS` successive runs failed."""
    _squares: float = 0.0
    _df: int = 0
    """Degrees of freedom of `_squares`, the residual sum of squares of all trials so far."""

    def compare(
        self, sides: Sequence[Applied], limits: TrialLimits, patience: int = 1
    ) -> list[SpeedDifference] | None:
        """Compare each environment in `sides` with the one before it; None if any fails to run.

        `patience` multiplies the maximum number of runs per environment.
        """
        rounds: list[list[float]] = []
        most = patience * self.plan.most_runs
        rates = replace(self.plan, most_runs=most).rates()
        for count in range(1, most + 1):
            # Every other round is backwards, to cancel drift.
            if (made := self._round(sides, backwards=count % 2 == 0)) is None:
                return None
            rounds.append(made)
            if count < self.plan.fewest_runs:
                continue
            steps = [_decided(each, limits, rates) for each in self._differences(rounds)]
            if all(step.answer is not TrialAnswer.OPEN for step in steps):
                break
        squares, df = _residuals(rounds)
        self._squares, self._df = self._squares + squares, self._df + df
        return steps

    def _round(self, sides: Sequence[Applied], *, backwards: bool) -> list[float] | None:
        """Run all sides, last first if `backwards`; return log step times, None if any fails."""
        made: list[float] = []
        for side in sides[::-1] if backwards else sides:
            if side in self.broken:
                return None
            # The first attempt that succeeds counts.
            logs = (self.make_run(side) for _ in range(_ATTEMPTS))
            log_s = next((log_s for log_s in logs if log_s is not None), None)
            if log_s is None:
                self.broken.add(side)
                return None
            made.append(log_s)
        return made[::-1] if backwards else made

    def _differences(self, rounds: Sequence[Sequence[float]]) -> list[Difference]:
        """Estimate differences between successive environments; pool the noise of all trials."""
        squares, df = _residuals(rounds)
        total: float = df
        if self._df:
            weight = min(_PRIOR_DF, self._df)
            squares, total = squares + weight * self._squares / self._df, df + weight
        part = Term(variance=2 * squares / total / len(rounds), df=total)
        means = [statistics.fmean(side) for side in zip(*rounds, strict=True)]
        return [
            Difference(value=after - before, parts=(part,))
            for before, after in itertools.pairwise(means)
        ]


def _residuals(rounds: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Fit round and environment means; return residual sum of squares and degrees of freedom."""
    sides = [statistics.fmean(side) for side in zip(*rounds, strict=True)]
    whole = statistics.fmean(sides)
    squares = math.fsum(
        (value - side - statistics.fmean(one) + whole) ** 2
        for one in rounds
        for value, side in zip(one, sides, strict=True)
    )
    return squares, (len(rounds) - 1) * (len(sides) - 1)


def _decided(difference: Difference, limits: TrialLimits, rates: ErrorRates) -> SpeedDifference:
    lower = difference.lower_bound(1 - rates.significance)
    half = difference.half_width((1 + rates.confidence) / 2)
    answer = TrialAnswer.OPEN
    if lower is not None and lower > limits.slower:
        answer = TrialAnswer.SLOWER
    elif half is not None and difference.value + half < limits.like:
        answer = TrialAnswer.LIKE
    return SpeedDifference(answer=answer, difference=difference)
