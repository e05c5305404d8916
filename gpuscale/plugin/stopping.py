"""When enough runs have been made: the rule behind `--runs MIN:MAX --target-ci`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpuscale.records import Estimate, Run
from gpuscale.scaling import PointKey, References, ScalingPoint, scaling_points

FEWEST_RUNS = 3
"""With two runs to begin with, 95% intervals cover the truth in fewer than 92% of sessions."""
DEFAULT_TARGET = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingRule:
    """Runs of an item go on until its intervals are narrow, within bounds."""

    minimum_runs: int
    """Valid runs before the intervals are looked at."""
    target: float
    """Half of a 95% interval, relative to its value, that is narrow enough."""


def settled_after(
    key: PointKey, runs: Sequence[Run], rule: StoppingRule, *, gpus: Collection[int]
) -> int | None:
    """After how many valid runs a point is known well enough; None where runs must go on.

    A point on n GPUs is settled when T(n) and S(n) are; that on 1 GPU when T(1) is and every
    S(n) that is taken over it. A speedup without a value, because one of its ends has only
    failed so far, is not waited for.

    Args:
        key: The point.
        runs: All runs so far, of this point and of others.
        rule: What is narrow enough.
        gpus: The numbers of GPUs that are being measured: only their speedups hold up T(1).
    """
    points = {point.point_key: point for point in scaling_points(runs)}
    point = points.get(key)
    if point is None or point.valid_runs < rule.minimum_runs:
        return None
    if key.gpus > 1:
        speedups = [point.speedup]
    else:
        references = References(key for key, its in points.items() if its.step_time_s is not None)
        speedups = [
            its.speedup
            for other, its in points.items()
            if other.gpus > 1 and other.gpus in gpus and references.of(other) == key
        ]
    needed = [estimate for estimate in (point.step_time_s, *speedups) if estimate is not None]
    return point.valid_runs if all(_is_narrow(estimate, rule) for estimate in needed) else None


def unsettled_points(
    runs: Sequence[Run], rule: StoppingRule, *, gpus: Collection[int]
) -> tuple[ScalingPoint, ...]:
    """The points whose own T or S is not known well enough, but for those that only failed."""
    return tuple(
        point
        for point in scaling_points(runs)
        if point.valid_runs
        and point.key.gpus in gpus
        and not (point.valid_runs >= rule.minimum_runs and _has_narrow_intervals(point, rule))
    )


def _has_narrow_intervals(point: ScalingPoint, rule: StoppingRule) -> bool:
    speedup = None if point.key.gpus == 1 else point.speedup
    known = [estimate for estimate in (point.step_time_s, speedup) if estimate is not None]
    return all(_is_narrow(estimate, rule) for estimate in known)


def _is_narrow(estimate: Estimate, rule: StoppingRule) -> bool:
    if estimate.low is None or estimate.high is None:
        return False
    return (estimate.high - estimate.low) / 2 / estimate.value <= rule.target
