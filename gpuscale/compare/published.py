"""Judging against published figures: consistent or not, and only to the worse side."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuscale.compare.error_rates import ErrorRates
from gpuscale.compare.judgement import Judgement
from gpuscale.compare.matching import Current, Row
from gpuscale.compare.outlook import Outlook, outlook
from gpuscale.records import Baseline, EntryKey, PublishedFigure, Verdict
from gpuscale.scaling import log_speedup, reference_key
from gpuscale.statistics import CONFIDENCE, Difference, Sample, difference, log_sample
from gpuscale.units import format_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A measured quantity over its published value, on the log scale."""

    quantity: str
    """`throughput(1)`, `throughput(n)` or `E(n)`."""
    value: float
    samples: tuple[Sample, ...]
    tolerance: float

    def measured(self, further_runs: int = 0) -> Difference:
        """The ratio, or what it would be after further runs that leave it where it is."""
        grown = (
            replace(sample, count=sample.count + further_runs, df=sample.df + further_runs)
            for sample in self.samples
        )
        return difference(self.value, [sample.term() for sample in grown])

    def verdict(self, confidence: float, further_runs: int = 0) -> Verdict:
        """Consistent unless the interval (or the value, without one) is below the tolerance."""
        low, high = self.measured(further_runs).interval(confidence) or (self.value, self.value)
        limit = math.log1p(-self.tolerance)
        if high < limit:
            return Verdict.INCONSISTENT
        return Verdict.CONSISTENT if low >= limit else Verdict.INCONCLUSIVE


def judge_published(
    row: Row, baseline: Baseline, currents: Sequence[Current], rates: ErrorRates
) -> Judgement:
    """The judgement on one row that has a published figure and valid runs."""
    figure, current = row.figure, row.current
    if figure is None or current is None:
        raise ValueError(f"{row.key.label}: a row without both sides cannot be judged")
    if figure.gpus == 1 and figure.samples_per_s is None:
        # A wall clock holds start-up and validation: it is no throughput to be held against.
        return Judgement(
            verdict=Verdict.CONSISTENT, reason="the reference of the speedups", is_reference=True
        )
    ratio = _ratio(figure, baseline, current, currents)
    return ratio if isinstance(ratio, Judgement) else _judgement(row.key, ratio, rates.confidence)


def published_speedup(figure: PublishedFigure, baseline: Baseline) -> float | None:
    """The speedup that the publication itself reports, over its figure for 1 GPU.

    Times are of a fixed amount of training, so their ratio is the speedup under weak and
    strong scaling alike. None where there is no figure for 1 GPU of the same kind.
    """
    reference = published_reference(figure, baseline)
    if reference is None:
        return None
    if figure.samples_per_s is not None and reference.samples_per_s is not None:
        return figure.samples_per_s / reference.samples_per_s
    time, reference_time = figure.mean_time_s, reference.mean_time_s
    if time is None or reference_time is None or figure.timed != reference.timed:
        return None
    return reference_time / time


def published_reference(figure: PublishedFigure, baseline: Baseline) -> PublishedFigure | None:
    """The publication's figure for 1 GPU of the same case and strategy."""
    key = EntryKey(figure.case, figure.strategy, 1)
    return next((other for other in baseline.published if other.key == key), None)


def _ratio(
    figure: PublishedFigure, baseline: Baseline, current: Current, currents: Sequence[Current]
) -> Ratio | Judgement:
    tolerance = baseline.tolerances.published_margin(figure.key, nodes=figure.nodes)
    published = published_speedup(figure, baseline)
    if figure.gpus > 1 and published is not None:
        return _speedup_ratio(published, tolerance, figure, baseline, current, currents)
    if figure.samples_per_s is None:
        return _incomparable("the publication has no comparable figure for 1 GPU")
    sample = _sample(current)
    batch = current.point.point_key.global_batch
    return Ratio(
        quantity="throughput(1)" if figure.gpus == 1 else "throughput(n)",
        value=math.log(batch / figure.samples_per_s) - sample.mean,
        samples=(sample,),
        tolerance=tolerance,
    )


def _speedup_ratio(
    published: float,
    tolerance: float,
    figure: PublishedFigure,
    baseline: Baseline,
    current: Current,
    currents: Sequence[Current],
) -> Ratio | Judgement:
    key = current.point.point_key
    measured = {other.point.point_key: other for other in currents if other.logs}
    reference = reference_key(key, measured)
    if reference is None:
        return _incomparable("its speedup is unknown: no valid run on 1 GPU was measured")
    published_one = published_reference(figure, baseline)
    if published_one is not None and published_one.batch_per_gpu != reference.batch_per_gpu:
        return _incomparable(
            f"its speedup is over another measurement on 1 GPU "
            f"(batch_per_gpu: {published_one.batch_per_gpu} → {reference.batch_per_gpu})"
        )
    sample, reference_sample = _sample(current), _sample(measured[reference])
    speedup = log_speedup(sample, key.global_batch, reference_sample, reference.global_batch)
    return Ratio(
        quantity="E(n)",
        value=speedup - math.log(published),
        samples=(sample, reference_sample),
        tolerance=tolerance,
    )


def _sample(current: Current) -> Sample:
    return log_sample([log for logs in current.logs.values() for log in logs])


def _incomparable(reason: str) -> Judgement:
    return Judgement(verdict=Verdict.INCOMPARABLE, reason=reason)


def _judgement(key: EntryKey, ratio: Ratio, confidence: float) -> Judgement:
    verdict = ratio.verdict(confidence)
    ahead = outlook(
        lambda runs: ratio.verdict(CONFIDENCE, runs) is not Verdict.INCONCLUSIVE,
        made=min(sample.count for sample in ratio.samples),
    )
    change = ratio.measured().relative_change()
    detectable = ratio.tolerance
    if change.low is not None and change.high is not None:
        # From this loss on, the whole interval lies below the tolerance 19 times in 20.
        detectable = 1 - (1 - ratio.tolerance) * (1 + change.low) / (1 + change.high)
    return Judgement(
        verdict=verdict,
        reason=_reason(key, ratio, verdict, change.value, ahead),
        change=change,
        changed_quantity=ratio.quantity,
        minimum_detectable_loss=detectable,
        further_runs=ahead.further_runs if verdict is Verdict.INCONCLUSIVE else None,
        excess_losses={ratio.quantity: -change.value - ratio.tolerance},
        decided_by=ratio.quantity,
        is_suspect=-change.value > ratio.tolerance,
    )


def _reason(key: EntryKey, ratio: Ratio, verdict: Verdict, change: float, ahead: Outlook) -> str:
    name = f"E({key.gpus})" if ratio.quantity == "E(n)" else "the throughput"
    side = "below" if change < 0 else "above"
    found = f"{name} is {format_percent(abs(change))} {side} the published figure"
    tolerance = format_percent(ratio.tolerance)
    if verdict is Verdict.INCONSISTENT:
        return f"{found}, more than the tolerance of {tolerance}"
    if verdict is Verdict.CONSISTENT:
        return found if change >= 0 else f"{found}, within the tolerance of {tolerance}"
    remedy = "measure more runs" if ahead.needed is None else ahead.text
    return f"{found}, and its interval straddles the tolerance of {tolerance}; {remedy}"
