"""Rules for when a row has enough runs: its intervals are narrow, or its verdict is decided."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpuscale.analysis.scaling import References, scaling_points
from gpuscale.base.units import counted
from gpuscale.judge.compare.while_measuring import SequentialPlan, SessionVerdict, judge_session
from gpuscale.records import (
    Baseline,
    Configuration,
    Estimate,
    PointKey,
    Results,
    Run,
    RunRequest,
    ScalingPoint,
)
from gpuscale.records.verdict import BaselineKind


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowIntervals:
    """Stop once the confidence intervals of step time and speedup are narrow enough."""

    minimum_runs: int
    """Number of valid runs that a point needs before its intervals are considered."""
    target: float
    """A 95% interval is narrow if its half-width, relative to the estimate, is at most this."""
    gpus: tuple[int, ...]
    """Numbers of GPUs to measure; 1 GPU is measured until the speedups on all are settled."""

    def reason_to_leave_out(self, request: RunRequest, results: Results) -> str | None:
        """Return the reason why a requested run is unnecessary; None if the run is needed."""
        count = self.settled_after(PointKey.of(request), results.runs)
        return None if count is None else f"settled after {counted(count, 'run')}"

    def settled_after(self, key: PointKey, runs: Sequence[Run]) -> int | None:
        """Return the number of valid runs of a settled point; None if the point needs more runs.

        A point on n GPUs is settled when T(n) and S(n) have narrow intervals; the point on 1 GPU,
        when T(1) and every S(n) relative to it do. `runs` are the runs of all points so far.
        """
        points = {point.point_key: point for point in scaling_points(runs)}
        point = points.get(key)
        if point is None or not self._is_known(point):
            return None
        ones = References(key for key, other in points.items() if other.judged is not None)
        speedups = [
            at_n.speedup
            for other, at_n in points.items()
            if other.gpus in self.gpus and other.gpus > 1 and ones.of(other) == key
        ]
        return point.valid_runs if self._are_narrow(*speedups) else None

    def unsettled_points(self, runs: Sequence[Run]) -> tuple[ScalingPoint, ...]:
        """Return the measured points whose step time or speedup is still too uncertain."""
        return tuple(
            point
            for point in scaling_points(runs)
            if point.valid_runs and point.gpus in self.gpus and not self._is_known(point)
        )

    def _is_known(self, point: ScalingPoint) -> bool:
        estimates = (point.judged, None if point.gpus == 1 else point.speedup)
        return point.valid_runs >= self.minimum_runs and self._are_narrow(*estimates)

    def _are_narrow(self, *estimates: Estimate | None) -> bool:
        return all(
            known.low is not None
            and known.high is not None
            and (known.high - known.low) / 2 / known.value <= self.target
            for known in estimates
            if known is not None
        )


@dataclass(slots=True, kw_only=True)
class DecidedVerdict:
    """Stop once the verdict against a baseline is decided."""

    baseline: Baseline
    plan: SequentialPlan
    gpus: tuple[int, ...]
    baseline_kind: BaselineKind = "baseline"
    cases: Collection[str] | None = None
    """Cases that are measured, such as `mnist_cnn/ddp`; only these are judged. None means all."""
    configurations: Collection[Configuration] | None = None
    """Configurations that are measured; None means all."""
    _judged: tuple[int, SessionVerdict] | None = None
    """Number of runs judged last, and the verdict on them (a cache)."""

    def reason_to_leave_out(self, request: RunRequest, results: Results) -> str | None:
        """Return the reason why a requested run is unnecessary; None if the run is needed."""
        if request.index <= self.plan.fewest_runs:
            return None
        verdict = self.verdict_after(results)
        wanted = (request.key, request.configuration)
        if wanted in verdict.needs_runs:
            return None
        for row in verdict.entries:
            if (row.entry.key, row.entry.configuration) == wanted:
                count = row.analysed_after
                after = "" if count is None else f" after {counted(count, 'run')}"
                return f"{row.entry.verdict.value}{after}"
        return None

    def verdict_after(self, results: Results) -> SessionVerdict:
        """Return the verdict on all runs so far, with the rows that need more runs."""
        # A judgement analyses all runs again, and is requested before each run.
        if self._judged is None or self._judged[0] != len(results.runs):
            verdict = judge_session(
                self.baseline,
                [results],
                self.plan,
                cases=self.cases,
                gpus=self.gpus,
                configurations=self.configurations,
            )
            self._judged = len(results.runs), verdict
        return self._judged[1]


StoppingRule = NarrowIntervals | DecidedVerdict
