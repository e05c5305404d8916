"""Project step time, speedup and efficiency, with a band, to numbers of GPUs not measured.

Two laws are fitted to the ratio of step time to ideal step time, and the projection is the
geometric mean of both. The power law uses the three largest numbers of GPUs. The other law adds up
the parts of the efficiency budget: exposed communication takes as long as a ring all-reduce, a (n -
1)/n + b (n - 1) seconds; skew, data and the rest stay constant relative to the ideal step. The
power law predicts too long a step if communication levels off, the sum of parts too short a step if
communication grows.

Three things widen the band: the difference between the two laws; the error of the same method when
each measured number of GPUs is projected from the smaller ones; and the interval of the point with
the most GPUs. A projection is never judged.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import NamedTuple

from gpuscale.analysis.budget import budgets_of
from gpuscale.analysis.scaling import grouped
from gpuscale.analysis.statistics.estimates import (
    CONFIDENCE,
    Term,
    difference_of_levels,
    exponential,
)
from gpuscale.records import Configuration, Estimate, Run, ScalingPoint
from gpuscale.records.configuration import ScalingMode

FEWEST_NUMBERS = 3
_FITTED = 3
"""The power law is fitted to this many points, those on the most GPUs."""
_USUAL_ERROR = 0.024
"""Median relative error of projections to twice as many GPUs, over 62 published tables. Student's t
with one degree of freedom then puts 9 of 10 errors within 15%; in the tables it was 14%."""
_USUAL_DF = 1
_SINGULAR = 1e-9
_ONE_SIDED = (1 + CONFIDENCE) / 2


class LeftOut(NamedTuple):
    """A check of the method: a measured number of GPUs, projected from the smaller ones."""

    gpus: int
    fitted: tuple[int, ...]
    error: float
    """Relative error of the projected step time; 0.02 means 2% too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A scaling curve projected to numbers of GPUs that were not measured."""

    configuration: Configuration
    scaling: ScalingMode
    """Weak or strong scaling, derived from the measured batches."""
    measured: tuple[int, ...]
    """Measured numbers of GPUs."""
    on_one_node: bool
    """True if all measurements ran on one node, so the speed of links between nodes is unknown."""
    left_out: tuple[LeftOut, ...]
    points: tuple[ScalingPoint, ...]
    """Projected points with 95% bands. If the curve was measured on several nodes, each node is
    assumed to use as many GPUs as in the measured point with the most GPUs."""


class NotProjected(NamedTuple):
    """A configuration that cannot be projected, with the reason and a remedy."""

    configuration: Configuration
    reason: str


def projections(runs: Sequence[Run], gpus: Sequence[int]) -> list[Projection | NotProjected]:
    """Project each configuration to the given numbers of GPUs on which it was not measured."""
    exposed: dict[Configuration, dict[int, float]] = defaultdict(dict)
    entries = grouped(runs)
    for budget in budgets_of(entries):
        if "communication" in budget.parts:
            over_ideal = budget.parts["communication"] / budget.efficiency
            exposed[budget.configuration][budget.key.gpus] = over_ideal
    curves: dict[Configuration, list[ScalingPoint]] = {}
    for point in (entry.point for entry in entries):
        curves.setdefault(point.configuration, [])
        if point.step_time_s is not None:
            curves[point.configuration].append(point)
    found: list[Projection | NotProjected] = []
    for configuration, points in curves.items():
        try:
            if configuration.ranks_per_gpu is not None:
                raise _RefusedError("its ranks share a GPU; measure with a GPU for each")
            found.append(_projection(_curve(points, exposed[configuration]), gpus))
        except _RefusedError as refused:
            found.append(NotProjected(configuration, str(refused)))
    return found


class _RefusedError(Exception):
    """Raised with the reason why a curve cannot be projected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """A measured scaling curve in ascending order of GPUs, beginning with one GPU."""

    points: Sequence[ScalingPoint]
    scaling: ScalingMode
    logs: Mapping[int, float]
    """Logarithm of the ratio of step time to ideal step time, by number of GPUs."""
    communication: Mapping[int, float]
    """Ratio of exposed communication to ideal step time, by number of GPUs; if communication was
    not measured, all overhead counts as communication."""

    def share(self, gpus: int) -> float:
        """Return the ideal step time as a fraction of the step time on 1 GPU."""
        return 1 / gpus if self.scaling == "strong" else 1.0

    def first(self, count: int) -> "_Curve":
        """Return the curve restricted to its `count` smallest numbers of GPUs."""
        return replace(self, logs=dict([*self.logs.items()][:count]))


