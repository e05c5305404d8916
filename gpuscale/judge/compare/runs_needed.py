"""Predict how many more runs would settle an inconclusive row, or say why more runs cannot."""

import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache

from msgspec.structs import replace

from gpuscale.analysis.estimates import exponential
from gpuscale.analysis.moderation import MINIMUM_ALLOCATIONS
from gpuscale.analysis.probabilities import normal_quantile
from gpuscale.judge.compare.changes import Pairing
from gpuscale.judge.compare.matching import MatchedRow
from gpuscale.judge.compare.spread import SideSample, largest_spread
from gpuscale.judge.compare.verdict import NAMING_SIGNIFICANCE, ErrorRates, Quantity, Rule, decide
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
_AS_LIKELY = 0.5
"""Least probability of settling a row for which runs are still advised."""
_MEANS = tuple(normal_quantile((place + 0.5) / 10) for place in range(10))
"""Ten equally likely changes of a mean by further runs, in standard deviations of the change."""


def forecast(pairing: Pairing, decided_by: Quantity, rule: Rule) -> tuple[int | None, Statement]:
    """Return how many more runs would settle an inconclusive row (None if unknown), and advice."""
    # Interim analyses are stricter, but advise what a comparison of the same files would.
    rule = replace(rule, rates=ErrorRates(significance=rule.tolerances.significance))
    made = min(runs.sample.count for runs in pairing.after.samples)
    baseline_runs = max(map(len, pairing.before.samples[0].values.values()))

    @cache
    def chance(further: int, means: Sequence[float] = _MEANS) -> float:
        """Return the share of `means` (possible shifts) for which `further` runs settle the row."""
        grown = pairing.quantities(rule.tolerances, rule.rates, further_runs=further)
        # The mean of all runs will be another one, better or worse.
        apart = math.sqrt(pairing.after.variance_of_means * further / (made + further))
        # The p-values of other rows are unknown then, so the strictest correction is used.
        moved = (
            grown.with_tests(
                rule.alone(test.with_gain(test.gain.value + at * apart)) for test in grown.tests
            )
            for at in means
        )
        return statistics.fmean(decide(of).verdict is not Verdict.INCONCLUSIVE for of in moved)

    needed, advice = required_runs(pairing.row, lambda n: chance(n) >= _MOSTLY, made, baseline_runs)
    is_of_sessions = decided_by.assumed_deviation and (advice is None or "idle" not in advice.code)
    if is_of_sessions and pairing.may_share_host:
        return None, _assumed(pairing.before, decided_by)
    most = FURTHER_RUNS[-1]
    # The mean of a few runs may be far off.
    if advice is None and made < _FEW and max(chance(most), chance(most, (0.0,))) >= _AS_LIKELY:
        advice = _unknown(made=made, baseline_runs=baseline_runs)
    if advice is None and made >= _FEW:
        credible = max(count for count in FURTHER_RUNS if count <= CREDIBLE * made)
        if chance(credible) >= _AS_LIKELY:
            advice = Statement.of("unknown_further_runs", too_few=made, in_all=made + credible)
    if advice is None:
        # If a speedup is certainly lost, only T(n) can show which term of the ratio changed.
        of_speedup = decided_by.name == QuantityName.EFFICIENCY and not decided_by.is_worse
        advice = _lasting_spread(pairing, rule, of_speedup=of_speedup)
        if advice.code == "baseline_runs_differ":
            advice = _on_both_sides(pairing, decided_by, rule, advice.facts)
    return needed, advice


