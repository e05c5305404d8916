"""Judge step times, speedups and metrics against measured runs, corrected for multiple testing."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuscale.analysis.scaling import References, level_of
from gpuscale.analysis.statistics.estimates import FURTHER_RUNS, Difference
from gpuscale.analysis.statistics.significance import benjamini_hochberg, detectable_loss
from gpuscale.judge.compare.decision import (
    NAMING_SIGNIFICANCE,
    OTHER_WEIGHT,
    TIME_WEIGHT,
    Decision,
    ErrorRates,
    Judgement,
    Quantities,
    Quantity,
    RequiredRuns,
    decide,
    required_runs,
)
from gpuscale.judge.compare.matching import MatchedRow, usual_logs
from gpuscale.judge.compare.other_metrics import MetricChange, metric_changes
from gpuscale.judge.compare.spread import (
    RunSample,
    SideSample,
    estimates_allocations,
    gain_of,
    largest_spread,
    moderated_samples,
)
from gpuscale.judge.sides import Sides
from gpuscale.records import (
    EntryVerdict,
    Estimate,
    Finding,
    Limits,
    MetricSpec,
    PointKey,
    QuantityName,
    Statement,
    Tolerances,
    Verdict,
)
from gpuscale.records.tolerances import SPEEDUP, THROUGHPUT

_MOVED_CODES = {
    Finding.SCALING_LOSS: "scaling_lost",
    Finding.SINGLE_GPU_SLOWDOWN: "each_gpu_slower",
    Finding.REFERENCE_FASTER: "reference_faster",
}


_EVEN_ODDS = 0.5
"""One-sided p-value if no change is observed (0.5); any observed loss has a smaller one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """Tolerances, error rates and total test weight of one comparison."""

    tolerances: Tolerances
    rates: ErrorRates
    family_weight: float
    """Sum of the weights of all tests in the comparison."""

    def strictest(self, weight: float) -> float:
        """Return the p-value limit for a test of this weight if no other test is significant."""
        return self.rates.significance * weight / self.family_weight

    def alone(self, test: Quantity) -> Quantity:
        """Return the test with p-values adjusted as if no other test were significant."""
        worse, better = (
            None if p is None else min(1.0, p * self.family_weight / test.weight)
            for p in (test.gain.p_below_zero(), test.gain.p_above_zero())
        )
        return replace(test, p_worse=worse, p_better=better)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairing:
    """Both sides of one row, with the runs on 1 GPU if both sides have them."""

    row: MatchedRow
    before: SideSample
    after: SideSample
    without_speedup: Statement | None = None
    """Reason why the speedup cannot be judged; None if it can, or if the row is on 1 GPU."""
    batches: float | None = None
    """Ratio of the baseline's global batches on n GPUs and 1 GPU; None if no speedup is judged."""
    beside: Sequence[tuple[RunSample, RunSample]] = ()
    """Baseline and current samples for each other number of GPUs with the same 1-GPU reference."""

    def quantities(
        self, tolerances: Tolerances, rates: ErrorRates, *, further_runs: int = 0
    ) -> Quantities:
        """Compute the changes, without p-values, as if `further_runs` left the means unchanged."""
        key, before, after = self.row.key, self.before, self.after.with_further_runs(further_runs)

        def change(
            name: QuantityName,
            limits: Limits,
            then: tuple[RunSample, ...],
            now: tuple[RunSample, ...],
            apart: float = 0.0,
        ) -> Quantity:
            sides, deviation = (SideSample(then), SideSample(now)), limits.allocation_deviation
            gain = gain_of(*sides, deviation=deviation, deviation_apart=apart)
            weight = OTHER_WEIGHT if name is QuantityName.EFFICIENCY else TIME_WEIGHT
            return Quantity(name=name, gain=gain, limits=limits, rates=rates, weight=weight)

        name = QuantityName.THROUGHPUT_ON_1 if key.gpus == 1 else QuantityName.THROUGHPUT
        of_time = tolerances.limits(key, THROUGHPUT)
        time = change(name, of_time, before.ends[:1], after.ends[:1])
        if len(before.ends) == 1:
            return Quantities(time=time)
        of_one = tolerances.limits(key._replace(gpus=1), THROUGHPUT)
        of_speedup = tolerances.limits(key, SPEEDUP)
        apart = max(of_time.allocation_deviation, of_one.allocation_deviation)
        return Quantities(
            time=time,
            speedup=change(QuantityName.EFFICIENCY, of_speedup, before.ends, after.ends, apart),
            reference=change(QuantityName.THROUGHPUT_ON_1, of_one, before.ends[1:], after.ends[1:]),
            beside=tuple(
                change(
                    QuantityName.EFFICIENCY,
                    of_speedup,
                    (before.ends[0], then),
                    (after.ends[0], now.with_further_runs(further_runs)),
                    apart,
                )
                for then, now in self.beside
            ),
        )

    def verdict_of(self, verdict: Verdict, reason: Statement) -> EntryVerdict:
        """Build the record of this verdict, with the baseline values that the change refers to."""
        entry = self.row.verdict_of(verdict, reason)
        assert self.row.before is not None, "a row of measured runs has them on both sides"
        level = level_of(self.row.before.key, self._usual(1))
        shown = replace(
            entry.baseline,
            value=level.value,
            unit=level.unit,
            step_time_s=level.step_time_s,
            samples_per_s=level.samples_per_s,
        )
        if self.batches is not None:
            speedup = self._usual(2).inverse(self.batches)
            efficiency = speedup.scaled(1 / self.row.key.gpus)
            shown = replace(shown, speedup=speedup, efficiency=efficiency)
        return replace(entry, baseline=shown)

    def _usual(self, ends: int) -> Estimate:
        """Estimate the baseline's T(n) if `ends` is 1, or its T(n)/T(1) if `ends` is 2."""
        before, after = (SideSample(side.ends[:ends]) for side in (self.before, self.after))
        return before.own_estimate(estimates_allocations(before, after)).exponential()

    def lasting_spread(self, rule: _Rule, *, of_speedup: bool) -> Statement:
        """Find the spread that keeps the step time or speedup uncertain after many more runs."""
        most = FURTHER_RUNS[-1]
        quantities = self.quantities(rule.tolerances, rule.rates, further_runs=most)
        if of_speedup and quantities.speedup is not None:
            gain = quantities.speedup.gain
            return largest_spread(self.before, self.after, gain, further_runs=most)
        alone = SideSample(self.before.ends[:1]), SideSample(self.after.ends[:1])
        return largest_spread(*alone, quantities.time.gain, further_runs=most)


