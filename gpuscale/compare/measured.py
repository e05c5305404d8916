"""Judging against measured runs: T(1), T(n), S(n) and metrics, corrected for the family."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpuscale.compare.decision import (
    NAMING_SIGNIFICANCE,
    ONE_ANALYSIS,
    OTHER_WEIGHT,
    TIME_WEIGHT,
    Decision,
    ErrorRates,
    Quantities,
    Quantity,
    decide,
)
from gpuscale.compare.judgement import Judgement, RequiredRuns, required_runs
from gpuscale.compare.matching import Row, Side
from gpuscale.compare.pairing import Gains, MetricPairing, Pairing, pair_metrics, pair_rows
from gpuscale.records import (
    EntryKey,
    Finding,
    MetricVerdict,
    QuantityName,
    ReasonCode,
    Statement,
    Tolerances,
    Verdict,
)
from gpuscale.statistics.estimates import Difference, exponential
from gpuscale.statistics.significance import benjamini_hochberg, detectable_loss

_OptionalP = float | None
_MOVES = {
    Finding.SCALING_LOSS: ReasonCode.SCALING_LOST,
    Finding.SINGLE_GPU_SLOWDOWN: ReasonCode.EACH_GPU_SLOWER,
    Finding.REFERENCE_FASTER: ReasonCode.REFERENCE_FASTER,
}
_SPREADS = {
    "current runs": ReasonCode.RUNS_DIFFER,
    "baseline runs": ReasonCode.BASELINE_RUNS_DIFFER,
    "allocations": ReasonCode.NIGHTS_DIFFER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tested:
    """The tests of one row, before the family is known."""

    pairing: Pairing
    gains: Gains
    metrics: tuple[MetricPairing, ...]
    metric_gains: tuple[Difference, ...]

    @property
    def tests(self) -> list[tuple[Difference, float]]:
        """Each test with its weight in the family: T first, then S, then the metrics."""
        others = [self.gains.speedup] if self.gains.speedup is not None else []
        return [
            (self.gains.time, TIME_WEIGHT),
            *((gain, OTHER_WEIGHT) for gain in (*others, *self.metric_gains)),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """The rule that holds for all rows of one comparison."""

    tolerances: Tolerances
    rates: ErrorRates
    family_weight: float
    """Of all tests together."""

    def strictest(self, weight: float) -> float:
        """The p below which a test of this weight counts if it is the only one that does."""
        return self.rates.significance * weight / self.family_weight

    def corrected(self, probability: _OptionalP, weight: float) -> _OptionalP:
        """The p adjusted as if no other test counted."""
        if probability is None:
            return None
        return min(1.0, probability * self.family_weight / weight)


def judge_measured(
    rows: Sequence[Row], tolerances: Tolerances, before: Side, after: Side, rates: ErrorRates
) -> list[Judgement]:
    """The judgement on each of the rows, all of which have valid runs on both sides.

    The tests of all rows are one family: their p are adjusted after Benjamini and Hochberg.
    """
    tested = [
        _Tested(
            pairing=pairing,
            gains=pairing.gains(tolerances),
            metrics=metrics,
            metric_gains=tuple(metric.gain(tolerances) for metric in metrics),
        )
        for pairing, metrics in zip(
            pair_rows(rows, before, after),
            pair_metrics(rows, before, after),
            strict=True,
        )
    ]
    tests = [test for row in tested for test in row.tests]
    worse = iter(_adjusted(tests, Difference.p_below_zero))
    better = iter(_adjusted(tests, Difference.p_above_zero))
    rule = _Rule(
        tolerances=tolerances, rates=rates, family_weight=sum(weight for _, weight in tests)
    )
    return [
        _judgement(row.key, each, [(next(worse), next(better)) for _ in each.tests], rule)
        for row, each in zip(rows, tested, strict=True)
    ]


def _adjusted(
    tests: Sequence[tuple[Difference, float]], probability: Callable[[Difference], _OptionalP]
) -> list[_OptionalP]:
    raw = [(probability(gain), weight) for gain, weight in tests]
    known = [(p, weight) for p, weight in raw if p is not None]
    adjusted = iter(benjamini_hochberg([p for p, _ in known], [weight for _, weight in known]))
    return [None if p is None else next(adjusted) for p, _ in raw]


def _judgement(
    key: EntryKey, tested: _Tested, ps: Sequence[tuple[_OptionalP, _OptionalP]], rule: _Rule
) -> Judgement:
    quantities = _quantities(tested.pairing, tested.gains, ps, rule)
    metrics = _metric_quantities(tested, ps[len(quantities.judged) :], rule)
    decision = decide(quantities)
    worst = _worst_metric(tested.metrics, metrics)
    # Slower training explains more energy, and is the heavier finding.
    lost = None if decision.verdict is Verdict.REGRESSED else worst
    verdict = decision.verdict if lost is None else Verdict.REGRESSED
    required = _required_runs(tested.pairing, rule) if verdict is Verdict.INCONCLUSIVE else None
    judged = (*quantities.judged, *metrics)
    remedy = None if required is None else _remedy(required, tested.pairing, decision, rule)
    reason = _reason(tested.pairing, quantities, decision, remedy)
    return Judgement(
        verdict=verdict,
        reason=reason
        if lost is None
        else Statement.of(ReasonCode.METRIC_LOST, metric=lost[1].name, otherwise=reason),
        finding=decision.finding if lost is None else lost[0].kind,
        change=decision.quantity.gain.relative_change(),
        changed_quantity=QuantityName(decision.quantity.name),
        minimum_detectable_loss=_minimum_detectable_loss(quantities, rule),
        further_runs=None if required is None else required.credible,
        metrics=tuple(
            _metric_verdict(metric, quantity)
            for metric, quantity in zip(tested.metrics, metrics, strict=True)
        ),
        excess_losses={quantity.name: quantity.excess_loss for quantity in judged},
        decided_by=(decision.quantity if lost is None else lost[1]).name,
        is_suspect=any(quantity.moved_worse(NAMING_SIGNIFICANCE) for quantity in judged),
    )


def _quantities(
    pairing: Pairing, gains: Gains, ps: Sequence[tuple[_OptionalP, _OptionalP]], rule: _Rule
) -> Quantities:
    limits, key = rule.tolerances.limits, pairing.key

    def quantity(
        name: QuantityName, gain: Difference, row: EntryKey, p: tuple[_OptionalP, _OptionalP]
    ) -> Quantity:
        return Quantity(
            name=name,
            gain=gain,
            p_worse=p[0],
            p_better=p[1],
            limits=limits(row, "speedup" if name is QuantityName.EFFICIENCY else "throughput"),
            rates=rule.rates,
        )

    of_time = QuantityName.THROUGHPUT_ON_1 if key.gpus == 1 else QuantityName.THROUGHPUT
    time = quantity(of_time, gains.time, key, ps[0])
    if gains.speedup is None or gains.reference is None:
        return Quantities(time=time)
    return Quantities(
        time=time,
        speedup=quantity(QuantityName.EFFICIENCY, gains.speedup, key, ps[1]),
        reference=quantity(
            QuantityName.THROUGHPUT_ON_1, gains.reference, pairing.reference_row, (None, None)
        ),
    )


def _metric_quantities(
    tested: _Tested, ps: Sequence[tuple[_OptionalP, _OptionalP]], rule: _Rule
) -> list[Quantity]:
    return [
        Quantity(
            name=metric.kind.name,
            gain=gain,
            p_worse=p_worse,
            p_better=p_better,
            limits=rule.tolerances.limits(metric.key, metric.kind.name),
            rates=rule.rates,
            loss_of=metric.loss_of,
        )
        for metric, gain, (p_worse, p_better) in zip(
            tested.metrics, tested.metric_gains, ps, strict=True
        )
    ]


def _worst_metric(
    metrics: Sequence[MetricPairing], quantities: Sequence[Quantity]
) -> tuple[MetricPairing, Quantity] | None:
    """The metric that is furthest beyond its margin, of those that are significantly worse."""
    worse = [pair for pair in zip(metrics, quantities, strict=True) if pair[1].is_worse]
    return max(worse, key=lambda pair: pair[1].excess_loss, default=None)


def _metric_verdict(metric: MetricPairing, quantity: Quantity) -> MetricVerdict:
    if quantity.is_worse:
        verdict = Verdict.REGRESSED
    elif quantity.is_better:
        verdict = Verdict.IMPROVED
    else:
        verdict = Verdict.OK if quantity.is_ok else Verdict.INCONCLUSIVE
    return MetricVerdict(
        metric=metric.kind,
        verdict=verdict,
        baseline=metric.estimate(metric.baseline),
        current=metric.estimate(metric.current),
        change=metric.change(quantity),
        loss_bound=quantity.loss_bound,
    )


def _required_runs(pairing: Pairing, rule: _Rule) -> RequiredRuns:
    """By the rates of one look, in a session too: both then say the same of the same runs."""
    once = replace(rule, rates=ONE_ANALYSIS)
    ends = (pairing.current, *(pairing.references or ())[1:])
    return required_runs(
        lambda runs: _would_be_settled(pairing, once, runs), made=min(end.count for end in ends)
    )


def _remedy(required: RequiredRuns, pairing: Pairing, decision: Decision, rule: _Rule) -> Statement:
    if required.needed is not None:
        return required.advice
    of_speedup = decision.quantity.name == QuantityName.EFFICIENCY
    spread = pairing.lasting_spread(rule.tolerances, of_speedup=of_speedup)
    return Statement.of(_SPREADS[spread.source], deviation=exponential(spread.deviation) - 1)


def _reason(
    pairing: Pairing, quantities: Quantities, decision: Decision, remedy: Statement | None
) -> Statement:
    if decision.verdict is Verdict.INCONCLUSIVE:
        reason = _uncertain(quantities, decision.quantity, remedy)
    elif decision.finding is None:
        bound = max(quantity.loss_bound or 0.0 for quantity in quantities.judged)
        code = ReasonCode.NO_LOSS if bound <= 0 else ReasonCode.BOUNDED_LOSS
        reason = Statement.of(code, bound=bound)
    else:
        reason = _moved(quantities, decision.finding)
    if pairing.without_speedup is None:
        return reason
    return Statement.of(ReasonCode.SPEEDUP_UNKNOWN, otherwise=reason, why=pairing.without_speedup)


def _moved(quantities: Quantities, finding: Finding) -> Statement:
    speedup, reference = quantities.speedup, quantities.reference
    if speedup is None or reference is None:
        return Statement.of(ReasonCode.MOVED, throughput=-quantities.time.loss)
    return Statement.of(
        _MOVES.get(finding, ReasonCode.MOVED_WITH_EFFICIENCY),
        throughput=-quantities.time.loss,
        efficiency=-speedup.loss,
        reference=-reference.loss,
    )


def _uncertain(quantities: Quantities, quantity: Quantity, remedy: Statement | None) -> Statement:
    change = quantity.gain.relative_change()
    if change.low is None or change.high is None:
        return Statement.of(ReasonCode.SINGLE_RUN)
    code = _missed(quantity, change.high)
    if quantity.is_worse and quantity is quantities.speedup:
        code = ReasonCode.UNKNOWN_END_MOVED
    return Statement.of(
        code,
        quantity=quantity.name,
        change=change.value,
        low=change.low,
        high=change.high,
        margin=quantity.limits.margin,
        ok_bound=quantity.ok_bound,
        significance=quantity.rates.significance,
        p=quantity.p_worse,
        remedy=remedy,
    )


def _missed(quantity: Quantity, highest_change: float) -> ReasonCode:
    """The limit that the quantity misses, on the way to a loss or to a pass."""
    if highest_change >= 0:
        return ReasonCode.LOSS_NOT_EXCLUDED
    if quantity.loss <= quantity.limits.margin or quantity.p_worse is None:
        return ReasonCode.WITHIN_MARGIN
    return ReasonCode.NOT_BEYOND_CHANCE


def _would_be_settled(pairing: Pairing, rule: _Rule, further_runs: int) -> bool:
    gains = pairing.gains(rule.tolerances, further_runs=further_runs)
    # The other rows' p are not known then: the strictest correction is the safe one.
    ps = [
        (rule.corrected(gain.p_below_zero(), weight), rule.corrected(gain.p_above_zero(), weight))
        for gain, weight in ((gains.time, TIME_WEIGHT), (gains.speedup, OTHER_WEIGHT))
        if gain is not None
    ]
    return decide(_quantities(pairing, gains, ps, rule)).verdict is not Verdict.INCONCLUSIVE


def _minimum_detectable_loss(quantities: Quantities, rule: _Rule) -> float | None:
    """The smallest loss that is found 19 times in 20 if it strikes this row alone.

    A lost throughput is found by itself, or by the speedup with the throughput in support.
    """

    def detectable(quantity: Quantity, significance: float) -> float | None:
        return detectable_loss(
            quantity.gain, significance=significance, margin=quantity.limits.margin
        )

    alone = detectable(quantities.time, rule.strictest(TIME_WEIGHT))
    if quantities.speedup is None or alone is None:
        return alone
    by_speedup = detectable(quantities.speedup, rule.strictest(OTHER_WEIGHT))
    support = detectable(quantities.time, rule.rates.significance)
    if by_speedup is None or support is None:
        return alone
    return min(alone, max(by_speedup, support))
