"""Compute changes in step time, speedup and other metrics from baseline to results."""

import math
from collections.abc import Mapping, Sequence
from operator import neg

import msgspec
from msgspec.structs import replace

from gpuscale.analysis.estimates import Difference, exponential
from gpuscale.analysis.moderation import RunSample, moderated_samples
from gpuscale.analysis.scaling import Entry, level_of, references_of
from gpuscale.base.grouping import by_key
from gpuscale.judge.compare.matching import MatchedRow
from gpuscale.judge.compare.spread import SideSample, estimates_spread, gain_of, usual_estimate
from gpuscale.judge.compare.verdict import ErrorRates, Quantities, Quantity, relative_rise
from gpuscale.judge.sides import Sides, usual_logs
from gpuscale.records import (
    METRICS_BY_NAME,
    EntryVerdict,
    Estimate,
    Limits,
    MetricSpec,
    MetricVerdict,
    PointKey,
    QuantityName,
    Statement,
    Tolerances,
    Verdict,
)
from gpuscale.records.baseline import SPEEDUP, THROUGHPUT


class Pairing(msgspec.Struct, frozen=True, kw_only=True):
    """A row's samples in baseline and results, with those on 1 GPU if its speedup can be judged."""

    row: MatchedRow
    before: SideSample
    after: SideSample
    without_speedup: Statement | None = None
    """Reason why the speedup cannot be judged; None if it can, or if the row has no speedup."""
    batches: float | None = None
    """Ratio of the baseline's global batch on n GPUs to that on 1; None if no speedup is judged."""
    other_ratios: Sequence[tuple[SideSample, SideSample]] = ()
    """Ratio T(n)/T(m) before and now, for each other row on m > 1 GPUs with the same T(1)."""

    @property
    def may_share_host(self) -> bool:
        """True for CPU ranks: their host may have other load that lasts longer than a session."""
        return self.row.points[0].configuration.device == "cpu"

    def quantities(
        self, tolerances: Tolerances, rates: ErrorRates, *, further_runs: int = 0
    ) -> Quantities:
        """Return the row's changes without p-values, as if results had `further_runs` more runs."""
        key, before, after = self.row.key, self.before, self.after.with_further_runs(further_runs)
        on_1 = QuantityName.THROUGHPUT_ON_1
        of_time = tolerances.limits(key, THROUGHPUT)
        name = on_1 if key.gpus == 1 else QuantityName.THROUGHPUT
        like_runs = 1.0 if self.may_share_host else 0.0
        time = _change(name, before.on_n_gpus, after.on_n_gpus, of_time, rates, like_runs)
        if len(before.samples) == 1:
            return Quantities(time=time)
        of_one = tolerances.limits(key._replace(gpus=1), THROUGHPUT)
        of_speedup = tolerances.limits(key, SPEEDUP)
        apart = max(of_time.allocation_deviation, of_one.allocation_deviation)

        def ratio(then: SideSample, now: SideSample) -> Quantity:
            # Most of a session's load slows T(1) and T(n) alike.
            efficiency, share = QuantityName.EFFICIENCY, like_runs / 2
            return _change(efficiency, then, now, of_speedup, rates, share, apart)

        return Quantities(
            time=time,
            speedup=ratio(before, after),
            reference=_change(on_1, before.on_1_gpu, after.on_1_gpu, of_one, rates, like_runs),
            other_ratios=tuple(
                ratio(then, now.with_further_runs(further_runs)) for then, now in self.other_ratios
            ),
        )

    def verdict_of(self, verdict: Verdict, reason: Statement) -> EntryVerdict:
        """Build the row's `EntryVerdict`, with the baseline values that its changes refer to."""
        time_s = usual_estimate(self.before.on_n_gpus, self.after.on_n_gpus).exponential()
        speedup = None if self.row.before is None else self.row.before.speedup
        if self.batches is not None:
            speedup = usual_estimate(self.before, self.after).exponential().inverse(self.batches)
        return self.row.verdict_of(verdict, reason, level_of(self.row.points[0], time_s, speedup))


def _change(
    name: str,
    before: SideSample,
    after: SideSample,
    limits: Limits,
    rates: ErrorRates,
    like_runs: float = 0.0,
    deviation_apart: float = 0.0,
) -> Quantity:
    """Return a change, assuming that sessions deviate by at least `like_runs` times as runs do."""
    deviation, is_estimated = limits.allocation_deviation, estimates_spread(before, after)
    if like_runs and not is_estimated:
        variance = max(runs.variance or 0.0 for runs in (*before.samples, *after.samples))
        least = like_runs * math.sqrt(variance)
        deviation, deviation_apart = max(deviation, least), max(deviation_apart, least)
    gain = gain_of(before, after, deviation=deviation, deviation_apart=deviation_apart)
    assumed = None if is_estimated else deviation
    return Quantity(name=name, gain=gain, assumed_deviation=assumed, limits=limits, rates=rates)