def judge_measured(rows: Sequence[MatchedRow], sides: Sides, rates: ErrorRates) -> list[Judgement]:
    """Judge the rows, all of which have valid runs on both sides.

    The tests of all rows form one family: Benjamini and Hochberg's method adjusts the p-values.
    """
    tolerances = sides.baseline.tolerances
    pairings = _pairings(rows, sides)
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


def _pairings(rows: Sequence[MatchedRow], sides: Sides) -> list[_Pairing]:
    """Pair the baseline and current samples of each row; all rows have valid runs on both sides.

    Each sample's variance is moderated by all other samples, even those of rows that are not
    judged, since all of them show how much runs differ. Outlying runs are excluded from the
    baseline only: in the results, they may be the loss.
    """
    before, after = sides.before.by_point, sides.after.by_point
    configurations = {entry.key.configuration for entry in sides.before.entries}
    then, now = moderated_samples(
        {key: usual_logs(entry, after.get(key)) for key, entry in before.items()},
        {key: entry.logs for key, entry in after.items() if key.configuration in configurations},
    )
    references = References(before), References(after)
    points, same_ones = [], defaultdict(list)
    for row in rows:
        assert row.before is not None, "a row of measured runs has them on both sides"
        assert row.after is not None, "a row of measured runs has them on both sides"
        keys = row.before.key, row.after.key
        ones = references[0].of(keys[0]), references[1].of(keys[1])
        points.append((row, keys, ones))
        if row.key.gpus > 1:
            same_ones[ones].append(keys)
    pairings = []
    for row, keys, ones in points:
        # Tests of other tools often have the number of GPUs in their name, so T(1) is elsewhere.
        is_alone = row.key.gpus == 1 or not keys[0].configuration.has_speedup
        is_alone |= keys[0].configuration.metric is not None and ones == (None, None)
        why = None if is_alone else _why_without_speedup(*ones)
        used = [keys] if is_alone or why is not None else [keys, ones]
        old, new = (
            SideSample(tuple(side[key] for key in of_side if key is not None))
            for side, of_side in zip((then, now), zip(*used, strict=True), strict=True)
        )
        batches = None
        if len(used) > 1 and ones[0] is not None:
            batches = keys[0].global_batch / ones[0].global_batch
        beside = [(then[other[0]], now[other[1]]) for other in same_ones[ones] if other != keys]
        pairings.append(
            _Pairing(
                row=row,
                before=old,
                after=new,
                without_speedup=why,
                batches=batches,
                beside=beside,
            )
        )
    return pairings