def _lasting_spread(pairing: Pairing, rule: Rule, *, of_speedup: bool) -> Statement:
    """State what keeps step time (or speedup, if `of_speedup`) uncertain despite many more runs."""
    most, before, after = FURTHER_RUNS[-1], pairing.before, pairing.after
    quantities = pairing.quantities(rule.tolerances, rule.rates, further_runs=most)
    quantity = quantities.speedup if of_speedup else None
    if quantity is None:
        quantity, before, after = quantities.time, before.on_n_gpus, after.on_n_gpus
    spread = largest_spread(before, after, quantity.gain, further_runs=most)
    if spread.code == "nights_assumed":
        return _assumed(before, quantity)
    if spread.code != "nights_differ":
        return spread
    # So many sessions on both sides probably show that nothing changed.
    levels = normal_quantile(rule.rates.confidence) + normal_quantile(_MOSTLY)
    shares = before.allocation_share + after.allocation_share
    variance = (quantity.gain.variance or 0.0) * (levels / math.log1p(-quantity.ok_bound)) ** 2
    needed = max(MINIMUM_ALLOCATIONS, math.ceil(2 * variance / shares))
    sessions = len(before.samples[0].values)
    facts = Facts(quantity=quantity.name, of_both_sessions=needed, sessions=sessions)
    return Statement(spread.code, spread.facts | facts)


def _assumed(before: SideSample, quantity: Quantity) -> Statement:
    """State that the baseline has too few sessions to show their spread, which is assumed."""
    sessions, assumed = len(before.samples[0].values), quantity.assumed_deviation or 0.0
    facts = Facts(sessions=sessions, quantity=quantity.name, deviation=exponential(assumed) - 1)
    if assumed > quantity.limits.allocation_deviation:
        facts["as_runs"] = 0.5 if quantity.name == QuantityName.EFFICIENCY else 1.0
    return Statement("nights_assumed", facts)


def _on_both_sides(pairing: Pairing, seen: Quantity, rule: Rule, facts: Facts) -> Statement:
    """State how many runs per side would settle a row 4 times in 5, or that no feasible number can.

    Settling means the verdict `regressed` if the change `seen` so far suggests a loss, else `ok`.
    """
    made = [runs.sample.count for side in (pairing.before, pairing.after) for runs in side.samples]
    most = max(_RUNS_OF_BOTH[-1], 2 * max(made))
    candidates = [count for count in (*_RUNS_OF_BOTH, most) if count > min(made)]
    is_lost = seen.excess_loss > 0 and seen.moved_worse(NAMING_SIGNIFICANCE / 2)

    def are_enough(runs: int) -> bool:
        before, after = (side.with_at_least(runs) for side in (pairing.before, pairing.after))
        grown = replace(pairing, before=before, after=after).quantities(rule.tolerances, rule.rates)
        pairs = [(test, test.gain.half_width(_MOSTLY) or 0.0) for test in grown.tests]
        if not is_lost:
            return all(test.with_gain(-apart).is_ok for test, apart in pairs)
        moved = (test.with_gain(test.gain.value + apart) for test, apart in pairs)
        return decide(grown.with_tests(map(rule.alone, moved))).verdict is Verdict.REGRESSED

    place = bisect_left(candidates, True, key=are_enough)
    if place == len(candidates):
        return Statement.of("both_sides_differ", **(facts | Facts(runs=most)))
    code = "loss_takes_both_sides" if is_lost else "baseline_runs_differ"
    return Statement(code, facts | Facts(of_both=candidates[place]))


def required_runs(
    row: MatchedRow, settles: Callable[[int], bool], made: int, baseline_runs: int
) -> tuple[int | None, Statement | None]:
    """Estimate how many further runs would settle a row whose smallest sample has `made` runs.

    Return the number (None if unknown or too large to be trusted) and advice for the user (None if
    no feasible number is enough). If a host was busy in many runs of one side, that side is to be
    measured again (a baseline only if it has too few allocations to show their spread). `settles`
    tells if so many runs suffice; the largest night before has `baseline_runs`.
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
    """State that `made` runs are too few to predict how many more would settle a row.

    The advised total is `baseline_runs` if between 2 * `made` and 4 * `made`, else 2 * `made`.
    """
    in_all = max(2 * made, baseline_runs if baseline_runs <= (1 + CREDIBLE) * made else 0)
    return Statement.of("unknown_further_runs", too_few=made, in_all=in_all)
