"""Judge step times, speedups and metrics against measured runs, corrected for multiple testing."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuscale.analysis.estimates import Difference
from gpuscale.analysis.probabilities import benjamini_hochberg
from gpuscale.judge.compare.changes import MetricChange, Pairing, metric_changes, pairings_of
from gpuscale.judge.compare.matching import MatchedRow
from gpuscale.judge.compare.spread import estimates_allocations, largest_spread
from gpuscale.judge.compare.verdict import (
    FURTHER_RUNS,
    NAMING_SIGNIFICANCE,
    OTHER_WEIGHT,
    TIME_WEIGHT,
    Decision,
    ErrorRates,
    Judgement,
    Quantities,
    Quantity,
    decide,
    forecast_unknown,
    required_runs,
)
from gpuscale.judge.sides import Sides
from gpuscale.records import (
    Facts,
    Finding,
    MetricSpec,
    QuantityName,
    Statement,
    Tolerances,
    Verdict,
)

_MOVED_CODES = {
    Finding.SCALING_LOSS: "scaling_lost",
    Finding.SINGLE_GPU_SLOWDOWN: "each_gpu_slower",
    Finding.REFERENCE_FASTER: "reference_faster",
}
_RUNS_OF_BOTH = tuple(count for count in FURTHER_RUNS if 6 <= count <= 40)
"""Candidates for the number of runs on each side that would show that nothing changed."""
_MOSTLY = 0.8
"""Smallest probability that an unchanged row passes with the number of runs stated."""
_EVEN_ODDS = 0.5
"""One-sided p-value if no change is observed; the p-value of any observed loss is smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """Tolerances, error rates and total test weight of one comparison."""

    tolerances: Tolerances
    rates: ErrorRates
    family_weight: float

    def alone(self, test: Quantity) -> Quantity:
        """Return the test with p-values adjusted as if no other test were significant."""
        worse, better = (
            None if p is None else min(1.0, p * self.family_weight / test.weight)
            for p in (test.gain.p_below_zero(), test.gain.p_above_zero())
        )
        return replace(test, p_worse=worse, p_better=better)


