"""Judging against published figures: consistent or not, and only to the worse side."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuscale.compare.decision import ErrorRates
from gpuscale.compare.judgement import Judgement, RequiredRuns, required_runs
from gpuscale.compare.matching import Entry, Row, Side
from gpuscale.records import (
    EntryKey,
    PublishedFigure,
    QuantityName,
    ReasonCode,
    Statement,
    Tolerances,
    Verdict,
)
from gpuscale.scaling import log_speedup
from gpuscale.statistics.estimates import CONFIDENCE, Difference, Sample, difference, log_sample

Figures = Mapping[EntryKey, PublishedFigure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A measured quantity over its published value, on the log scale."""

    quantity: QuantityName
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
    row: Row, figures: Figures, tolerances: Tolerances, after: Side, rates: ErrorRates
) -> Judgement:
    """The judgement on one row that has a published figure and valid runs."""
    figure, entry = row.figure, row.after
    if figure is None or entry is None:
        raise ValueError(f"{row.key.label}: a row without both sides cannot be judged")
    if figure.gpus == 1 and figure.samples_per_s is None:
        # A wall clock holds start-up and validation: it is no throughput to be held against.
        reason = Statement.of(ReasonCode.SPEEDUP_REFERENCE)
        return Judgement(verdict=Verdict.CONSISTENT, reason=reason, is_reference=True)
    ratio = _ratio(figure, figures, tolerances, entry, after)
    return ratio if isinstance(ratio, Judgement) else _judgement(ratio, rates.confidence)


def published_speedup(figure: PublishedFigure, figures: Figures) -> float | None:
    """The speedup that the publication itself reports, over its figure for 1 GPU.

    Times are of a fixed amount of training, so their ratio is the speedup under weak and
    strong scaling alike. None where there is no figure for 1 GPU of the same kind.
    """
    if figure.gpus == 1:
        return 1.0
    reference = _published_reference(figure, figures)
    if reference is None:
        return None
    if figure.samples_per_s is not None and reference.samples_per_s is not None:
        return figure.samples_per_s / reference.samples_per_s
    time, reference_time = figure.mean_time_s, reference.mean_time_s
    if time is None or reference_time is None or figure.timed != reference.timed:
        return None
    return reference_time / time


def _published_reference(figure: PublishedFigure, figures: Figures) -> PublishedFigure | None:
    return figures.get(figure.key._replace(gpus=1))


def _ratio(
    figure: PublishedFigure, figures: Figures, tolerances: Tolerances, entry: Entry, after: Side
) -> Ratio | Judgement:
    tolerance = tolerances.published_margin(figure.key, nodes=figure.nodes)
    published = published_speedup(figure, figures)
    if figure.gpus > 1 and published is not None:
        published_one = _published_reference(figure, figures)
        return _speedup_ratio(published, tolerance, published_one, entry, after)
    if figure.samples_per_s is None:
        return _incomparable(ReasonCode.NO_PUBLISHED_REFERENCE)
    sample = _sample(entry)
    batch = entry.point.point_key.global_batch
    return Ratio(
        quantity=(QuantityName.THROUGHPUT_ON_1 if figure.gpus == 1 else QuantityName.THROUGHPUT),
        value=math.log(batch / figure.samples_per_s) - sample.mean,
        samples=(sample,),
        tolerance=tolerance,
    )


def _speedup_ratio(
    published: float,
    tolerance: float,
    published_one: PublishedFigure | None,
    entry: Entry,
    after: Side,
) -> Ratio | Judgement:
    key = entry.point.point_key
    reference = after.references.of(key)
    if reference is None:
        return _incomparable(ReasonCode.NO_MEASURED_REFERENCE)
    if published_one is not None and published_one.batch_per_gpu != reference.batch_per_gpu:
        return _incomparable(
            ReasonCode.OTHER_PUBLISHED_REFERENCE,
            before=published_one.batch_per_gpu,
            now=reference.batch_per_gpu,
        )
    sample, reference_sample = _sample(entry), _sample(after.by_point[reference])
    speedup = log_speedup(sample, key.global_batch, reference_sample, reference.global_batch)
    return Ratio(
        quantity=QuantityName.EFFICIENCY,
        value=speedup - math.log(published),
        samples=(sample, reference_sample),
        tolerance=tolerance,
    )


def _sample(entry: Entry) -> Sample:
    return log_sample([log for logs in entry.logs.values() for log in logs])


def _incomparable(code: ReasonCode, **facts: object) -> Judgement:
    return Judgement(verdict=Verdict.INCOMPARABLE, reason=Statement.of(code, **facts))


def _judgement(ratio: Ratio, confidence: float) -> Judgement:
    verdict = ratio.verdict(confidence)
    required = required_runs(
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
        reason=_reason(ratio, verdict, change.value, required),
        change=change,
        changed_quantity=ratio.quantity,
        minimum_detectable_loss=detectable,
        further_runs=required.credible if verdict is Verdict.INCONCLUSIVE else None,
        excess_losses={ratio.quantity: -change.value - ratio.tolerance},
        decided_by=ratio.quantity,
        is_suspect=-change.value > ratio.tolerance,
    )


def _reason(ratio: Ratio, verdict: Verdict, change: float, required: RequiredRuns) -> Statement:
    if verdict is Verdict.CONSISTENT:
        code = ReasonCode.PUBLISHED_EXCEEDED if change >= 0 else ReasonCode.PUBLISHED_MET
    elif verdict is Verdict.INCONSISTENT:
        code = ReasonCode.PUBLISHED_MISSED
    else:
        code = ReasonCode.PUBLISHED_UNCERTAIN
    more = Statement.of(ReasonCode.MORE_RUNS)
    return Statement.of(
        code,
        quantity=ratio.quantity,
        change=change,
        tolerance=ratio.tolerance,
        remedy=more if required.needed is None else required.advice,
    )
