"""Tested changes of one row, the rules that turn them into a verdict, and the runs still needed."""

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
    """One-sided p-value, adjusted for the family of tests, below which a change counts."""
    confidence: float = CONFIDENCE
    """Confidence of the upper bound of the loss, which decides whether the verdict is `ok`."""


TIME_WEIGHT = 1.0
OTHER_WEIGHT = 0.1
"""Weight of a test of a speedup or metric in the family of tests; a test of a step time has 1.

If all numbers of GPUs got slower, only tests of step times can show it. They need more weight since
nights differ more in step time than in speedup. Tests of speedups need less: a lost speedup counts
only if the step time supports it, and is then far beyond the limit.
"""


def relative_fall(gain: float) -> float:
    """Return the loss of a quantity that is better when larger; `gain` is log(now / then)."""
    return 1 - exponential(gain)


def relative_rise(gain: float) -> float:
    """Return the loss of a quantity that is better when smaller; `gain` is log(then / now)."""
    return exponential(-gain) - 1


def loss_in_points(gain: float) -> float:
    """Return the loss of a quantity that is judged by differences rather than by logarithms."""
    return -gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """The tested change of one quantity; a positive gain is an improvement."""

    name: str
    """A `QuantityName`, or the name of a metric."""
    gain: Difference
    limits: Limits
    rates: ErrorRates
    weight: float = OTHER_WEIGHT
    """Weight of the test in the family of tests."""
    loss_of: Callable[[float], float] = relative_fall
    """Function that converts a gain to the loss that margins refer to."""
    p_worse: float | None = None
    """One-sided p-value, adjusted for the family of tests; None if the spread is unknown."""
    p_better: float | None = None

    @property
    def loss(self) -> float:
        """The observed loss, as a fraction; negative for a gain."""
        return self.loss_of(self.gain.value)

    @property
    def loss_bound(self) -> float | None:
        """Upper confidence bound of the true loss; None if the spread is unknown."""
        bound = self.gain.lower_bound(self.rates.confidence)
        return None if bound is None else self.loss_of(bound)

    @property
    def stated_bound(self) -> float:
        """Loss that reports call ruled out; no reported interval extends beyond it."""
        low, _ = self.gain.interval() or (0.0, 0.0)
        return max(self.loss_of(low), self.loss_bound or 0.0)

    @property
    def excess_loss(self) -> float:
        """Observed loss beyond the margin; negative within the margin."""
        return self.loss - self.limits.margin

    @property
    def ok_bound(self) -> float:
        """Loss that `ok` must rule out; at least the margin, above which a loss is a regression."""
        return max(self.limits.ok_bound, self.limits.margin)

    @property
    def is_ok(self) -> bool:
        """True if a loss as large as `ok_bound` is ruled out."""
        return self.loss_bound is not None and self.loss_bound < self.ok_bound

    @property
    def is_worse(self) -> bool:
        """True if the quantity is significantly worse, and by more than the margin."""
        return _below(self.p_worse, self.rates.significance) and self.loss > self.limits.margin

    @property
    def is_better(self) -> bool:
        """True if the quantity is significantly better, and by more than the margin."""
        return _below(self.p_better, self.rates.significance) and -self.loss > self.limits.margin

    def moved_worse(self, significance: float) -> bool:
        """True if worse by more than the margin in an unadjusted test at this one-sided level.

        Shows which end of a ratio changed, once the adjusted test has shown that the ratio did.
        """
        return _below(self.gain.p_below_zero(), significance) and self.loss > self.limits.margin

    def moved_better(self, significance: float) -> bool:
        """Like `moved_worse`, but true if better by more than the margin."""
        return _below(self.gain.p_above_zero(), significance) and -self.loss > self.limits.margin


def _below(probability: float | None, limit: float) -> bool:
    return probability is not None and probability < limit


LIKELIER = 8.0
"""Likelihood ratio above which a lost speedup is taken for a loss on n GPUs, not a gain on 1."""
_SMALLEST_TAIL = 1e-12
NAMING_SIGNIFICANCE = 0.05
"""One-sided p-value below which a change of T(1) is named; it is not enough to claim a loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantities:
    """The quantities that are judged together for one row."""

    time: Quantity
    """Step time on the row's number of GPUs."""
    speedup: Quantity | None = None
    reference: Quantity | None = None
    """Step time on 1 GPU, for a row on more than 1 GPU; set whenever `speedup` is."""
    beside: tuple[Quantity, ...] = ()
    """Step time over that on every other number of GPUs; shows which end of a speedup changed."""

    @property
    def tests(self) -> tuple[Quantity, ...]:
        """The quantities by which the row itself is judged."""
        return (self.time,) if self.speedup is None else (self.time, self.speedup)

    def with_tests(self, tests: Iterator[Quantity]) -> "Quantities":
        """Return a copy whose `tests` are replaced, in order, by the next items of the iterator."""
        time = next(tests)
        return replace(self, time=time, speedup=None if self.speedup is None else next(tests))


class Decision(NamedTuple):
    """A verdict, the finding that explains it, and the quantity that decided it."""

    verdict: Verdict
    finding: Finding | None
    quantity: Quantity


def decide(quantities: Quantities) -> Decision:
    """Decide the verdict on one row.

    S(n) falls if T(1) improves, so a lost speedup is a regression only if training on n GPUs got
    slower too: significantly by itself, or compared with other numbers of GPUs. Otherwise the
    change is put down to the reference.
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
    # Reversed, so that the speedup is chosen if both are equally doubtful.
    doubtful = max(quantities.tests[::-1], key=lambda test: (not test.is_ok, _doubt(test)))
    return Decision(Verdict.INCONCLUSIVE, None, doubtful)


def _decide_lost_speedup(quantities: Quantities, speedup: Quantity) -> Decision:
    time, reference = quantities.time, quantities.reference
    significance = time.rates.significance
    # If 1 GPU got faster, n GPUs lost nothing relative to other numbers, whatever the night.
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
    """True if a lost speedup is far more likely a loss on n GPUs than a gain on 1 GPU.

    If n GPUs got slower, the night as a whole changed step times as T(1) shows; if 1 GPU got
    faster, as T(n) shows. The likelihood ratio of these two changes decides.
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
    """Observed loss beyond the margin, by quantity; negative within the margin."""
    decided_by: str | None = None
    """Key in `excess_losses` of the quantity that decided the verdict."""
    is_suspect: bool = False
    """True if an unadjusted test finds a quantity worse by more than its margin."""


CREDIBLE = 3
"""Largest trusted prediction, as a multiple of the runs made; few runs estimate spread poorly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredRuns:
    """Number of further runs that would settle a row, if they resemble the present runs."""

    needed: int | None
    """Approximate minimum number that settles the row; None if no number tried does."""
    made: int
    """Number of present runs in the smallest sample."""

    @property
    def credible(self) -> int | None:
        """The needed number of runs; None if it is too large to be trusted."""
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
    """Find how many further runs settle an inconclusive row; its smallest sample has `made`.

    A binary search: if some number of runs settles a row, larger numbers almost always do too.
    """
    if not settles(FURTHER_RUNS[-1]):
        return RequiredRuns(needed=None, made=made)
    place = bisect_left(FURTHER_RUNS, True, hi=len(FURTHER_RUNS) - 1, key=settles)
    return RequiredRuns(needed=FURTHER_RUNS[place], made=made)
