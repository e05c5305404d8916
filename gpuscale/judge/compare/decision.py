"""Tested changes of one row, the rules that make a verdict of them, and the runs it still needs."""

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
    """Confidence of the bound that *ok* puts on a loss."""


TIME_WEIGHT = 1.0
OTHER_WEIGHT = 0.1
"""Share of the family's error for a test of a speedup or metric; a test of T has 1.

If all numbers of GPUs got slower, only the test of T can find it, and it is the less precise one:
nights differ more in T than in S. A lost speedup that T supports is far beyond the limit, and
without T's support it does not count.
"""


def relative_fall(gain: float) -> float:
    """The loss of a quantity that is better when larger; `gain` is log(now / then)."""
    return 1 - exponential(gain)


def relative_rise(gain: float) -> float:
    """The loss of a quantity that is better when smaller; `gain` is log(then / now)."""
    return exponential(-gain) - 1


def loss_in_points(gain: float) -> float:
    """The loss of a quantity that is judged in points, not by logarithms."""
    return -gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """The tested change of one quantity; a gain above 0 is better."""

    name: str
    """A `QuantityName`, or the name of a metric."""
    gain: Difference
    limits: Limits
    rates: ErrorRates
    weight: float = OTHER_WEIGHT
    """Weight in the family."""
    loss_of: Callable[[float], float] = relative_fall
    """Converts a gain to the loss that margins are about."""
    p_worse: float | None = None
    """One-sided, adjusted for the family; None if the spread is unknown."""
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
        """The loss that is reported as ruled out; no reported interval reaches beyond it."""
        low, _ = self.gain.interval() or (0.0, 0.0)
        return max(self.loss_of(low), self.loss_bound or 0.0)

    @property
    def excess_loss(self) -> float:
        """Observed loss beyond the margin; negative within it."""
        return self.loss - self.limits.margin

    @property
    def ok_bound(self) -> float:
        """At least the margin: otherwise some losses could be neither ok nor regressed."""
        return max(self.limits.ok_bound, self.limits.margin)

    @property
    def is_ok(self) -> bool:
        """True if a loss as large as the bound of `ok` is excluded."""
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

        It names the end of a ratio that moved, once the family has shown that the ratio did.
        """
        return _below(self.gain.p_below_zero(), significance) and self.loss > self.limits.margin

    def moved_better(self, significance: float) -> bool:
        """Better by more than the margin, at this one-sided p without regard to the family."""
        return _below(self.gain.p_above_zero(), significance) and -self.loss > self.limits.margin


def _below(probability: float | None, limit: float) -> bool:
    return probability is not None and probability < limit


LIKELIER = 8.0
"""Ratio of likelihoods from which a loss on n GPUs is preferred to a gain on 1 GPU."""
_SMALLEST_TAIL = 1e-12
NAMING_SIGNIFICANCE = 0.05
"""One-sided p at which a move of T(1) is named; no loss is claimed on its strength."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantities:
    """The quantities that are judged together for one row."""

    time: Quantity
    """T(1) on 1 GPU, T(n) on more GPUs."""
    speedup: Quantity | None = None
    reference: Quantity | None = None
    """T(1), for a row on more than 1 GPU; given whenever `speedup` is."""
    beside: tuple[Quantity, ...] = ()
    """T(n) over T(k) for every other k of the case: shows which end of a lost speedup moved."""

    @property
    def tests(self) -> tuple[Quantity, ...]:
        """The quantities that the row itself is judged by."""
        return (self.time,) if self.speedup is None else (self.time, self.speedup)

    def with_tests(self, tests: Iterator[Quantity]) -> "Quantities":
        """The quantities with the next of these in the place of their `tests`, in that order."""
        time = next(tests)
        return replace(self, time=time, speedup=None if self.speedup is None else next(tests))


class Decision(NamedTuple):
    """The verdict, what moved, and the quantity that decided it."""

    verdict: Verdict
    finding: Finding | None
    quantity: Quantity


def decide(quantities: Quantities) -> Decision:
    """The verdict on one row.

    S(n) falls if T(1) improves, so a lost speedup is a regression only if training on n GPUs got
    slower too: significantly by itself, or compared with other numbers of GPUs. Otherwise the
    reference is held responsible.
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
    # The speedup, if both are equally doubtful.
    doubtful = max(quantities.tests[::-1], key=lambda test: (not test.is_ok, _doubt(test)))
    return Decision(Verdict.INCONCLUSIVE, None, doubtful)


def _decide_lost_speedup(quantities: Quantities, speedup: Quantity) -> Decision:
    time, reference = quantities.time, quantities.reference
    significance = time.rates.significance
    # If 1 GPU got faster, n lost nothing relative to k, whatever the night did to all.
    lost_beside = any(quantity.moved_worse(significance) for quantity in quantities.beside)
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

    A loss on n requires a night that affected everything as T(1) shows, a gain on 1 a night that
    affected everything as T(n) shows. The ratio of the likelihoods of these two nights decides.
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
    """The judgement on one row, against measured runs or a published figure."""

    row: MatchedRow
    entry: EntryVerdict
    excess_losses: Mapping[str, float] = field(default_factory=dict)
    """Observed loss beyond the margin, by quantity; negative within it."""
    decided_by: str | None = None
    """The key in `excess_losses` of the quantity that decided."""
    is_suspect: bool = False
    """True if a quantity is worse than its margin, without regard to the family."""


CREDIBLE = 3
"""Runs show their own spread too badly to predict more than this multiple of their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredRuns:
    """The further runs that would settle a row, if they resemble the present ones."""

    needed: int | None
    """About the fewest runs that settle the row; None if none of the tried numbers does."""
    made: int
    """Present runs of the smallest sample."""

    @property
    def credible(self) -> int | None:
        """The needed runs; None if their number is too large to be believed."""
        if self.needed is None or self.needed > CREDIBLE * self.made:
            return None
        return self.needed

    @property
    def advice(self) -> Statement:
        """Advice on a row that further runs can settle."""
        if self.credible is None:
            return Statement.of("unknown_further_runs", too_few=self.made)
        return Statement.of("further_runs", needed=self.credible)


def required_runs(settles: Callable[[int], bool], *, made: int) -> RequiredRuns:
    """The required runs of a row that is inconclusive now; `made` are those of its smallest sample.

    If some number of runs settles a row, larger ones do too, except for rare rows; so the numbers
    are searched by halving.
    """
    if not settles(FURTHER_RUNS[-1]):
        return RequiredRuns(needed=None, made=made)
    place = bisect_left(FURTHER_RUNS, True, hi=len(FURTHER_RUNS) - 1, key=settles)
    return RequiredRuns(needed=FURTHER_RUNS[place], made=made)
