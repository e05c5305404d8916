"""Tested changes of one row, the rules that make one verdict of them, and what would settle it."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpuscale.analysis.statistics.distributions import normal_quantile
from gpuscale.analysis.statistics.estimates import (
    CONFIDENCE,
    FURTHER_RUNS,
    SIGNIFICANCE,
    Difference,
    exponential,
)
from gpuscale.judge.compare.matching import MatchedRow
from gpuscale.records import EntryVerdict, Finding, Limits, QuantityName, Statement, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRates:
    """The nominal error rates of one analysis."""

    significance: float = SIGNIFICANCE
    """One-sided p, adjusted for the family, below which a change counts."""
    confidence: float = CONFIDENCE
    """Of the bound that *ok* puts on a loss."""


TIME_WEIGHT = 1.0
OTHER_WEIGHT = 0.1
"""The share of the family's error for a test of a speedup or metric; that of T has 1.

Where training got slower, only the test of T can find it if all numbers of GPUs did, and it is
the less sure one: nights differ more in T than in S. A lost speedup is far beyond the limit
where T supports it, and T must.
"""


def relative_fall(gain: float) -> float:
    """The loss of what is better when larger; `gain` is the logarithm of now over then."""
    return 1 - exponential(gain)


def relative_rise(gain: float) -> float:
    """The loss of what is better when smaller; `gain` is the logarithm of then over now."""
    return exponential(-gain) - 1


def loss_in_points(gain: float) -> float:
    """The loss of what is judged in points, and not by logarithms."""
    return -gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """The tested change of one quantity; a gain above 0 is better."""

    name: str
    """A `QuantityName`, or that of a metric."""
    gain: Difference
    limits: Limits
    rates: ErrorRates
    weight: float = OTHER_WEIGHT
    """In the family."""
    loss_of: Callable[[float], float] = relative_fall
    """From a gain to the loss that margins are about."""
    p_worse: float | None = None
    """One-sided and adjusted for the family; None where nothing tells the spread."""
    p_better: float | None = None

    @property
    def loss(self) -> float:
        """The observed loss, as a fraction; negative for a gain."""
        return self.loss_of(self.gain.value)

    @property
    def loss_bound(self) -> float | None:
        """The loss that the truth does not exceed, with the confidence of one look (95%)."""
        bound = self.gain.lower_bound(self.rates.confidence)
        return None if bound is None else self.loss_of(bound)

    @property
    def stated_bound(self) -> float:
        """The loss that is called ruled out: no interval that is shown reaches below it."""
        low, _ = self.gain.interval() or (0.0, 0.0)
        return max(self.loss_of(low), self.loss_bound or 0.0)

    @property
    def excess_loss(self) -> float:
        """By how much the observed loss lies beyond the margin; negative within it."""
        return self.loss - self.limits.margin

    @property
    def ok_bound(self) -> float:
        """The bound of `ok`: at least the margin, or a loss within it could be neither."""
        return max(self.limits.ok_bound, self.limits.margin)

    @property
    def is_ok(self) -> bool:
        """True where a loss as large as the bound of `ok` is excluded."""
        return self.loss_bound is not None and self.loss_bound < self.ok_bound

    @property
    def is_worse(self) -> bool:
        """Significantly worse, and by more than the margin."""
        return _below(self.p_worse, self.rates.significance) and self.loss > self.limits.margin

    @property
    def is_better(self) -> bool:
        """Significantly better, and by more than the margin."""
        return _below(self.p_better, self.rates.significance) and -self.loss > self.limits.margin

    def moved_worse(self, significance: float) -> bool:
        """Worse by more than the margin, at this one-sided p without regard to the family.

        It says which end of a ratio moved once the family has told that the ratio did.
        """
        return _below(self.gain.p_below_zero(), significance) and self.loss > self.limits.margin

    def moved_better(self, significance: float) -> bool:
        """The same for the better."""
        return _below(self.gain.p_above_zero(), significance) and -self.loss > self.limits.margin


def _below(probability: float | None, limit: float) -> bool:
    return probability is not None and probability < limit


LIKELIER = 8.0
"""Ratio of likelihoods from which a loss on n GPUs is believed rather than a gain on 1 GPU."""
_SMALLEST_TAIL = 1e-12
NAMING_SIGNIFICANCE = 0.05
"""One-sided p at which T(1) is named as what moved; no loss is claimed on its strength."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantities:
    """The quantities that are judged together for one row."""

    time: Quantity
    """T(1) on 1 GPU, T(n) on more."""
    speedup: Quantity | None = None
    reference: Quantity | None = None
    """T(1), for a row on more GPUs; given whenever `speedup` is."""
    beside: tuple[Quantity, ...] = ()
    """T(n) over each T(k) of the same case, which tell of a lost speedup which end moved."""

    @property
    def tests(self) -> tuple[Quantity, ...]:
        """The quantities that the row itself is judged by."""
        return (self.time,) if self.speedup is None else (self.time, self.speedup)

    def with_tests(self, tests: Iterator[Quantity]) -> "Quantities":
        """The quantities with the next of these, in the order of `tests`, in their place."""
        time = next(tests)
        return replace(self, time=time, speedup=None if self.speedup is None else next(tests))


class Decision(NamedTuple):
    """The verdict, what moved, and the quantity that decided it."""

    verdict: Verdict
    finding: Finding | None
    quantity: Quantity


