"""The rules by which a row has enough runs: its intervals are narrow, or its verdict is decided."""

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
    """Runs go on until the intervals of T and S are narrow enough."""

    minimum_runs: int
    """Valid runs of a point before its intervals count."""
    target: float
    """Half of a 95% interval, relative to its value, that is narrow enough."""
    gpus: tuple[int, ...]
    """The numbers of GPUs that are measured: only their speedups hold up T(1)."""

    def reason_to_leave_out(self, request: RunRequest, results: Results) -> str | None:
        """The reason why a run would add nothing; None if it is needed."""
        count = self.settled_after(PointKey.of(request), results.runs)
        return None if count is None else f"settled after {counted(count, 'run')}"

    def settled_after(self, key: PointKey, runs: Sequence[Run]) -> int | None:
        """The valid runs of a point that is known well enough; None if it needs more.

        A point on n GPUs is settled when T(n) and S(n) are; that on 1 GPU when T(1) is and every
        known S(n) over it. `runs` are those of all points so far.
        """
        points = {point.point_key: point for point in scaling_points(runs)}
        point = points.get(key)
        if point is None or not self._is_known(point):
            return None
        ones = References(key for key, other in points.items() if other.step_time_s is not None)
        speedups = [
            at_n.speedup
            for other, at_n in points.items()
            if other.gpus in self.gpus and other.gpus > 1 and ones.of(other) == key
        ]
        return point.valid_runs if self._are_narrow(*speedups) else None

    def unsettled_points(self, runs: Sequence[Run]) -> tuple[ScalingPoint, ...]:
        """The points with a valid run whose own T or S is not known well enough."""
        return tuple(
            point
            for point in scaling_points(runs)
            if point.valid_runs and point.gpus in self.gpus and not self._is_known(point)
        )

    def _is_known(self, point: ScalingPoint) -> bool:
        estimates = (point.step_time_s, None if point.gpus == 1 else point.speedup)
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
    """Runs go on until the verdict against a baseline is decided."""

    baseline: Baseline
    plan: SequentialPlan
    gpus: tuple[int, ...]
    baseline_kind: BaselineKind = "baseline"
    cases: Collection[str] | None = None
    """The measured cases, each as `mnist_cnn/ddp`; no others are judged. None is all."""
    configurations: Collection[Configuration] | None = None
    """The measured configurations; None is all."""
    _judged: tuple[int, SessionVerdict] | None = None
    """The number of runs at the last verdict, and that verdict."""

    def reason_to_leave_out(self, request: RunRequest, results: Results) -> str | None:
        """The reason why a run would add nothing; None if it is needed."""
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
        """The verdict on everything that was measured so far, and what it still needs."""
        # Judging analyses every run again, and is asked for before each run.
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
