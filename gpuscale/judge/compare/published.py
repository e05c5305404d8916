"""Judge results against published figures; better results also count as consistent."""

import math
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from gpuscale.analysis.estimates import Difference, Sample, Term, difference, log_sample
from gpuscale.analysis.moderation import MINIMUM_ALLOCATIONS
from gpuscale.analysis.scaling import Entry
from gpuscale.judge.compare.matching import MatchedRow
from gpuscale.judge.compare.verdict import ErrorRates, Judgement
from gpuscale.judge.sides import Sides
from gpuscale.records import PublishedFigure, QuantityName, Statement, Verdict
from gpuscale.records.baseline import SPEEDUP, THROUGHPUT


class _Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """The logarithm of the ratio of a measured quantity to its published value."""

    quantity: QuantityName
    measured: Difference
    tolerance: float

    def verdict(self, confidence: float) -> Verdict:
        """Judge the ratio by its confidence interval or, if that is unknown, by its value."""
        low, high = self.measured.interval(confidence) or (self.measured.value,) * 2
        limit = math.log1p(-self.tolerance)
        if high < limit:
            return Verdict.INCONSISTENT
        return Verdict.CONSISTENT if low >= limit else Verdict.INCONCLUSIVE

    @property
    def excess_loss(self) -> float:
        return -self.measured.relative_change().value - self.tolerance

    @property
    def detectable_loss(self) -> float:
        """Smallest shortfall from the published value that is found 19 times in 20."""
        change = self.measured.relative_change()
        if change.low is None or change.high is None:
            return self.tolerance
        return 1 - (1 - self.tolerance) * (1 + change.low) / (1 + change.high)


_CODES = {
    Verdict.CONSISTENT: "published_met",
    Verdict.INCONCLUSIVE: "published_uncertain",
    Verdict.INCONSISTENT: "published_missed",
}
"""Codes of the reasons for verdicts, the least severe verdict first."""


def judge_published(row: MatchedRow, sides: Sides, rates: ErrorRates) -> Judgement:
    """Judge a row's speedup and, if comparable, its throughput against a published figure.

    The speedup alone would miss a slowdown that all numbers of GPUs share.
    """
    figure, entry = row.figure, row.after
    assert figure is not None, "a row without measured runs before has a figure"
    assert entry is not None, "a row that can be judged has runs"
    speedup = _speedup_ratio(figure, entry, sides)
    obstacle = speedup if isinstance(speedup, Statement) else None
    ratios = [speedup] if isinstance(speedup, _Ratio) else []
    is_same = figure.precision in (None, entry.key.configuration.precision)
    cost = figure.cost(entry.key.global_batch)
    if cost is not None and (is_same or speedup is None):
        one, margin = entry.key.gpus == 1, sides.baseline.tolerances.published_margin
        gain = math.log(cost) - entry.sample.mean
        ratios.append(
            _Ratio(
                quantity=QuantityName.THROUGHPUT_ON_1 if one else QuantityName.THROUGHPUT,
                measured=_log_ratio(gain, [entry.sample], figure.nights),
                tolerance=margin(figure.key, THROUGHPUT, nodes=figure.nodes),
            )
        )
    if ratios:
        return _judgement(row, ratios, obstacle, rates.confidence)
    if figure.gpus == 1:
        # Wall-clock time includes start-up and validation, so it gives no comparable throughput.
        verdict, reason = Verdict.CONSISTENT, Statement.of("speedup_reference")
    else:
        verdict = Verdict.INCOMPARABLE
        reason = obstacle or Statement.of("no_published_reference")
    return Judgement(row=row, entry=row.verdict_of(verdict, reason))


def _speedup_ratio(
    figure: PublishedFigure, entry: Entry, sides: Sides
) -> _Ratio | Statement | None:
    """Return measured / published speedup, or why it is unknown; None if none is published."""
    if figure.gpus == 1 or (published := sides.published[figure.key].speedup) is None:
        return None
    if (reference := entry.reference) is None:
        return Statement.of("not_on_1_gpu", names=["results"])
    one = sides.published[figure.key._replace(gpus=1)].figure
    assert one is not None, "a published speedup is over a published figure"
    before, now = one.batch_per_gpu, reference.key.batch_per_gpu
    if before != now:
        return Statement.of("other_batch_on_1_gpu", before=before, now=now)
    nights = {at: value / one.nights[at] for at, value in figure.nights.items() if at in one.nights}
    speedup = entry.log_speedup_over(reference) - math.log(published.value)
    margin = sides.baseline.tolerances.published_margin
    return _Ratio(
        quantity=QuantityName.EFFICIENCY,
        measured=_log_ratio(speedup, [entry.sample, reference.sample], nights),
        tolerance=margin(figure.key, SPEEDUP, nodes=figure.nodes),
    )


def _log_ratio(value: float, samples: Sequence[Sample], nights: Mapping[str, float]) -> Difference:
    """Return log ratio `value`, with its error from samples and from `nights` if at least 4."""
    terms = [sample.term() for sample in samples]
    if len(nights) < MINIMUM_ALLOCATIONS:
        return difference(value, terms)
    published = log_sample([math.log(night) for night in nights.values()])
    assert published.variance is not None, "several nights have a variance"
    # The results add one night to the mean of the published nights, even if from a single run.
    of_nights = Term(variance=published.variance * (1 + 1 / published.count), df=published.df)
    return difference(value, [*filter(None, terms), of_nights])


def _judgement(
    row: MatchedRow, ratios: Sequence[_Ratio], obstacle: Statement | None, confidence: float
) -> Judgement:
    """Judge a row by the worst ratio: worst verdict, then (unless consistent) largest excess loss.

    `obstacle` is the reason why the speedup is unknown; None if it is known or not published.
    """
    verdicts = [(ratio.verdict(confidence), ratio) for ratio in ratios]
    verdict = max((verdict for verdict, _ in verdicts), key=[*_CODES].index)
    as_bad = [ratio for each, ratio in verdicts if each is verdict]
    ratio = as_bad[0]
    if verdict is not Verdict.CONSISTENT:
        ratio = max(as_bad, key=lambda each: each.excess_loss)
    change = ratio.measured.relative_change()
    reason = Statement.of(
        _CODES[verdict], published=ratio.quantity, beside=change.value, tolerance=ratio.tolerance
    )
    if obstacle is not None:
        reason = Statement.of("speedup_unknown", otherwise=reason, why=obstacle)
    return Judgement(
        row=row,
        entry=replace(
            row.verdict_of(verdict, reason),
            change=change,
            changed_quantity=ratio.quantity,
            minimum_detectable_loss=min(ratio.detectable_loss for ratio in ratios),
        ),
        excess_losses={ratio.quantity: ratio.excess_loss for ratio in ratios},
        decided_by=ratio.quantity,
        is_suspect=any(ratio.excess_loss > 0 for ratio in ratios),
    )
