"""Rules that turn a row's tested changes into a verdict."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from gpuscale.analysis.estimates import CONFIDENCE, SIGNIFICANCE, Difference, exponential
from gpuscale.analysis.probabilities import normal_quantile
from gpuscale.analysis.scaling import Entry
from gpuscale.judge.compare.matching import MatchedRow
from gpuscale.records import EntryVerdict, Facts, Finding, Limits, QuantityName, Tolerances, Verdict


class ErrorRates(msgspec.Struct, frozen=True, kw_only=True):
    """The significance and confidence level of one analysis."""

    significance: float = SIGNIFICANCE
    """One-sided p-value, adjusted for multiple testing, below which a change is significant."""
    confidence: float = CONFIDENCE
    """Confidence of the upper bound of the loss, which decides whether the verdict is `ok`."""


TIME_WEIGHT = 1.0
OTHER_WEIGHT = 0.1
"""Weight of a speedup or metric test in the p-value adjustment; a step-time test has weight 1,
since only step times can show a slowdown that all numbers of GPUs share, and they vary more."""


def relative_fall(gain: float) -> float:
    """Convert a gain, log(now / then), to the relative decrease of a higher-is-better quantity."""
    return 1 - exponential(gain)


def relative_rise(gain: float) -> float:
    """Convert a gain, log(then / now), to the relative increase of a lower-is-better quantity."""
    return exponential(-gain) - 1


class Quantity(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The tested change in one quantity, such as step time; a positive gain is an improvement."""

    name: str
    """`QuantityName` of the quantity, or name of a metric."""
    gain: Difference
    assumed_deviation: float | None
    """Deviation between sessions that the gain's error assumes; None if it is estimated."""
    limits: Limits
    rates: ErrorRates
    loss_of: Callable[[float], float] = relative_fall
    """Function that converts a gain to a loss, which is then compared with the margin."""
    p_worse: float | None = None
    """One-sided p-value of a loss, adjusted for multiple testing; None if the spread is unknown."""
    p_better: float | None = None

    @property
    def weight(self) -> float:
        """Weight of the quantity's test in the p-value adjustment."""
        is_time = self.name in (QuantityName.THROUGHPUT, QuantityName.THROUGHPUT_ON_1)
        return TIME_WEIGHT if is_time else OTHER_WEIGHT

    @property
    def loss(self) -> float:
        """The observed change for the worse, as a fraction; negative for an improvement."""
        return self.loss_of(self.gain.value)

    @cached_property
    def loss_bound(self) -> float | None:
        """Upper confidence bound on the true loss; None if the spread is unknown."""
        bound = self.gain.lower_bound(self.rates.confidence)
        return None if bound is None else self.loss_of(bound)

    @cached_property
    def stated_bound(self) -> float:
        """Upper bound of the loss for reports; never inside the confidence interval they show."""
        low, _ = self.gain.interval() or (0.0, 0.0)
        return max(self.loss_of(low), self.loss_bound or 0.0)

    @property
    def excess_loss(self) -> float:
        """Observed loss minus the margin; negative if the loss is within the margin."""
        return self.loss - self.limits.margin

    @property
    def ok_bound(self) -> float:
        """Loss that must be ruled out for the verdict `ok`; never less than the margin."""
        return max(self.limits.ok_bound, self.limits.margin)

    @property
    def is_ok(self) -> bool:
        """True if a slowdown as large as `ok_bound` is ruled out."""
        return self.loss_bound is not None and self.loss_bound < self.ok_bound

    @property
    def is_worse(self) -> bool:
        """True if the quantity is significantly worse, and by more than the margin."""
        return _below(self.p_worse, self.rates.significance) and self.loss > self.limits.margin

    def tolerated_deviation(self, significance: float) -> float | None:
        """Return how far sessions may deviate for a loss to be significant; None if unknown."""
        p, parts = self.gain.p_below_zero(), self.gain.parts or ()
        declared = math.fsum(part.variance for part in parts if math.isinf(part.df))
        if not (declared and self.p_worse and p) or self.p_worse >= significance:
            return None
        level = significance * p / self.p_worse
        runs = replace(self.gain, parts=tuple(part for part in parts if not math.isinf(part.df)))
        room = max(0.0, self.gain.value**2 - (runs.half_width(1 - level) or 0.0) ** 2)
        factor = math.sqrt(room / declared) / normal_quantile(1 - level)
        return (self.assumed_deviation or 0.0) * factor

    @property
    def is_better(self) -> bool:
        """True if the quantity is significantly better, and by more than the margin."""
        return _below(self.p_better, self.rates.significance) and -self.loss > self.limits.margin

    def with_gain(self, value: float) -> "Quantity":
        """Return the quantity as if this gain had been observed, with the same error."""
        return replace(self, gain=replace(self.gain, value=value))

    def moved_worse(self, significance: float) -> bool:
        """True if an unadjusted one-sided test at this level finds a loss beyond the margin."""
        return _below(self.gain.p_below_zero(), significance) and self.loss > self.limits.margin

    def moved_better(self, significance: float) -> bool:
        """True if an unadjusted one-sided test at this level finds a gain beyond the margin."""
        return _below(self.gain.p_above_zero(), significance) and -self.loss > self.limits.margin