def pairings_of(rows: Sequence[MatchedRow], sides: Sides) -> list[Pairing]:
    """Pair baseline and current samples of the rows, all of which have valid runs on both sides.

    Each sample's variance is shrunk towards the variances of all others, even of unjudged rows.
    Outlying runs are excluded from the baseline only: in the results, they may show a slowdown.
    """
    before, after = sides.before.by_point, sides.after.by_point
    configurations = {entry.key.configuration for entry in sides.before.entries}
    then, now = moderated_samples(
        {key: usual_logs(entry, after.get(key)) for key, entry in before.items()},
        {key: entry.logs for key, entry in after.items() if key.configuration in configurations},
    )
    ones_before, ones_after = references_of(before), references_of(after)
    points = [row.points for row in rows]
    ends = [((ones_before.get(keys[0]), ones_after.get(keys[1])), keys) for keys in points]
    same_ones = by_key((ones, keys) for ones, keys in ends if None not in ones)
    pairings = []
    for row, (ones, keys) in zip(rows, ends, strict=True):
        (key, now_key), (before_1, after_1) = keys, ones
        # Other tools often put the number of GPUs in a test's name, so its rows have no T(1).
        is_alone = key.gpus == 1 or not key.configuration.has_speedup
        is_alone |= key.configuration.metric is not None and ones == (None, None)
        why = None if is_alone else _why_without_speedup(*ones)
        old, new, batches = [key], [now_key], None
        if before_1 and after_1 and why is None and not is_alone:
            old, new = [key, before_1], [now_key, after_1]
            batches = key.global_batch / before_1.global_batch
        pairings.append(
            Pairing(
                row=row,
                before=_side(sides, then, *old),
                after=_side(sides, now, *new),
                without_speedup=why,
                batches=batches,
                other_ratios=[
                    (_side(sides, then, key, before_m), _side(sides, now, now_key, after_m))
                    for before_m, after_m in same_ones.get(ones, ())
                    if (before_m, after_m) not in (keys, ones)
                ],
            )
        )
    return pairings


def _side(sides: Sides, samples: Mapping[PointKey, RunSample], *points: PointKey) -> SideSample:
    return SideSample(tuple(samples[point] for point in points), sides.is_of_nights)


def _why_without_speedup(before: PointKey | None, now: PointKey | None) -> Statement | None:
    if before is None or now is None:
        sides = {"baseline": before, "results": now}
        return Statement.of("not_on_1_gpu", names=[name for name in sides if sides[name] is None])
    then, today = before.batch_per_gpu, now.batch_per_gpu
    return None if then == today else Statement.of("other_batch_on_1_gpu", before=then, now=today)


class MetricChange(msgspec.Struct, frozen=True, kw_only=True):
    """A row's baseline and current values of one metric, in the metric's unit, and the change."""

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
        rise = -quantity.gain
        return MetricVerdict(
            metric=self.spec,
            verdict=verdict,
            baseline=self.before,
            current=self.after,
            change=rise.estimate() if self.spec.in_points else rise.relative_change(),
            loss_bound=None if quantity.loss_bound is None else quantity.stated_bound,
        )


def metric_changes(
    rows: Sequence[MatchedRow], sides: Sides, rates: ErrorRates
) -> list[list[MetricChange]]:
    """Return each row's metric changes without p-values; all rows help to estimate variances."""
    found: list[list[MetricChange]] = [[] for _ in rows]
    limits = sides.baseline.tolerances.limits
    # Exposed communication is judged as a fraction of the baseline's step time.
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
        samples = moderated_samples(then, {key: runs for key, runs in now.items() if key in then})
        for row, changes in zip(rows, found, strict=True):
            if (key := row.points[0]) in samples[1]:
                old, new = (_side(sides, side, key) for side in samples)
                quantity = _change(spec.name, old, new, limits(row.key, spec.name), rates)
                change = MetricChange(
                    spec=spec,
                    before=_in_unit(spec, usual_estimate(old, new), steps_s[key]),
                    after=_in_unit(spec, new.own_estimate(), steps_s[key]),
                    quantity=replace(quantity, loss_of=neg if spec.in_points else relative_rise),
                )
                changes.append(change)
    return found


def _in_unit(spec: MetricSpec, mean: Difference, step_s: float) -> Estimate:
    return mean.estimate().scaled(step_s) if spec.in_points else mean.exponential()


def _values(spec: MetricSpec, entry: Entry, step_s: float) -> Mapping[str, tuple[float, ...]]:
    found = {}
    for night, runs in entry.runs.items():
        known = [run.measured[spec.name] for run in runs if spec.name in run.measured]
        if spec.in_points:
            found[night] = tuple(value / step_s for value in known)
        else:
            # A value of 0 means that nothing was measured.
            found[night] = tuple(math.log(value) for value in known if value > 0)
    return {night: values for night, values in found.items() if values}