def _why_without_speedup(before: PointKey | None, now: PointKey | None) -> Statement | None:
    if before is None and now is None:
        return Statement.of("neither_on_1_gpu")
    if before is None:
        return Statement.of("baseline_not_on_1_gpu")
    if now is None:
        return Statement.of("results_not_on_1_gpu")
    then, today = before.batch_per_gpu, now.batch_per_gpu
    return None if then == today else Statement.of("other_batch_on_1_gpu", before=then, now=today)


def _adjusted(tests: Sequence[Quantity]) -> Iterator[Quantity]:
    """Yield the tests with adjusted p-values, which are None for tests of unknown spread."""
    weights = [test.weight for test in tests if test.gain.parts is not None]
    worse, better = (
        iter(
            benjamini_hochberg([p for test in tests if (p := p_of(test.gain)) is not None], weights)
        )
        for p_of in (Difference.p_below_zero, Difference.p_above_zero)
    )
    for test in tests:
        known = test.gain.parts is not None
        yield replace(test, p_worse=next(worse), p_better=next(better)) if known else test


def _judgement(
    pairing: _Pairing, quantities: Quantities, metrics: Sequence[MetricChange], rule: _Rule
) -> Judgement:
    decision = decide(quantities)
    verdict, decided_by = decision.verdict, decision.quantity.name
    finding: Finding | MetricSpec | None = decision.finding
    # Slower training explains more energy, and takes precedence.
    worse = [metric for metric in metrics if metric.quantity.is_worse and not verdict.is_loss]
    lost = max(worse, key=lambda metric: metric.quantity.excess_loss, default=None)
    required = remedy = None
    if verdict is Verdict.INCONCLUSIVE and lost is None:
        required = _required_runs(pairing, rule)
        remedy = required.advice
        if required.needed is None:
            # If a speedup is certainly lost, the throughput has to show which end changed.
            of_speedup = decided_by == QuantityName.EFFICIENCY and not decision.quantity.is_worse
            remedy = pairing.lasting_spread(rule, of_speedup=of_speedup)
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
            further_runs=None if required is None else required.credible,
            metrics=tuple(metric.verdict for metric in metrics),
        ),
        excess_losses={quantity.name: quantity.excess_loss for quantity in judged},
        decided_by=decided_by,
        is_suspect=any(quantity.moved_worse(NAMING_SIGNIFICANCE) for quantity in judged),
    )


def _required_runs(pairing: _Pairing, rule: _Rule) -> RequiredRuns:
    """Estimate how many more runs are needed, at the error rates of a single comparison."""

    def settles(further_runs: int) -> bool:
        rates = ErrorRates(significance=rule.tolerances.significance)
        grown = pairing.quantities(rule.tolerances, rates, further_runs=further_runs)
        # The p-values of other rows are unknown then, so the strictest correction is used.
        tested = grown.with_tests(map(rule.alone, grown.tests))
        return decide(tested).verdict is not Verdict.INCONCLUSIVE

    return required_runs(settles, made=min(sample.count for sample in pairing.after.ends))


def _reason(
    pairing: _Pairing, quantities: Quantities, decision: Decision, remedy: Statement | None
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
    if speedup is None or reference is None:
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
    else:
        code = "not_beyond_chance"
    return Statement.of(
        code,
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

    A loss is found in the step time alone, or in the speedup if the step time supports it. Any
    increase in step time is support enough if other numbers of GPUs support the loss too.
    """

    def detectable(quantity: Quantity, significance: float) -> float | None:
        margin = quantity.limits.margin
        return detectable_loss(quantity.gain, significance=significance, margin=margin)

    time, speedup, significance = quantities.time, quantities.speedup, rule.rates.significance
    alone = detectable(time, rule.strictest(TIME_WEIGHT))
    by_speedup = None if speedup is None else detectable(speedup, rule.strictest(OTHER_WEIGHT))
    supported, seen = detectable(time, significance), detectable(time, _EVEN_ODDS)
    if alone is None or by_speedup is None or supported is None or seen is None:
        return alone
    beside = [detectable(quantity, significance) for quantity in quantities.beside]
    support = min([supported, *(max(loss, seen) for loss in beside if loss is not None)])
    return min(alone, max(by_speedup, support))
