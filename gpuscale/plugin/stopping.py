"""The rules by which an item has runs enough (intervals, a verdict), and a session's exit code."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuscale.analysis.scaling import References, scaling_points
from gpuscale.base.errors import ExitCode
from gpuscale.base.units import counted
from gpuscale.judge.compare.while_measuring import SequentialPlan, Step, next_step
from gpuscale.judge.recording import as_baseline
from gpuscale.plugin.options import MeasureOptions
from gpuscale.records import (
    Baseline,
    Comparison,
    Configuration,
    Estimate,
    PointKey,
    Results,
    Run,
    RunRequest,
    ScalingPoint,
)
from gpuscale.store import read_any


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingRule:
    """Runs go on until their intervals are narrow: `--runs MIN:MAX --target-ci`."""

    minimum_runs: int
    """Valid runs before the intervals are looked at."""
    target: float
    """Half of a 95% interval, relative to its value, that is narrow enough."""
    gpus: tuple[int, ...]
    """Of what is being measured: only their speedups hold up T(1)."""

    @classmethod
    def of(cls, options: MeasureOptions) -> "StoppingRule | None":
        """The rule that was asked for; None where a baseline decides, or all runs are made."""
        fewest, _ = options.bounds_of_runs
        if options.baseline is not None or fewest is None:
            return None
        return cls(minimum_runs=fewest, target=options.target_ci or 0.01, gpus=options.gpus)

    def reason_to_leave_out(self, request: RunRequest, results: Results) -> str | None:
        """The reason why a run would tell nothing more; None where it is needed."""
        count = self.settled_after(PointKey.of(request), results.runs)
        return None if count is None else f"settled after {counted(count, 'run')}"

    def settled_after(self, key: PointKey, runs: Sequence[Run]) -> int | None:
        """The valid runs of a point that is known well enough; None where runs must go on.

        A point on n GPUs is settled when T(n) and S(n) are; that on 1 GPU when T(1) is and every
        S(n) over it that has a value. The runs are all so far, of other points too.
        """
        points = {point.point_key: point for point in scaling_points(runs)}
        point = points.get(key)
        if point is None or not self._is_known(point):
            return None
        ones = References(key for key, its in points.items() if its.step_time_s is not None)
        speedups = [
            its.speedup
            for other, its in points.items()
            if other.gpus in self.gpus and other.gpus > 1 and ones.of(other) == key
        ]
        return point.valid_runs if self._are_narrow(*speedups) else None

    def unsettled_points(self, runs: Sequence[Run]) -> tuple[ScalingPoint, ...]:
        """The points with a valid run whose own T or S is not known well enough."""
        return tuple(
            point
            for point in scaling_points(runs)
            if point.valid_runs and point.key.gpus in self.gpus and not self._is_known(point)
        )

    def _is_known(self, point: ScalingPoint) -> bool:
        estimates = (point.step_time_s, None if point.key.gpus == 1 else point.speedup)
        return point.valid_runs >= self.minimum_runs and self._are_narrow(*estimates)

    def _are_narrow(self, *estimates: Estimate | None) -> bool:
        """True where the intervals of all that are known are within the target."""
        return all(
            known.low is not None
            and known.high is not None
            and (known.high - known.low) / 2 / known.value <= self.target
            for known in estimates
            if known is not None
        )


@dataclass(slots=True, kw_only=True)
class BaselineJudge:
    """Runs go on until the verdict is decided: `--baseline FILE`."""

    path: Path
    baseline: Baseline
    plan: SequentialPlan
    gpus: tuple[int, ...]
    cases: Collection[str] | None = None
    """Each as `mnist_cnn/ddp`; the others are not measured, and so not judged."""
    configurations: Collection[Configuration] | None = None
    """In which they are measured, as far as they can be."""
    _judged: tuple[int, Step] | None = None
    """The number of runs, and the verdict after them."""

    @classmethod
    def of(cls, options: MeasureOptions) -> "BaselineJudge | None":
        """The judge by the baseline that was asked for; None without one."""
        fewest, most = options.bounds_of_runs
        if options.baseline is None or fewest is None:
            return None
        return cls(
            path=options.baseline,
            baseline=as_baseline(read_any(options.baseline), options.baseline.stem),
            plan=SequentialPlan(fewest_runs=fewest, most_runs=most),
            gpus=options.gpus,
        )

    def reason_to_leave_out(self, request: RunRequest, results: Results) -> str | None:
        """The reason why a run would tell nothing more; None where it is needed."""
        if request.index <= self.plan.fewest_runs:
            return None
        step = self.step_after(results)
        wanted = (request.key, request.configuration)
        if wanted in step.needs_runs:
            return None
        for row in step.entries:
            if (row.entry.key, row.entry.configuration) == wanted:
                count = row.analysed_after
                after = "" if count is None else f" after {counted(count, 'run')}"
                return f"{row.entry.verdict.value}{after}"
        return None

    def comparison(self, results: Results) -> Comparison:
        """The verdict on everything that the session measured."""
        return self.step_after(results).comparison

    def step_after(self, results: Results) -> Step:
        """The verdict on everything that the session measured."""
        # Judging analyses every run again, and pytest asks before each item.
        if self._judged is None or self._judged[0] != len(results.runs):
            step = next_step(
                self.baseline,
                [results],
                self.plan,
                cases=self.cases,
                gpus=self.gpus,
                configurations=self.configurations,
            )
            self._judged = len(results.runs), step
        return self._judged[1]


def status_of_verdict(
    given: int, *, failed_tests: bool, failed_runs: bool, comparison: Comparison | None
) -> int:
    """The verdict's exit code, unless pytest's own says more; a failed run leaves no pass."""
    codes = pytest.ExitCode
    replaced = (codes.OK, codes.TESTS_FAILED, codes.NO_TESTS_COLLECTED)
    if given not in replaced or failed_tests:
        return given
    if comparison is None:
        return ExitCode.NOTHING_COMPARABLE
    if failed_runs and comparison.exit_code is ExitCode.OK:
        return ExitCode.INCONCLUSIVE
    return comparison.exit_code


def status_without_verdict(given: int, runs: Sequence[Run], *, needless: bool) -> int:
    """Pytest's own exit code, but never 0 where runs were to be made and gave no number."""
    if given != pytest.ExitCode.OK or any(run.is_valid for run in runs):
        return given
    if runs:
        return pytest.ExitCode.TESTS_FAILED
    return given if needless else pytest.ExitCode.NO_TESTS_COLLECTED
