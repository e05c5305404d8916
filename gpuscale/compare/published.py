"""Judging against published figures: consistent or not, and only to the worse side."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuscale.compare.decision import ErrorRates, Judgement, required_runs
from gpuscale.compare.matching import Row, Side
from gpuscale.records import QuantityName, Statement, Tolerances, Verdict
from gpuscale.scaling import Figures, References, log_speedup
from gpuscale.statistics.estimates import CONFIDENCE, Difference, Sample, difference, log_sample


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ratio:
    """A measured quantity over its published value, on the log scale."""

    quantity: QuantityName
    value: float
    samples: Sequence[Sample]
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
    row: Row, figures: Figures, tolerances: Tolerances, after: Side, rates: ErrorRates
) -> Judgement:
    """The judgement on one row that has a published figure and valid runs."""
    figure, entry = row.figure, row.after
    assert figure is not None, "a row without measured runs before has a figure"
    assert entry is not None, "a row that can be judged has runs"

    def without_ratio(verdict: Verdict, code: str, **facts: object) -> Judgement:
        return Judgement(row=row, entry=row.told(verdict, Statement.of(code, **facts)))

    key, samples = entry.point.point_key, [log_sample(entry.all_logs)]
    if figure.gpus > 1 and row.published_speedup is not None:
        reference = References(after.by_point).of(key)
        if reference is None:
            return without_ratio(Verdict.INCOMPARABLE, "no_measured_reference")
        before, now = figures[figure.key._replace(gpus=1)].batch_per_gpu, reference.batch_per_gpu
        if before != now:
            code = "other_published_reference"
            return without_ratio(Verdict.INCOMPARABLE, code, before=before, now=now)
        samples.append(log_sample(after.by_point[reference].all_logs))
        speedup = log_speedup(samples[0], key.global_batch, samples[1], reference.global_batch)
        quantity, value = QuantityName.EFFICIENCY, speedup - math.log(row.published_speedup)
    elif figure.samples_per_s is not None:
        quantity = QuantityName.THROUGHPUT_ON_1 if key.gpus == 1 else QuantityName.THROUGHPUT
        value = math.log(key.global_batch / figure.samples_per_s) - samples[0].mean
    elif figure.gpus == 1:
        # A wall clock holds start-up and validation: it is no throughput to be held against.
        return without_ratio(Verdict.CONSISTENT, "speedup_reference")
    else:
        return without_ratio(Verdict.INCOMPARABLE, "no_published_reference")
    tolerance = tolerances.published_margin(figure.key, nodes=figure.nodes)
    ratio = _Ratio(quantity=quantity, value=value, samples=samples, tolerance=tolerance)
    return _judgement(row, ratio, ratio.verdict(rates.confidence))


def _judgement(row: Row, ratio: _Ratio, verdict: Verdict) -> Judgement:
    required = required_runs(
        lambda runs: ratio.verdict(CONFIDENCE, runs) is not Verdict.INCONCLUSIVE,
        made=min(sample.count for sample in ratio.samples),
    )
    change = ratio.measured().relative_change()
    detectable = ratio.tolerance
    if change.low is not None and change.high is not None:
        # From this loss on, the whole interval lies below the tolerance 19 times in 20.
        detectable = 1 - (1 - ratio.tolerance) * (1 + change.low) / (1 + change.high)
    excess_loss = -change.value - ratio.tolerance
    code = "published_met" if change.value < 0 else "published_exceeded"
    if verdict is not Verdict.CONSISTENT:
        is_missed = verdict is Verdict.INCONSISTENT
        code = "published_missed" if is_missed else "published_uncertain"
    reason = Statement.of(
        code,
        quantity=ratio.quantity,
        change=change.value,
        tolerance=ratio.tolerance,
        remedy=Statement.of("more_runs") if required.needed is None else required.advice,
    )
    return Judgement(
        row=row,
        entry=replace(
            row.told(verdict, reason),
            change=change,
            changed_quantity=ratio.quantity,
            minimum_detectable_loss=detectable,
            further_runs=required.credible if verdict is Verdict.INCONCLUSIVE else None,
        ),
        excess_losses={ratio.quantity: excess_loss},
        decided_by=ratio.quantity,
        is_suspect=excess_loss > 0,
    )
