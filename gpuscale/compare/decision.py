"""The rules that turn tested changes of T(1), T(n) and S(n) into one verdict with a finding."""

import math
from dataclasses import dataclass

from gpuscale.compare.quantity import Quantity
from gpuscale.records import Finding, QuantityName, Verdict

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

    @property
    def judged(self) -> tuple[Quantity, ...]:
        """The quantities that the row itself is judged by."""
        return (self.time,) if self.speedup is None else (self.speedup, self.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdict, what moved, and the quantity that decided it."""

    verdict: Verdict
    finding: Finding | None
    quantity: Quantity


def decide(quantities: Quantities) -> Decision:
    """The verdict on one row.

    S(n) falls when T(1) improves, so a lost speedup is a regression only where the training on
    n GPUs got slower as well, and otherwise is put down to the reference.
    """
    time, speedup, reference = quantities.time, quantities.speedup, quantities.reference
    if speedup is not None and speedup.is_worse:
        return _decide_lost_speedup(speedup, time, reference)
    if time.is_worse:
        return Decision(verdict=Verdict.REGRESSED, finding=_slowdown(quantities), quantity=time)
    if time.is_better:
        return Decision(verdict=Verdict.IMPROVED, finding=Finding.FASTER, quantity=time)
    if speedup is not None and speedup.is_better and time.moved_better(time.rates.significance):
        return Decision(verdict=Verdict.IMPROVED, finding=Finding.FASTER, quantity=speedup)
    if all(quantity.is_ok for quantity in quantities.judged):
        return Decision(verdict=Verdict.OK, finding=None, quantity=quantities.judged[0])
    return Decision(
        verdict=Verdict.INCONCLUSIVE,
        finding=None,
        quantity=max(quantities.judged, key=lambda each: (not each.is_ok, _doubt(each))),
    )


def _decide_lost_speedup(speedup: Quantity, time: Quantity, reference: Quantity | None) -> Decision:
    if time.is_worse or time.moved_worse(time.rates.significance):
        return Decision(verdict=Verdict.REGRESSED, finding=Finding.SCALING_LOSS, quantity=speedup)
    if (
        reference is not None
        and reference.moved_better(NAMING_SIGNIFICANCE)
        and (time.is_ok or time.is_better)
    ):
        return Decision(
            verdict=Verdict.IMPROVED if time.is_better else Verdict.OK,
            finding=Finding.REFERENCE_FASTER,
            quantity=time,
        )
    return Decision(verdict=Verdict.INCONCLUSIVE, finding=None, quantity=speedup)


def _slowdown(quantities: Quantities) -> Finding:
    if quantities.time.name == QuantityName.THROUGHPUT_ON_1:
        return Finding.SINGLE_GPU_SLOWDOWN
    reference, speedup = quantities.reference, quantities.speedup
    if (
        reference is not None
        and reference.moved_worse(NAMING_SIGNIFICANCE)
        and speedup is not None
        and speedup.is_ok
    ):
        return Finding.SINGLE_GPU_SLOWDOWN
    return Finding.SLOWER_TRAINING


def _doubt(quantity: Quantity) -> float:
    return math.inf if quantity.loss_bound is None else quantity.loss_bound
