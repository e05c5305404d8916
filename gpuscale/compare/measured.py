"""Judging against measured runs: T(1), T(n) and S(n) together, corrected for the family."""

from collections.abc import Callable, Sequence

from gpuscale.compare.decision import Decision, Quantities, Quantity, decide
from gpuscale.compare.judgement import Judgement
from gpuscale.compare.matching import Current, Row
from gpuscale.compare.pairing import Gains, Pairing, pair_rows
from gpuscale.compare.wording import measured_reason
from gpuscale.records import Baseline, Tolerances, Verdict
from gpuscale.statistics import (
    FURTHER_RUNS,
    SIGNIFICANCE,
    Difference,
    benjamini_hochberg,
    detectable_loss,
)

_OptionalP = float | None


def judge_measured(
    rows: Sequence[Row], baseline: Baseline, currents: Sequence[Current]
) -> list[Judgement]:
    """The judgement on each of the rows, all of which have an entry and valid runs.

    The tests of all rows are one family: their p are adjusted after Benjamini and Hochberg.
    """
    tolerances = baseline.tolerances
    pairings = pair_rows(rows, baseline, currents)
    gains = [pairing.gains(tolerances) for pairing in pairings]
    judged = [gain for row in gains for gain in _judged(row)]
    worse = iter(_adjusted(judged, Difference.p_below_zero))
    better = iter(_adjusted(judged, Difference.p_above_zero))
    family = len(judged)
    judgements = []
    for row, pairing, gain in zip(rows, pairings, gains, strict=True):
        ps = [(next(worse), next(better)) for _ in _judged(gain)]
        quantities = _quantities(row.key.gpus, gain, ps, tolerances)
        decision = decide(quantities)
        further = (
            _further_runs(row.key.gpus, pairing, tolerances, family)
            if decision.verdict is Verdict.INCONCLUSIVE
            else None
        )
        judgements.append(_judgement(row, pairing, quantities, decision, further, family))
    return judgements


def _judgement(
    row: Row,
    pairing: Pairing,
    quantities: Quantities,
    decision: Decision,
    further_runs: int | None,
    family: int,
) -> Judgement:
    return Judgement(
        verdict=decision.verdict,
        reason=measured_reason(
            row.key, quantities, decision, further_runs, pairing.without_speedup
        ),
        finding=decision.finding,
        change=decision.quantity.gain.relative_change(),
        changed_quantity=decision.quantity.name,
        minimum_detectable_loss=_minimum_detectable_loss(quantities, family),
        further_runs=further_runs,
    )


def _judged(gains: Gains) -> list[Difference]:
    return [gains.time] if gains.speedup is None else [gains.time, gains.speedup]


def _adjusted(
    gains: Sequence[Difference], probability: Callable[[Difference], _OptionalP]
) -> list[_OptionalP]:
    raw = [probability(gain) for gain in gains]
    adjusted = iter(benjamini_hochberg([p for p in raw if p is not None]))
    return [None if p is None else next(adjusted) for p in raw]


def _quantities(
    gpus: int,
    gains: Gains,
    ps: Sequence[tuple[_OptionalP, _OptionalP]],
    tolerances: Tolerances,
) -> Quantities:
    def quantity(name: str, gain: Difference, p: tuple[_OptionalP, _OptionalP]) -> Quantity:
        return Quantity(name=name, gain=gain, p_worse=p[0], p_better=p[1], tolerances=tolerances)

    if gpus == 1:
        return Quantities(time=quantity("throughput(1)", gains.time, ps[0]))
    time = quantity("throughput(n)", gains.time, ps[0])
    if gains.speedup is None or gains.reference is None:
        return Quantities(time=time)
    return Quantities(
        time=time,
        speedup=quantity("E(n)", gains.speedup, ps[1]),
        reference=quantity("throughput(1)", gains.reference, (None, None)),
    )


def _further_runs(gpus: int, pairing: Pairing, tolerances: Tolerances, family: int) -> int | None:
    """The fewest further runs after which the row is settled, if the means stay; or None."""
    for count in FURTHER_RUNS:
        gains = pairing.gains(tolerances, further_runs=count)
        # The other rows' p are not known then: the strictest correction is the safe one.
        ps = [
            (_corrected(gain.p_below_zero(), family), _corrected(gain.p_above_zero(), family))
            for gain in _judged(gains)
        ]
        if decide(_quantities(gpus, gains, ps, tolerances)).verdict is not Verdict.INCONCLUSIVE:
            return count
    return None


def _corrected(probability: _OptionalP, family: int) -> _OptionalP:
    return None if probability is None else min(1.0, probability * family)


def _minimum_detectable_loss(quantities: Quantities, family: int) -> float | None:
    """The smallest loss that is found 19 times in 20 if it strikes this row alone.

    A lost throughput is found by itself, or by the speedup with the throughput in support.
    """

    def detectable(quantity: Quantity, significance: float) -> float | None:
        return detectable_loss(
            quantity.gain, significance=significance, margin=quantity.tolerances.margin
        )

    alone = detectable(quantities.time, SIGNIFICANCE / family)
    if quantities.speedup is None or alone is None:
        return alone
    by_speedup = detectable(quantities.speedup, SIGNIFICANCE / family)
    support = detectable(quantities.time, SIGNIFICANCE)
    if by_speedup is None or support is None:
        return alone
    return min(alone, max(by_speedup, support))