def _curve(points: Sequence[ScalingPoint], exposed: Mapping[int, float]) -> _Curve:
    gpus = [point.key.gpus for point in points]
    if len(set(gpus)) < len(gpus):
        raise _RefusedError(
            "it was measured with several batches or sample shapes; project files of one each"
        )
    if len(gpus) < FEWEST_NUMBERS or gpus[0] != 1:
        known = f"measured on {', '.join(map(str, gpus))} only" if gpus else "no run gave a time"
        raise _RefusedError(
            f"{known}; a projection needs {FEWEST_NUMBERS} numbers of GPUs, 1 among them: measure "
            "with --gpus 1,2,4"
        )
    if len({point.batch_per_gpu for point in points}) == 1:
        scaling: ScalingMode = "weak"
    elif len({point.point_key.global_batch for point in points}) == 1:
        scaling = "strong"
    else:
        raise _RefusedError(
            "its batch is the same neither per GPU nor over all; measure with one batch"
        )
    # Every point with a step time has an efficiency, since T(1) is known.
    logs = {p.key.gpus: -math.log(p.efficiency.value) for p in points if p.efficiency is not None}
    is_measured = all(n in exposed for n in gpus if n > 1)
    communication = {n: exposed.get(n, 0.0) if is_measured else math.expm1(logs[n]) for n in logs}
    return _Curve(points=points, scaling=scaling, logs=logs, communication=communication)


def _projection(curve: _Curve, gpus: Sequence[int]) -> Projection:
    points, numbers = curve.points, tuple(curve.logs)
    asked = sorted(set(gpus) - set(numbers))
    if not asked:
        raise _RefusedError("it was measured on these; ask for other numbers of GPUs")
    whole = points[0].point_key.global_batch
    if uneven := [n for n in asked if curve.scaling == "strong" and whole % n]:
        raise _RefusedError(
            f"its batch of {whole} cannot be divided among {uneven[0]} GPUs; ask for a divisor"
        )
    left_out = [_left_out(curve, count) for count in range(2, len(numbers))]
    return Projection(
        configuration=points[0].configuration,
        scaling=curve.scaling,
        measured=numbers,
        on_one_node=all(point.nodes == 1 for point in points),
        left_out=tuple(left_out),
        points=tuple(_point(curve, left_out, n) for n in asked),
    )


def _left_out(curve: _Curve, count: int) -> LeftOut:
    fitted, gpus = curve.first(count), list(curve.logs)[count]
    error = statistics.fmean(_laws(fitted, gpus)) - curve.logs[gpus]
    return LeftOut(gpus=gpus, fitted=tuple(fitted.logs), error=exponential(error) - 1)


def _point(curve: _Curve, left_out: Sequence[LeftOut], gpus: int) -> ScalingPoint:
    one, last = curve.points[0], curve.points[-1]
    assert one.step_time_s is not None, "a curve has points with step times alone"
    assert one.batch_per_gpu is not None, "a point with a step time has a batch"
    over_ideal = _band(curve, left_out, gpus)
    batch = round(one.batch_per_gpu * curve.share(gpus))
    step_time_s = over_ideal.scaled(one.step_time_s.value * curve.share(gpus))
    efficiency = over_ideal.inverse(1)
    nodes = last.nodes or 1
    return ScalingPoint(
        kind="projected",
        configuration=last.configuration,
        gpus=gpus,
        nodes=math.ceil(gpus * nodes / last.key.gpus) if nodes > 1 else None,
        batch_per_gpu=batch,
        step_time_s=step_time_s,
        samples_per_s=step_time_s.inverse(gpus * batch),
        speedup=efficiency.scaled(gpus),
        efficiency=efficiency,
    )