def _below(probability: float | None, limit: float) -> bool:
    return probability is not None and probability < limit


class Rule(msgspec.Struct, frozen=True, kw_only=True):
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


LIKELIER = 8.0
"""Likelihood ratio above which a lower speedup counts as a slowdown on n GPUs, not a gain on 1."""
_SMALLEST_TAIL = 1e-12
FEWEST_VALID_RUNS = 2
"""Valid runs that a row with failed runs needs to pass; at least half must also be valid."""
NAMING_SIGNIFICANCE = 0.05
"""One-sided p-value below which a change on 1 GPU is mentioned; too lenient to claim a loss."""


class Quantities(msgspec.Struct, frozen=True, kw_only=True):
    """The quantities that are judged together for one row."""

    time: Quantity
    speedup: Quantity | None = None
    reference: Quantity | None = None
    """Step time on 1 GPU, for a row on more than 1 GPU; set whenever `speedup` is."""
    other_ratios: tuple[Quantity, ...] = ()
    """Ratio of the row's step time to the step time on each other number of GPUs."""

    @property
    def tests(self) -> tuple[Quantity, ...]:
        """The quantities that decide the verdict: the step time and, if known, the speedup."""
        return (self.time,) if self.speedup is None else (self.time, self.speedup)

    def with_tests(self, tests: Iterator[Quantity]) -> "Quantities":
        """Return a copy whose step time and, if any, speedup are the next items of `tests`."""
        time = next(tests)
        return replace(self, time=time, speedup=None if self.speedup is None else next(tests))


class Decision(NamedTuple):
    """A verdict, the finding that explains it, and the quantity that decided it."""

    verdict: Verdict
    finding: Finding | None
    quantity: Quantity