def decide(quantities: Quantities) -> Decision:
    """The verdict on one row.

    S(n) falls when T(1) improves, so a lost speedup is a regression only where the training on
    n GPUs got slower as well: surely by itself, or beside the other numbers of GPUs. Otherwise
    it is put down to the reference.
    """
    time, speedup = quantities.time, quantities.speedup
    if speedup is not None and speedup.is_worse:
        return _decide_lost_speedup(quantities, speedup)
    if time.is_worse:
        return Decision(Verdict.REGRESSED, _slowdown(quantities), time)
    if time.is_better:
        return Decision(Verdict.IMPROVED, Finding.FASTER, time)
    if speedup is not None and speedup.is_better and time.moved_better(time.rates.significance):
        return Decision(Verdict.IMPROVED, Finding.FASTER, speedup)
    if all(quantity.is_ok for quantity in quantities.tests):
        return Decision(Verdict.OK, None, speedup or time)
    # Of two that are as doubtful the speedup.
    doubtful = max(quantities.tests[::-1], key=lambda each: (not each.is_ok, _doubt(each)))
    return Decision(Verdict.INCONCLUSIVE, None, doubtful)


def _decide_lost_speedup(quantities: Quantities, speedup: Quantity) -> Decision:
    time, reference = quantities.time, quantities.reference
    significance = time.rates.significance
    # Had 1 GPU got faster, n would have lost nothing beside k, whatever the night did to all.
    lost_beside = any(each.moved_worse(significance) for each in quantities.beside)
    is_likelier = reference is not None and _is_loss_likelier(time.gain, reference.gain)
    if time.moved_worse(significance) or (time.excess_loss > 0 and (lost_beside or is_likelier)):
        return Decision(Verdict.REGRESSED, Finding.SCALING_LOSS, speedup)
    reference_is_faster = reference is not None and reference.moved_better(NAMING_SIGNIFICANCE)
    if reference_is_faster and (time.is_ok or time.is_better):
        verdict = Verdict.IMPROVED if time.is_better else Verdict.OK
        return Decision(verdict, Finding.REFERENCE_FASTER, time)
    return Decision(Verdict.INCONCLUSIVE, None, speedup)


def _is_loss_likelier(time: Difference, reference: Difference) -> bool:
    """True if a lost speedup is far likelier a loss on n GPUs than a gain on 1 GPU.

    A loss on n takes a night that did to all what T(1) shows, a gain on 1 what T(n) shows. The
    ratio of the likelihoods of these two nights decides.
    """
    p_of_time, p_of_reference = time.p_below_zero(), reference.p_below_zero()
    if p_of_time is None or p_of_reference is None:
        return False
    of_time, of_reference = map(_normal_deviate, (p_of_time, p_of_reference))
    return of_time < 0 and of_time**2 - of_reference**2 > 2 * math.log(LIKELIER)


def _normal_deviate(probability: float) -> float:
    return normal_quantile(min(max(probability, _SMALLEST_TAIL), 1 - _SMALLEST_TAIL))


def _slowdown(quantities: Quantities) -> Finding:
    if quantities.time.name == QuantityName.THROUGHPUT_ON_1:
        return Finding.SINGLE_GPU_SLOWDOWN
    reference, speedup = quantities.reference, quantities.speedup
    reference_is_slower = reference is not None and reference.moved_worse(NAMING_SIGNIFICANCE)
    if reference_is_slower and speedup is not None and speedup.is_ok:
        return Finding.SINGLE_GPU_SLOWDOWN
    return Finding.SLOWER_TRAINING


def _doubt(quantity: Quantity) -> float:
    return math.inf if quantity.loss_bound is None else quantity.loss_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The judgement on one row, whatever kind of baseline the row stood against."""

    row: MatchedRow
    entry: EntryVerdict
    excess_losses: Mapping[str, float] = field(default_factory=dict)
    """By how much each judged quantity lies beyond its margin, to the worse; negative within."""
    decided_by: str | None = None
    """The key in `excess_losses` of what a loss was found by."""
    is_suspect: bool = False
    """Something is worse than its margin, without regard to the family."""


CREDIBLE = 3
"""Runs tell their own spread too badly to foresee more than so many times their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredRuns:
    """The further runs that would settle a row, were they like those that there are."""

    needed: int | None
    """About the fewest that do; None where none of the numbers tried does."""
    made: int
    """Runs now, of the sample that has the fewest."""

    @property
    def credible(self) -> int | None:
        """The number, where it can be believed."""
        if self.needed is None or self.needed > CREDIBLE * self.made:
            return None
        return self.needed

    @property
    def advice(self) -> Statement:
        """The advice on a row that runs can settle."""
        if self.credible is None:
            return Statement.of("unknown_further_runs", too_few=self.made)
        return Statement.of("further_runs", needed=self.credible)


def required_runs(settles: Callable[[int], bool], *, made: int) -> RequiredRuns:
    """The required runs of a row that is inconclusive now, with so many runs of the fewest.

    More runs settle what fewer do, but for rare rows; so the numbers are halved, not tried all.
    """
    if not settles(FURTHER_RUNS[-1]):
        return RequiredRuns(needed=None, made=made)
    place = bisect_left(FURTHER_RUNS, True, hi=len(FURTHER_RUNS) - 1, key=settles)
    return RequiredRuns(needed=FURTHER_RUNS[place], made=made)