def judge_measured(rows: Sequence[MatchedRow], sides: Sides, rates: ErrorRates) -> list[Judgement]:
    """Judge the rows, all of which have valid runs on both sides.

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
    rule = _Rule(tolerances=tolerances, rates=rates, family_weight=family_weight)
    judgements = []
    for pairing, judged, further in zip(pairings, quantities, metrics, strict=True):
        tested = judged.with_tests(adjusted)
        changes = [replace(metric, quantity=next(adjusted)) for metric in further]
        judgements.append(_judgement(pairing, tested, changes, rule))
    return judgements


def _adjusted(tests: Sequence[Quantity]) -> Iterator[Quantity]:
    """Yield the tests with adjusted p-values, which are None for tests of unknown spread."""
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
    pairing: Pairing, quantities: Quantities, metrics: Sequence[MetricChange], rule: _Rule
) -> Judgement:
    decision = decide(quantities)
    verdict, decided_by = decision.verdict, decision.quantity.name
    finding: Finding | MetricSpec | None = decision.finding
    # Slower training also explains a higher energy use, so it takes precedence.
    worse = [metric for metric in metrics if metric.quantity.is_worse and not verdict.is_loss]
    lost = max(worse, key=lambda metric: metric.quantity.excess_loss, default=None)
    further_runs = remedy = None
    if verdict is Verdict.INCONCLUSIVE and lost is None:
        # Interim analyses are stricter, but advise what a comparison of the same files would.
        final = replace(rule, rates=ErrorRates(significance=rule.tolerances.significance))
        further_runs, remedy = _required_runs(pairing, final)
        if remedy is None:
            # If a speedup is certainly lost, only T(n) can show which term of the ratio changed.
            of_speedup = decided_by == QuantityName.EFFICIENCY and not decision.quantity.is_worse
            remedy = _lasting_spread(pairing, final, of_speedup=of_speedup)
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
        is_suspect=any(quantity.moved_worse(NAMING_SIGNIFICANCE) for quantity in judged),
    )


def _required_runs(pairing: Pairing, rule: _Rule) -> tuple[int | None, Statement | None]:
    """Return how many further runs would settle a row (None if unknown), with advice on it."""

    def settles(further_runs: int) -> bool:
        grown = pairing.quantities(rule.tolerances, rule.rates, further_runs=further_runs)
        # The p-values of other rows are unknown then, so the strictest correction is used.
        tested = grown.with_tests(map(rule.alone, grown.tests))
        return decide(tested).verdict is not Verdict.INCONCLUSIVE

    return required_runs(pairing.row, settles, **_runs_so_far(pairing))


def _runs_so_far(pairing: Pairing) -> dict[str, int]:
    made = min(runs.sample.count for runs in pairing.after.samples)
    return {"made": made, "baseline_runs": max(map(len, pairing.before.samples[0].values.values()))}


def _lasting_spread(pairing: Pairing, rule: _Rule, *, of_speedup: bool) -> Statement:
    """Say what would keep a row uncertain after many more runs, or that so few runs do not tell."""
    most, before, after = FURTHER_RUNS[-1], pairing.before, pairing.after
    quantities = pairing.quantities(rule.tolerances, rule.rates, further_runs=most)
    if of_speedup and quantities.speedup is not None:
        found = largest_spread(before, after, quantities.speedup.gain, further_runs=most)
    else:
        before, after, gain = before.on_n_gpus, after.on_n_gpus, quantities.time.gain
        found = largest_spread(before, after, gain, further_runs=most)
    if found.code == "nights_differ" and not estimates_allocations(before, after):
        # The mean of a few runs may be what is far off, rather than the declared deviation large.
        apart = math.sqrt(pairing.after.variance_of_means)
        nearer = [test.with_gain(test.gain.value + apart) for test in quantities.tests]
        are_ok, may_be_ok = (all(test.is_ok for test in of) for of in (quantities.tests, nearer))
        if may_be_ok and not are_ok:
            return forecast_unknown(**_runs_so_far(pairing))
    if found.code != "baseline_runs_differ":
        return found
    return _on_both_sides(pairing, rule, found.facts)


def _on_both_sides(pairing: Pairing, rule: _Rule, facts: Facts) -> Statement:
    """Say how many runs on each side would make an unchanged row `ok` 4 times in 5, if known."""
    made = [runs.sample.count for side in (pairing.before, pairing.after) for runs in side.samples]
    most = max(_RUNS_OF_BOTH[-1], 2 * max(made))
    candidates = [count for count in (*_RUNS_OF_BOTH, most) if count > min(made)]

    def pass_if_unchanged(runs: int) -> bool:
        before, after = (side.with_at_least(runs) for side in (pairing.before, pairing.after))
        grown = replace(pairing, before=before, after=after)
        tests = grown.quantities(rule.tolerances, rule.rates).tests
        return all(test.with_gain(-(test.gain.half_width(_MOSTLY) or 0.0)).is_ok for test in tests)

    place = bisect_left(candidates, True, key=pass_if_unchanged)
    if place == len(candidates):
        return Statement.of("both_sides_differ", **(facts | Facts(runs=most)))
    return Statement("baseline_runs_differ", facts | Facts(of_both=candidates[place]))


def _reason(
    pairing: Pairing, quantities: Quantities, decision: Decision, remedy: Statement | None
) -> Statement:
    if decision.verdict is Verdict.INCONCLUSIVE:
        reason = _uncertain(quantities, decision.quantity, remedy)
    elif decision.finding is None:
        bound = max(quantity.stated_bound for quantity in quantities.tests)
        allowed = max(quantity.ok_bound for quantity in quantities.tests)
        code = "no_loss" if bound <= 0 else "bounded_loss"
        # A row passes by a one-sided bound, which the two-sided interval may exceed.
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
    elif quantity is quantities.speedup:
        code = "efficiency_not_beyond_chance"
    else:
        code = "not_beyond_chance"
    return Statement.of(
        code,
        throughput=-quantities.time.loss,
        quantity=quantity.name,
        change=change,
        margin=quantity.limits.margin,
        ok_bound=quantity.ok_bound,
        significance=quantity.rates.significance,
        p=quantity.p_worse,
        remedy=remedy,
    )


def _minimum_detectable_loss(quantities: Quantities, rule: _Rule) -> float | None:
    """Return the smallest loss that would be found 19 times in 20 if only this row had it.

    A loss is found in the step time alone, or in the speedup if the step time, or its ratio to
    another number of GPUs, supports it.
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
