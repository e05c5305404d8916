"""Forecast how many more runs would settle an open row, or say why further runs would not."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

from gpuscale.analysis.moderation import MINIMUM_ALLOCATIONS
from gpuscale.analysis.probabilities import normal_quantile
from gpuscale.judge.compare.changes import Pairing
from gpuscale.judge.compare.matching import MatchedRow
from gpuscale.judge.compare.spread import estimates_allocations, largest_spread
from gpuscale.judge.compare.verdict import ErrorRates, Quantity, Rule, decide
from gpuscale.records import Facts, QuantityName, Statement, Verdict
from gpuscale.records.run import were_hosts_busy

FURTHER_RUNS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50)
"""Candidates for the number of further runs that would settle an inconclusive row."""
CREDIBLE = 3
"""A predicted number of further runs is trusted up to this multiple of the runs so far."""
_RUNS_OF_BOTH = tuple(count for count in FURTHER_RUNS if 6 <= count <= 40)
"""Candidates for the number of runs on each side that would show that nothing changed."""
_FEW = 6
"""Number of runs from which on these tell what keeps a row open."""
_MOSTLY = 0.8
"""Probability with which a stated number of runs is to be enough."""
_EITHER_WAY = normal_quantile(_MOSTLY)
"""Standard deviations by which the mean may get better, or worse, and the row be settled still."""


def forecast(pairing: Pairing, decided_by: Quantity, rule: Rule) -> tuple[int | None, Statement]:
    """Return how many further runs would settle an open row (None if unknown), and advice on it."""
    # Interim analyses are stricter, but advise what a comparison of the same files would.
    rule = replace(rule, rates=ErrorRates(significance=rule.tolerances.significance))
    so_far = _runs_so_far(pairing)

    def settles(further: int, either_way: float = _EITHER_WAY) -> bool:
        grown = pairing.quantities(rule.tolerances, rule.rates, further_runs=further)
        # The mean of all runs will be another one, better or worse.
        share = further / (so_far["made"] + further)
        apart = either_way * math.sqrt(pairing.after.variance_of_means * share)
        # The p-values of other rows are unknown then, so the strictest correction is used.
        return all(
            decide(
                grown.with_tests(rule.alone(t.with_gain(t.gain.value + step)) for t in grown.tests)
            ).verdict
            is not Verdict.INCONCLUSIVE
            for step in (-apart, apart)
        )

    needed, advice = required_runs(pairing.row, settles, **so_far)
    if advice is None and so_far["made"] < _FEW and settles(FURTHER_RUNS[-1], 0.0):
        advice = _unknown(**so_far)
    if advice is None:
        # If a speedup is certainly lost, only T(n) can show which term of the ratio changed.
        of_speedup = decided_by.name == QuantityName.EFFICIENCY and not decided_by.is_worse
        advice = _lasting_spread(pairing, rule, of_speedup=of_speedup)
    return needed, advice


def _runs_so_far(pairing: Pairing) -> dict[str, int]:
    made = min(runs.sample.count for runs in pairing.after.samples)
    return {"made": made, "baseline_runs": max(map(len, pairing.before.samples[0].values.values()))}


def _lasting_spread(pairing: Pairing, rule: Rule, *, of_speedup: bool) -> Statement:
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
            return _unknown(**_runs_so_far(pairing))
    if found.code != "baseline_runs_differ":
        return found
    return _on_both_sides(pairing, rule, found.facts)


def _on_both_sides(pairing: Pairing, rule: Rule, facts: Facts) -> Statement:
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


def required_runs(
    row: MatchedRow, settles: Callable[[int], bool], *, made: int, baseline_runs: int
) -> tuple[int | None, Statement | None]:
    """Estimate how many further runs would settle a row whose smallest sample has `made` runs.

    `baseline_runs` is the number of runs in the baseline's largest night.

    Return the number (None if unknown or too large to be trusted) and advice for the user (None if
    none of `FURTHER_RUNS` is enough). If a host was busy in many runs of one side, the advice is to
    measure that side again, unless the baseline has enough allocations to show their spread.
    """
    if row.after is not None and were_hosts_busy(row.after.valid):
        return None, Statement.of("once_idle")
    before = row.before
    if before and len(before.runs) < MINIMUM_ALLOCATIONS and were_hosts_busy(before.valid):
        return None, Statement.of("baseline_once_idle")
    if not settles(FURTHER_RUNS[-1]):
        return None, None
    place = bisect_left(FURTHER_RUNS, True, hi=len(FURTHER_RUNS) - 1, key=settles)
    needed = FURTHER_RUNS[place]
    if needed > CREDIBLE * made:
        return None, _unknown(made=made, baseline_runs=baseline_runs) if made < _FEW else None
    return needed, Statement.of("further_runs", needed=needed)


def _unknown(*, made: int, baseline_runs: int) -> Statement:
    """Return the statement that `made` runs do not tell how many more would settle a row.

    It asks for twice as many, or as many as the baseline has if these are a credible number.
    """
    in_all = max(2 * made, baseline_runs if baseline_runs <= (1 + CREDIBLE) * made else 0)
    return Statement.of("unknown_further_runs", too_few=made, in_all=in_all)
