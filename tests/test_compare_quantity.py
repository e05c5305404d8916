"""Changes exactly on a limit: losses, gains, bounds and probabilities."""

import math
from dataclasses import replace
from statistics import NormalDist

import pytest

from gpuscale.analysis.statistics.estimates import Term, difference
from gpuscale.judge.compare.decision import ErrorRates, Quantities, Quantity, decide, loss_in_points
from gpuscale.records import Finding, Limits, Verdict


def quantity(gain: float, *, p: float = 0.001, margin: float = 0.25) -> Quantity:
    """A quantity in points, so that its loss is exactly that, and known without any spread."""
    return Quantity(
        name="E(n)",
        gain=difference(gain, [Term(variance=0.0, df=math.inf)]),
        p_worse=p,
        p_better=p,
        limits=Limits(margin=margin, ok_bound=0.5, allocation_deviation=0.0),
        rates=ErrorRates(significance=0.01, confidence=0.95),
        loss_of=loss_in_points,
    )


@pytest.mark.parametrize(("loss", "is_beyond"), [(0.25, False), (0.2501, True), (0.2, False)])
def test_a_change_of_the_margin_itself_is_within_it(loss: float, is_beyond: bool) -> None:
    lost, won = quantity(-loss), quantity(loss)
    assert (lost.is_worse, lost.is_better, lost.moved_worse(0.05)) == (is_beyond, False, is_beyond)
    assert (won.is_better, won.is_worse, won.moved_better(0.05)) == (is_beyond, False, is_beyond)
    assert not lost.moved_better(0.05)
    assert not won.moved_worse(0.05)
    assert lost.excess_loss == pytest.approx(loss - 0.25)


@pytest.mark.parametrize(("p", "counts"), [(0.01, False), (0.0099, True)])
def test_a_p_of_the_significance_itself_does_not_count(p: float, counts: bool) -> None:
    assert quantity(-0.3, p=p).is_worse is counts
    assert quantity(0.3, p=p).is_better is counts


def test_a_loss_that_may_be_the_bound_of_ok_is_not_ok() -> None:
    assert not quantity(-0.5).is_ok
    assert quantity(-0.4999).is_ok
    # A margin beyond the bound takes its place.
    assert quantity(-0.55, margin=0.6).is_ok
    assert not quantity(-0.6, margin=0.6).is_ok


@pytest.mark.parametrize(
    ("p", "verdict", "finding"),
    [(0.049, Verdict.OK, Finding.REFERENCE_FASTER), (0.051, Verdict.INCONCLUSIVE, None)],
)
def test_a_faster_reference_explains(p: float, verdict: Verdict, finding: Finding | None) -> None:
    deviation = 0.3 / NormalDist().inv_cdf(1 - p)
    faster = difference(0.3, [Term(variance=deviation**2, df=math.inf)])
    row = Quantities(
        time=quantity(0.0, p=0.5),
        speedup=quantity(-0.3),
        reference=replace(quantity(0.0), gain=faster),
    )
    assert decide(row)[:2] == (verdict, finding)
