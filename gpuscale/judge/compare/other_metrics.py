"""Changes and verdicts of metrics, other than the step time, that both sides measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuscale.analysis.scaling import Entry
from gpuscale.analysis.statistics.estimates import (
    Difference,
    exponential,
)
from gpuscale.judge.compare.decision import (
    ErrorRates,
    Quantity,
    loss_in_points,
    relative_fall,
    relative_rise,
)
from gpuscale.judge.compare.matching import MatchedRow
from gpuscale.judge.compare.spread import (
    SideSample,
    estimates_allocations,
    gain_of,
    moderated_samples,
)
from gpuscale.judge.sides import Sides
from gpuscale.records import (
    METRICS_BY_NAME,
    Estimate,
    Limits,
    MetricSpec,
    MetricVerdict,
    Verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """A row's values of one metric on both sides, in the metric's unit, and the tested change."""

    spec: MetricSpec
    before: Estimate
    after: Estimate
    quantity: Quantity

    @property
    def verdict(self) -> MetricVerdict:
        """The verdict on the metric, independent of the verdict on the row."""
        quantity = self.quantity
        if quantity.is_worse:
            verdict = Verdict.REGRESSED
        elif quantity.is_better:
            verdict = Verdict.IMPROVED
        else:
            verdict = Verdict.OK if quantity.is_ok else Verdict.INCONCLUSIVE
        rise = quantity.gain if self.spec.more_is_better else -quantity.gain
        return MetricVerdict(
            metric=self.spec,
            verdict=verdict,
            baseline=self.before,
            current=self.after,
            change=_in_points(rise) if self.spec.in_points else rise.relative_change(),
            loss_bound=None if quantity.loss_bound is None else quantity.stated_bound,
        )


def metric_changes(
    rows: Sequence[MatchedRow], sides: Sides, rates: ErrorRates
) -> list[list[MetricChange]]:
    """Return, for each row, the changes of metrics that both sides measured, without p-values.

    As for step times, the variance of a sample is moderated by all other samples of the metric.
    """
    found: list[list[MetricChange]] = [[] for _ in rows]
    limits = sides.baseline.tolerances.limits
    # Exposed communication is judged as a part of the baseline's step time.
    before, after = sides.before.by_point, sides.after.by_point
    steps_s = {key: exponential(entry.sample.mean) for key, entry in before.items()}
    for spec in (metric for metric in METRICS_BY_NAME.values() if metric.limits is not None):
        then, now = (
            {
                key: values
                for key, entry in side.items()
                if key in steps_s and (values := _values(spec, entry, steps_s[key]))
            }
            for side in (before, after)
        )
        samples = moderated_samples(
            then, {key: values for key, values in now.items() if key in then}
        )
        for row, changes in zip(rows, found, strict=True):
            key = None if row.before is None else row.before.key
            if key in samples[1]:
                old, new = SideSample((samples[0][key],)), SideSample((samples[1][key],))
                by_allocation = estimates_allocations(old, new)
                change = MetricChange(
                    spec=spec,
                    before=_in_unit(spec, old.own_estimate(by_allocation), steps_s[key]),
                    after=_in_unit(spec, new.own_estimate(), steps_s[key]),
                    quantity=_quantity(spec, old, new, limits(row.key, spec.name), rates),
                )
                changes.append(change)
    return found


def _in_unit(spec: MetricSpec, mean: Difference, step_s: float) -> Estimate:
    return _in_points(mean).scaled(step_s) if spec.in_points else mean.exponential()


def _quantity(
    spec: MetricSpec, before: SideSample, after: SideSample, limits: Limits, rates: ErrorRates
) -> Quantity:
    fall = gain_of(before, after, deviation=limits.allocation_deviation)
    loss_of = relative_fall if spec.more_is_better else relative_rise
    return Quantity(
        name=spec.name,
        gain=-fall if spec.more_is_better else fall,
        limits=limits,
        rates=rates,
        loss_of=loss_in_points if spec.in_points else loss_of,
    )


def _in_points(value: Difference) -> Estimate:
    low, high = value.interval() or (None, None)
    return Estimate(value=value.value, low=low, high=high)


def _values(spec: MetricSpec, entry: Entry, step_s: float) -> Mapping[str, tuple[float, ...]]:
    found = {}
    for night, runs in entry.runs.items():
        known = [run.measured[spec.name] for run in runs if spec.name in run.measured]
        if spec.in_points:
            found[night] = tuple(value / step_s for value in known)
        else:
            # A counter at 0 measured nothing.
            found[night] = tuple(math.log(value) for value in known if value > 0)
    return {night: values for night, values in found.items() if values}