def decide(quantities: Quantities) -> Decision:
    """Decide the verdict on one row.

    A lower speedup is a regression only if training on n GPUs got slower: either significantly, or
    by more than the margin with support from other numbers of GPUs or from a likelihood ratio.
    Otherwise the row passes if 1 GPU became faster instead; if not, it is inconclusive.
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
    # Reversed, so that the speedup is chosen if both are equally doubtful.
    if all(quantity.is_ok for quantity in quantities.tests):
        binding = max(quantities.tests[::-1], key=lambda test: test.stated_bound)
        return Decision(Verdict.OK, None, binding)
    return Decision(Verdict.INCONCLUSIVE, None, max(quantities.tests[::-1], key=_doubt))


def _decide_lost_speedup(quantities: Quantities, speedup: Quantity) -> Decision:
    time, reference = quantities.time, quantities.reference
    significance = time.rates.significance
    # If only 1 GPU got faster, T(n) has not risen relative to T on other numbers of GPUs.
    others_worse = any(quantity.moved_worse(significance) for quantity in quantities.other_ratios)
    is_likelier = reference is not None and _is_loss_likelier(time.gain, reference.gain)
    if time.moved_worse(significance) or (time.excess_loss > 0 and (others_worse or is_likelier)):
        return Decision(Verdict.REGRESSED, Finding.SCALING_LOSS, speedup)
    reference_is_faster = reference is not None and reference.moved_better(NAMING_SIGNIFICANCE)
    if reference_is_faster and (time.is_ok or time.is_better):
        verdict = Verdict.IMPROVED if time.is_better else Verdict.OK
        return Decision(verdict, Finding.REFERENCE_FASTER, time)
    return Decision(Verdict.INCONCLUSIVE, None, speedup)


def _is_loss_likelier(time: Difference, reference: Difference) -> bool:
    """True if a lower speedup is far likelier due to a slowdown on n GPUs than to a gain on 1 GPU.

    All step times may also shift from night to night. If n GPUs got slower, step times on 1 GPU
    show only this shift; if 1 GPU got faster, step times on n GPUs show only this shift.
    """
    p_of_time, p_of_reference = time.p_below_zero(), reference.p_below_zero()
    if p_of_time is None or p_of_reference is None:
        return False
    of_time, of_reference = (
        normal_quantile(min(max(p, _SMALLEST_TAIL), 1 - _SMALLEST_TAIL))
        for p in (p_of_time, p_of_reference)
    )
    return of_time**2 - of_reference**2 > 2 * math.log(LIKELIER)


def _slowdown(quantities: Quantities) -> Finding:
    if quantities.time.name == QuantityName.THROUGHPUT_ON_1:
        return Finding.SINGLE_GPU_SLOWDOWN
    reference, speedup = quantities.reference, quantities.speedup
    reference_is_slower = reference is not None and reference.moved_worse(NAMING_SIGNIFICANCE)
    # With the stricter confidence of an interim analysis, equal runs could get another finding.
    rates = replace(quantities.time.rates, confidence=CONFIDENCE)
    if reference_is_slower and speedup is not None and replace(speedup, rates=rates).is_ok:
        return Finding.SINGLE_GPU_SLOWDOWN
    return Finding.SLOWER_TRAINING


def _doubt(quantity: Quantity) -> tuple[bool, bool, float]:
    """Return a sort key, surest `ok` first: (not `ok`, likely worse, upper bound of the loss)."""
    bound = math.inf if quantity.loss_bound is None else quantity.loss_bound
    return not quantity.is_ok, quantity.moved_worse(NAMING_SIGNIFICANCE / 2), bound


def too_few_valid_runs(entry: Entry | None) -> Facts | None:
    """Return an entry's run counts if it has too few valid runs to pass; otherwise None."""
    if entry is None:
        return None
    valid, failed = entry.point.valid_runs, len(entry.failed)
    if not failed or valid >= max(failed, FEWEST_VALID_RUNS):
        return None
    kinds = Counter("" if run.failure is None else run.failure.kind for run in entry.failed)
    return {"valid": valid, "made": valid + failed, "failures": kinds}


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """A row's verdict and observed losses, judged against measured runs or a published figure."""

    row: MatchedRow
    entry: EntryVerdict
    excess_losses: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Observed loss minus the margin, by name of the quantity."""
    decided_by: str | None = None
    """Key in `excess_losses` of the quantity that decided the verdict."""
    assumed_deviation: float | None = None
    """Deviation between sessions that the change's error assumes; None if it is estimated."""
    tolerated_deviation: float | None = None
    """Deviation between sessions up to which a found loss stays significant; None if unknown."""
    is_suspect: bool = False
    """True if a test without multiple-testing adjustment finds a loss beyond the margin."""