def _band(curve: _Curve, left_out: Sequence[LeftOut], gpus: int) -> Estimate:
    """Projected ratio of step time to ideal step time; below 1 only if a measured ratio was."""
    laws = _laws(curve, gpus)
    errors = [math.log1p(left.error) / _doublings(left.gpus, left.fitted) for left in left_out]
    df = _USUAL_DF + len(errors)
    a_doubling = (_USUAL_DF * _USUAL_ERROR**2 + math.fsum(e**2 for e in errors)) / df
    levels = (
        Term(variance=a_doubling * _doublings(gpus, curve.logs) ** 2, df=df),
        Term(variance=((laws[0] - laws[1]) / 2) ** 2, df=math.inf),
    )
    last = curve.points[-1].efficiency
    # A single run has no interval.
    noise = math.log(last.high / last.low) / 2 if last and last.low and last.high else 0.0
    half = math.hypot(difference_of_levels(0.0, levels).half_width(_ONE_SIDED) or 0.0, noise)
    least = min(0.0, *curve.logs.values())
    value = max(least, statistics.fmean(laws))
    return Estimate(
        value=exponential(value),
        low=exponential(max(least, value - half)),
        high=exponential(value + half),
    )


def _doublings(gpus: int, measured: Sequence[int] | Mapping[int, float]) -> float:
    """Number of doublings between `gpus` and the nearest measured number of GPUs."""
    return min(abs(math.log2(gpus / n)) for n in measured)


def _laws(curve: _Curve, gpus: int) -> tuple[float, float]:
    """Log ratio of step time to ideal step time, by the power law and by the sum of parts."""
    numbers = list(curve.logs)[-_FITTED:]
    fit = statistics.linear_regression(
        [math.log(n) for n in numbers], [curve.logs[n] for n in numbers]
    )
    return fit.intercept + fit.slope * math.log(gpus), _by_parts(curve, gpus)


def _by_parts(curve: _Curve, gpus: int) -> float:
    *_, last = curve.logs
    seconds = {n: curve.communication[n] * curve.share(n) for n in curve.logs if n > 1}
    per_byte, per_hop = _ring(seconds)
    exposed = (per_byte * (gpus - 1) / gpus + per_hop * (gpus - 1)) / curve.share(gpus)
    others = math.expm1(curve.logs[last]) - curve.communication[last]
    # Parts are differences of noisy times; the sum must stay above 0.
    return math.log(max(1 + exposed + others, _SINGULAR))


def _ring(seconds: Mapping[int, float]) -> tuple[float, float]:
    """Fit times of a ring all-reduce; return seconds for all bytes and for one hop, at least 0.

    The fit is by least squares; a single number of GPUs determines only the time for the bytes.
    """
    sizes, hops = [(n - 1) / n for n in seconds], [n - 1.0 for n in seconds]
    times_s = list(seconds.values())
    ss, hh, sh = _dot(sizes, sizes), _dot(hops, hops), _dot(sizes, hops)
    st, ht = _dot(sizes, times_s), _dot(hops, times_s)
    determinant = ss * hh - sh**2
    if determinant > _SINGULAR * ss * hh:
        per_byte, per_hop = (st * hh - ht * sh) / determinant, (ht * ss - st * sh) / determinant
        if per_byte < 0:
            return 0.0, max(0.0, ht / hh)
        if per_hop >= 0:
            return per_byte, per_hop
    return max(0.0, st / ss), 0.0


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(map(mul, left, right))
