"""Judge step times, speedups and metrics against measured runs, corrected for multiple testing."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from gpuscale.analysis.estimates import CONFIDENCE, Difference
from gpuscale.analysis.probabilities import benjamini_hochberg
from gpuscale.judge.compare.changes import MetricChange, Pairing, metric_changes, pairings_of
from gpuscale.judge.compare.matching import MatchedRow
from gpuscale.judge.compare.runs_needed import forecast
from gpuscale.judge.compare.verdict import (
    NAMING_SIGNIFICANCE,
    OTHER_WEIGHT,
    TIME_WEIGHT,
    Decision,
    ErrorRates,
    Judgement,
    Quantities,
    Quantity,
    Rule,
    decide,
)
from gpuscale.judge.sides import Sides
from gpuscale.records import Finding, MetricSpec, QuantityName, Statement, Verdict

_MOVED_CODES = {
    Finding.SCALING_LOSS: "scaling_lost",
    Finding.SINGLE_GPU_SLOWDOWN: "each_gpu_slower",
    Finding.REFERENCE_FASTER: "reference_faster",
}
_EVEN_ODDS = 0.5
"""One-sided p-value if no change is observed; the p-value of any observed loss is smaller."""


def judge_measured(rows: Sequence[MatchedRow], sides: Sides, rates: ErrorRates) -> list[Judgement]:
    """Judge rows against measured runs; every row must have valid runs on both sides.

    The tests of all rows form one family: Benjamini and Hochberg's method adjusts the p-values.
    """
    tolerances = sides.baseline.tolerances
    pairings = pairings_of(rows, sides)
    quantities = [pairing.quantities(tolerances, rates) for pairing in pairings]
    metrics = metric_changes(rows, sides, rates)
    tests = [
        test
        for judged, further in zip(quantities, metrics, strict=True)
        for test in (*judged.tests, *(metric.quantity for metric in further))
    ]
    adjusted = _adjusted(tests)
    family_weight = sum(test.weight for test in tests)
    rule = Rule(tolerances=tolerances, rates=rates, family_weight=family_weight)
    judgements = []
    for pairing, judged, further in zip(pairings, quantities, metrics, strict=True):
        tested = judged.with_tests(adjusted)
        changes = [replace(metric, quantity=next(adjusted)) for metric in further]
        judgements.append(_judgement(pairing, tested, changes, rule))
    return judgements


def _adjusted(tests: Sequence[Quantity]) -> Iterator[Quantity]:
    """Yield each test with its adjusted p-values, which stay None if its spread is unknown."""
    weights = [test.weight for test in tests if test.gain.parts is not None]
    gains = [test.gain for test in tests if test.gain.parts is not None]
    worse, better = (
        iter(benjamini_hochberg([p for gain in gains if (p := p_of(gain)) is not None], weights))
        for p_of in (Difference.p_below_zero, Difference.p_above_zero)
    )
    for test in tests:
        known = test.gain.parts is not None
        yield replace(test, p_worse=next(worse), p_better=next(better)) if known else test


def _judgement(
    pairing: Pairing, quantities: Quantities, metrics: Sequence[MetricChange], rule: Rule
) -> Judgement:
    decision = decide(quantities)
    verdict, decided_by = decision.verdict, decision.quantity.name
    finding: Finding | MetricSpec | None = decision.finding
    # Slower training also explains a higher energy use, so it takes precedence.
    worse = [metric for metric in metrics if metric.quantity.is_worse and not verdict.is_loss]
    lost = max(worse, key=lambda metric: metric.quantity.excess_loss, default=None)
    further_runs = remedy = None
    if verdict is Verdict.INCONCLUSIVE and lost is None:
        further_runs, remedy = forecast(pairing, decision.quantity, rule)
    reason = _reason(pairing, quantities, decision, remedy)
    if lost is not None:
        verdict, finding, decided_by = Verdict.REGRESSED, lost.spec, lost.spec.name
        reason = Statement.of("metric_lost", metric=decided_by, otherwise=reason)
    judged = (*quantities.tests, *(metric.quantity for metric in metrics))
    return Judgement(
        row=pairing.row,
        entry=replace(
            pairing.verdict_of(verdict, reason),
            finding=finding,
            change=decision.quantity.gain.relative_change(),
            changed_quantity=QuantityName(decision.quantity.name),
            minimum_detectable_loss=_minimum_detectable_loss(quantities, rule),
            further_runs=further_runs,
            metrics=tuple(metric.verdict for metric in metrics),
        ),
        excess_losses={quantity.name: quantity.excess_loss for quantity in judged},
        decided_by=decided_by,
        assumed_deviation=decision.quantity.assumed_deviation,
        tolerated_deviation=decision.quantity.tolerated_deviation(rule.tolerances.significance),
        is_suspect=any(quantity.moved_worse(NAMING_SIGNIFICANCE) for quantity in judged),
    )


def _reason(
    pairing: Pairing, quantities: Quantities, decision: Decision, remedy: Statement | None
) -> Statement:
    if decision.verdict is Verdict.INCONCLUSIVE:
        reason = _uncertain(quantities, decision.quantity, remedy)
    elif decision.finding is None:
        bound = max(quantity.stated_bound for quantity in quantities.tests)
        allowed = max(quantity.ok_bound for quantity in quantities.tests)
        # A row passes by a one-sided bound, which the two-sided interval may exceed.
        code = "no_loss" if bound <= 0 else "bounded_loss" if bound <= allowed else "one_sided_loss"
        reason = Statement.of(code, bound=min(bound, allowed), allowed=allowed)
    else:
        reason = _moved(quantities, decision.finding)
    if pairing.without_speedup is None:
        return reason
    return Statement.of("speedup_unknown", otherwise=reason, why=pairing.without_speedup)


def _moved(quantities: Quantities, finding: Finding) -> Statement:
    speedup, reference = quantities.speedup, quantities.reference
    is_known = speedup is not None and (
        speedup.is_ok
        or speedup.moved_worse(NAMING_SIGNIFICANCE)
        or speedup.moved_better(NAMING_SIGNIFICANCE)
    )
    # A change of E that may be chance is not stated as a fact.
    is_told = finding in _MOVED_CODES or is_known
    if speedup is None or reference is None or not is_told:
        return Statement.of("moved", throughput=-quantities.time.loss)
    return Statement.of(
        _MOVED_CODES.get(finding, "moved_with_efficiency"),
        throughput=-quantities.time.loss,
        efficiency=-speedup.loss,
        reference=-reference.loss,
        is_open_on_1=abs(reference.loss) > reference.limits.margin
        and not reference.moved_worse(NAMING_SIGNIFICANCE / 2)
        and not reference.moved_better(NAMING_SIGNIFICANCE / 2),
    )


def _uncertain(quantities: Quantities, quantity: Quantity, remedy: Statement | None) -> Statement:
    change = quantity.gain.relative_change()
    if change.low is None or change.high is None:
        return Statement.of("single_run")
    if quantity.is_worse and quantity is quantities.speedup:
        code = "unknown_end_moved"
    elif change.high >= 0:
        code = "loss_not_excluded"
    elif quantity.excess_loss <= 0:
        code = "within_margin"
    else:
        code = "not_beyond_chance"
    return Statement.of(
        code,
        quantity=quantity.name,
        change=change,
        margin=quantity.limits.margin,
        ok_bound=quantity.ok_bound,
        significance=quantity.rates.significance,
        looked=None if quantity.rates.confidence <= CONFIDENCE else quantity.rates.confidence,
        p=quantity.p_worse,
        remedy=remedy,
    )


def _minimum_detectable_loss(quantities: Quantities, rule: Rule) -> float | None:
    """Return the smallest slowdown found 19 times in 20 if no other row is slower; None if unknown.

    A longer step time alone can show a slowdown. A lower speedup shows one only with support from
    the step time, or from its ratio to the step time on another number of GPUs.
    """

    def detectable(quantity: Quantity, significance: float) -> float | None:
        margin = quantity.limits.margin
        return quantity.gain.detectable_loss(significance=significance, margin=margin)

    time, speedup, significance = quantities.time, quantities.speedup, rule.rates.significance
    # The thresholds of each test if no other test is significant.
    of_time, of_other = (significance * w / rule.family_weight for w in (TIME_WEIGHT, OTHER_WEIGHT))
    alone = detectable(time, of_time)
    by_speedup = None if speedup is None else detectable(speedup, of_other)
    supported, seen = detectable(time, significance), detectable(time, _EVEN_ODDS)
    if alone is None or by_speedup is None or supported is None or seen is None:
        return alone
    losses = [detectable(quantity, significance) for quantity in quantities.other_ratios]
    support = min([supported, *(max(loss, seen) for loss in losses if loss is not None)])
    return min(alone, max(by_speedup, support))
