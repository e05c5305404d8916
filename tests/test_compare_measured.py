"""Verdicts against measured runs: every verdict, finding and exit code."""

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from itertools import chain

import pytest
from builders import (
    CNN,
    QUIET_NOW,
    QUIET_THEN,
    baseline,
    measured,
    quiet_now,
    quiet_then,
    results,
    row_on,
    run,
)
from changing import replace
from statements import codes_in, facts_of, known

from gpuscale.judge.compare import compare
from gpuscale.records import EntryVerdict, Finding, Run, Statement, Tolerances, Verdict

THEN, NOW = QUIET_THEN, QUIET_NOW[:3]


Times = tuple[float | None, float]
USUAL, GOOD = (0.1, 0.11), "ok, throughput(1)"
FASTER = "improved, faster, throughput(1)"
SLOWER = "regressed, single-GPU slowdown, throughput"
SLOWER_TRAINING = "regressed, slower training, throughput(n)"
REFERENCE = "only the single-GPU reference got faster, throughput(n)"
# Seconds per step on 1 and 2 GPUs, before and now; verdict, finding and the quantity that decided
# of either row; and the exit code.
EXAMPLES: dict[str, tuple[Times, Times, str, str, int]] = {
    "the same again": (USUAL, USUAL, GOOD, "ok, throughput(n)", 0),
    "only several GPUs slower": (USUAL, (0.1, 0.12), GOOD, "regressed, scaling loss, E(n)", 1),
    "each GPU slower": (USUAL, (0.107, 0.1177), f"{SLOWER}(1)", f"{SLOWER}(n)", 1),
    # LUMI once lost 6 points of E(16) while its throughput on 16 GPUs rose.
    "only the reference faster": (USUAL, (0.092, 0.1085), FASTER, f"ok, {REFERENCE}", 0),
    "the reference faster still": (USUAL, (0.08, 0.1), FASTER, f"improved, {REFERENCE}", 0),
    # Half of the loss is at either end, and neither end alone is sure.
    "a lost speedup of unclear origin": (USUAL, (0.0985, 0.1117), GOOD, "inconclusive, E(n)", 3),
    "several GPUs faster": ((0.1, 0.12), USUAL, GOOD, "improved, faster, throughput(n)", 0),
    "only the reference slower": (USUAL, (0.11, 0.11), f"{SLOWER}(1)", "ok, throughput(n)", 1),
    "slower without a reference before": ((None, 0.11), (0.1, 0.13), "missing", SLOWER_TRAINING, 1),
}


@pytest.mark.parametrize(("then", "now", "on_1", "on_2", "code"), EXAMPLES.values(), ids=EXAMPLES)
def test_each_change_gets_its_verdict_its_finding_and_its_exit_code(
    then: Times, now: Times, on_1: str, on_2: str, code: int
) -> None:
    before, after = (
        {n: [time_s * f for f in factors] for n, time_s in enumerate(times, start=1) if time_s}
        for times, factors in ((then, THEN), (now, NOW))
    )
    comparison = compare(baseline(before), [measured(after)])
    rows = ((row.verdict, row.finding, row.changed_quantity) for row in comparison.entries)
    found = [", ".join(str(word) for word in row if word) for row in rows]
    assert (found, comparison.exit_code.value) == ([on_1, on_2], code)


@pytest.mark.parametrize(
    ("device", "loss", "least", "most"),
    [("gpu", 0.08, 80, 100), ("cpu", 0.08, 0, 50), ("cpu", -0.08, 0, 50), ("cpu", 0.2, 95, 100)],
)
def test_ranks_on_a_shared_host_moved_more_than_sessions_that_differ_as_runs_do_may_show(
    device: str, loss: float, least: int, most: int
) -> None:
    rng, where = random.Random(5), replace(CNN, device=device)

    def session(time_s: float) -> dict[int, list[float]]:
        return {n: [time_s * math.exp(rng.gauss(0, 0.03)) for _ in THEN] for n in (1, 2)}

    found = [
        compare(
            baseline(session(0.1), configuration=where),
            [measured(session(0.1 / (1 - loss)), configuration=where)],
        )
        for _ in range(100)
    ]
    moved = {Verdict.REGRESSED, Verdict.IMPROVED}
    assert least <= sum(any(e.verdict in moved for e in each.entries) for each in found) <= most
    reasons = str([entry.reason for each in found for entry in each.entries])
    assert ("'as_runs': 1.0" in reasons) is (device == "cpu" and loss < 0.1)


def test_a_comparison_turned_round_has_its_interval_turned_round() -> None:
    few = {1: [0.1, 0.101, 0.107], 2: [0.11, 0.112, 0.1105]}
    many = {gpus: [t * f for f in THEN] for gpus, t in {1: 0.104, 2: 0.12}.items()}
    turns = compare(baseline(few), [measured(many)]), compare(baseline(many), [measured(few)])
    for gpus in few:
        change, back = (known(row_on(gpus, each).change) for each in turns)
        assert 1 + change.value == pytest.approx(1 / (1 + back.value))
        assert 1 + known(change.low) == pytest.approx(1 / (1 + known(back.high)))
        assert 1 + known(change.high) == pytest.approx(1 / (1 + known(back.low)))


def test_a_row_without_any_change_or_spread_has_lost_nothing() -> None:
    exact = Tolerances(allocation_deviation_time=0.0, allocation_deviation_speedup=0.0)
    before = replace(baseline({1: [0.1] * 6}), tolerances=exact)
    row = row_on(1, compare(before, [measured({1: [0.1] * 3})]))
    assert row.verdict is Verdict.OK
    assert row.reason == Statement.of("no_loss", bound=0.0, allowed=0.05)


QUIET = [0.1 * f for f in THEN]
WILD = [0.06, 0.11, 0.19]


def test_further_runs_are_none_where_they_cannot_settle_it_and_the_reason_says_why() -> None:
    of_runs = math.expm1(statistics.stdev(map(math.log, WILD)))
    for then, now, deviation, why in (
        (QUIET, [0.103 * f for f in NOW], 0.1, "nights_assumed"),
        ([0.1] * 6, [0.103] * 3, 0.1, "nights_assumed"),
        (QUIET, WILD, 0.01, "runs_differ"),
        (WILD, [0.1 * f for f in NOW], 0.01, "both_sides_differ"),
    ):
        tolerances = Tolerances(allocation_deviation_time=deviation)
        before = replace(baseline({1: then}), tolerances=tolerances)
        row = row_on(1, compare(before, [measured({1: now})]))
        assert (row.verdict, row.further_runs) == (Verdict.INCONCLUSIVE, None)
        remedy = known(row.reason.facts["remedy"])
        of_nights = pytest.approx(math.expm1(deviation), rel=0.02)
        told = of_nights if why == "nights_assumed" else pytest.approx(of_runs)
        assert remedy.code == why
        assert remedy.facts["deviation"] == told


Sides = Sequence[tuple[int, int]]
"""Sessions and runs of each: of the baseline, and of the results."""


@pytest.mark.parametrize(
    ("loss", "sides", "apart", "code", "said", "often"),
    # Of 244, 240 and 60 such rows, whose runs deviate by 3 to 8%, 197, 183 and 44 were.
    [
        (0.0, [(1, 6), (1, 3)], 0.0, "baseline_runs_differ", Verdict.OK, 0.81),
        (0.06, [(1, 6), (1, 6)], 0.0, "loss_takes_both_sides", Verdict.REGRESSED, 0.75),
        (0.0, [(5, 6), (1, 6)], 0.04, "nights_differ", Verdict.OK, 0.75),
    ],
)
def test_as_many_runs_or_sessions_as_are_named_mostly_show_whether_something_changed(
    loss: float, sides: Sides, apart: float, code: str, said: Verdict, often: float
) -> None:
    draw, verdicts = random.Random(7), list[Verdict]()

    def drawn(sessions: int, runs: int, loss: float = 0.0) -> list[list[float]]:
        means = [draw.gauss(loss, apart) for _ in range(sessions)]
        return [[0.1 * math.exp(draw.gauss(mean, 0.05)) for _ in range(runs)] for mean in means]

    def compared(sides: Sides, loss: float) -> EntryVerdict:
        then, now = drawn(*sides[0]), drawn(*sides[1], loss)
        names = [str(at) for at, times in enumerate(then) for _ in times]
        before = baseline({1: [*chain(*then)]}, allocations=names)
        return row_on(1, compare(before, [measured({1: its}, job_id=f"{its}") for its in now]))

    while len(verdicts) < 40:
        row = compared(sides, loss)
        remedy = row.reason.facts.get("remedy")
        if remedy is not None and remedy.code == code:
            seen = -math.log1p(known(row.change).value) if loss else 0.0
            each = remedy.facts.get("of_both_sessions", 1), remedy.facts.get("of_both", 6)
            verdicts.append(compared((each, each), seen).verdict)
    assert verdicts.count(said) / len(verdicts) == pytest.approx(often, abs=0.16)


def test_a_change_that_is_hardly_possible_is_named_only_if_it_is_called_one() -> None:
    times = {True: ([0.02] * 3, [0.045] * 3, [1.2] * 3), False: ([0.02, 0.2, 0.01], [0.12] * 3)}
    for is_named, of_runs in times.items():
        for times_s in of_runs:
            compared = compare(baseline({1: QUIET}), [measured({1: times_s})])
            assert ("unlikely_change" in {note.code for note in compared.notes}) is is_named
    # Of several the largest, whichever way: here of E(4).
    both = compare(baseline({1: QUIET, 4: QUIET}), [measured({1: [0.02] * 3, 4: [2.0] * 3})])
    facts = facts_of(both.notes, "unlikely_change")
    assert (facts["row"].gpus, facts["others"], facts["factor"]) == pytest.approx((4, 1, 0.01))
    twice = compare(baseline({1: [1.0] * 6}), [measured({1: [0.5] * 3})])
    assert "unlikely_change" not in {note.code for note in twice.notes}


def test_runs_that_may_settle_a_row_settle_some() -> None:
    draw, settled = random.Random(7), list[bool]()
    while len(settled) < 40:
        then = [0.1 * math.exp(draw.gauss(0, 0.03)) for _ in range(12)]
        now = [0.1 * math.exp(draw.gauss(0.03, 0.03)) for _ in range(60)]
        row = row_on(1, compare(baseline({1: then}), [measured({1: now[:8]})]))
        remedy = row.reason.facts.get("remedy")
        if remedy is not None and remedy.code == "unknown_further_runs":
            assert row.further_runs is None
            again = compare(baseline({1: then}), [measured({1: now[: remedy.facts["in_all"]]})])
            settled.append(row_on(1, again).verdict is not Verdict.INCONCLUSIVE)
    assert 0.15 < statistics.fmean(settled) < 0.85


def test_a_mean_that_few_noisy_runs_put_far_off_asks_for_more_of_them() -> None:
    row = row_on(1, compare(baseline({1: QUIET * 2}), [measured({1: [0.0943, 0.104, 0.1147]})]))
    asked = Statement.of("unknown_further_runs", too_few=3, in_all=12)
    assert (row.verdict, row.reason.facts["remedy"]) == (Verdict.INCONCLUSIVE, asked)


def test_a_reference_with_another_batch_is_not_used() -> None:
    ones = (run(1, 0.2 * f, batch_per_gpu=256) for f in NOW)
    now = results(*ones, *(run(2, 0.11 * f) for f in NOW))
    comparison = compare(quiet_then(n1=0.1, n2=0.11), [now])
    assert row_on(1, comparison).verdict is Verdict.INCOMPARABLE
    assert row_on(1, comparison).reason.facts["differences"] == (("batch_per_gpu", 128, 256),)
    assert row_on(2, comparison).verdict is Verdict.OK
    assert row_on(2, comparison).changed_quantity == "throughput(n)"
    assert "other_batch_on_1_gpu" in codes_in(row_on(2, comparison).reason)
    assert comparison.exit_code == 3


NIGHTS = ("a", "b", "c", "d", "e", "f")


def test_a_run_far_from_the_others_tonight_is_no_loss_however_quiet_the_nights_were() -> None:
    nights = [0.1 * f for f in (1.001, 0.999, 1.003, 1.0, 0.998, 1.002) for _ in range(3)]
    names = [name for name in NIGHTS for _ in range(3)]
    before = baseline({1: nights}, allocations=names)
    row = row_on(1, compare(before, [measured({1: [0.1, 0.14, 0.1005]})]))
    assert row.verdict is Verdict.INCONCLUSIVE
    assert known(known(row.change).low) < -0.3
    assert row_on(1, compare(before, [quiet_now(n1=0.107)])).verdict is Verdict.REGRESSED


def test_one_sick_night_in_the_baseline_hides_no_loss_and_is_named() -> None:
    nights = [0.1 * f for f in (1.001, 0.999, 1.12, 1.0, 0.998, 1.002)]
    before = baseline({1: nights}, allocations=NIGHTS)
    comparison = compare(before, [quiet_now(n1=0.107)])
    assert row_on(1, comparison).verdict is Verdict.REGRESSED
    facts = facts_of(comparison.notes, "outlying_allocations")
    assert facts["names"] == (NIGHTS[2],)
    assert facts["difference"] == pytest.approx(0.12, abs=2e-3)
    assert row_on(1, compare(before, [quiet_now(n1=0.1)])).verdict.is_pass


def test_of_outlying_runs_the_one_that_differs_most_is_named() -> None:
    then = baseline({1: [*QUIET, 0.11], 2: [*QUIET, 0.07]})
    notes = compare(then, [measured({1: QUIET[:3], 2: QUIET[:3]})]).notes
    facts = facts_of(notes, "outlying_runs")
    assert facts["difference"] == pytest.approx(-0.3, abs=2e-3)
    assert (facts["row"].gpus, facts["other_runs"]) == (2, 1)


def test_a_night_that_lost_much_among_several_is_named_and_no_pass() -> None:
    nights = [measured({1: [0.1 * f for f in NOW]}, job_id=f"n{i}") for i in range(5)]
    slow = measured({1: [0.111 * f for f in NOW]}, job_id="slow")
    before = baseline({1: [0.1] * 6}, allocations=NIGHTS)
    assert row_on(1, compare(before, nights)).verdict is Verdict.OK
    row = row_on(1, compare(before, [*nights, slow]))
    assert row.verdict is Verdict.INCONCLUSIVE
    assert (row.reason.code, row.reason.facts["name"]) == ("slow_allocation", "slow")
    # So it is where the deviation between the nights before is assumed.
    row = row_on(1, compare(baseline({1: [0.1 * f for f in THEN]}), [*nights, slow]))
    assert row.reason.code == "slow_allocation"
    # One that is as before is not slow, however fast the others were.
    fast = measured({1: [0.09 * f for f in NOW]}, job_id="fast")
    assert row_on(1, compare(before, [nights[0], fast])).verdict.is_pass
    # Nor is one that may be so by chance, since the nights before differ as much.
    uneven = baseline({1: [0.1 * f for f in (0.96, 1.04, 0.97, 1.03, 1.0)]}, allocations=NIGHTS)
    alike = measured({1: [0.107 * f for f in NOW]}, job_id="slow")
    assert row_on(1, compare(uneven, [*nights, *nights, alike])).reason.code != "slow_allocation"


def test_speedups_over_several_nights_are_taken_night_by_night() -> None:
    nights = [0.93, 1.05, 1.04, 0.96, 1.06, 0.97]
    times = {
        1: [0.10 * night * f for night, f in zip(nights, THEN, strict=True)],
        2: [0.11 * night * f for night, f in zip(nights, reversed(THEN), strict=True)],
    }
    row = row_on(2, compare(baseline(times, allocations=NIGHTS), [quiet_now(n1=0.1, n2=0.12)]))
    # The nights differ by 5%, which both ends share: the lost speedup is certain, and only
    # which end moved is not.
    assert row.changed_quantity == "E(n)"
    assert known(known(row.change).high) < -0.06
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.reason.code == "unknown_end_moved"


@pytest.mark.parametrize(
    ("lost", "said", "times"),
    [
        # A deviation of 0.15% between runs, 1% declared between nights: T(8) alone is not sure.
        ({8: 0.03}, "regressed, scaling loss", 20),
        ({4: 0.03, 8: 0.03}, "regressed, scaling loss", 20),
        ({1: -0.03}, "ok, only the single-GPU reference got faster", 20),
        ({1: -0.03, 4: -0.03}, "ok, only the single-GPU reference got faster", 19),
        ({1: -0.015, 2: 0.015, 4: 0.015, 8: 0.015}, "inconclusive", 19),
    ],
)
def test_other_gpu_counts_show_which_end(lost: Mapping[int, float], said: str, times: int) -> None:
    rng = random.Random(6)
    rows = []

    def drawn(lost: Mapping[int, float], runs: Sequence[float]) -> dict[int, list[float]]:
        levels = {n: 0.1 / (1 - lost.get(n, 0.0)) for n in (1, 2, 4, 8)}
        return {n: [s * math.exp(rng.gauss(0, 0.0015)) for _ in runs] for n, s in levels.items()}

    for _ in range(20):
        before = baseline(drawn({}, THEN))
        rows.append(row_on(8, compare(before, [measured(drawn(lost, NOW))])))
    words = [f"{row.verdict}, {row.finding}" if row.finding else row.verdict for row in rows]
    assert words.count(said) >= times


def test_a_speedup_whose_end_is_unknown_waits_for_the_throughput() -> None:
    row = row_on(8, compare(quiet_then(n1=0.1, n8=0.1), [quiet_now(n1=0.099, n8=0.1025)]))
    assert row.reason.code == "unknown_end_moved"
    # 1% is declared of T, and half of that of S.
    assert known(row.reason.facts["remedy"]).facts["deviation"] == pytest.approx(0.01, abs=1e-3)


def test_a_comparison_points_out_its_own_allocation_and_an_efficiency_above_1_1() -> None:
    own = baseline({1: [0.1 * f for f in THEN]}, allocations=("now",))
    notes = compare(own, [quiet_now(n1=0.1)]).notes
    assert Statement.of("same_allocation", name="now") in notes
    notes = compare(quiet_then(n1=0.1, n2=0.11), [quiet_now(n1=0.1, n2=0.05)]).notes
    assert facts_of(notes, "unit_error")["row"].gpus == 2


def test_each_gpu_is_only_called_slower_where_the_scaling_is_shown_to_be_ok() -> None:
    before = baseline({1: [0.1, 0.104, 0.096, 0.102, 0.098, 0.1], 4: [0.11 * f for f in THEN]})
    now = measured({1: [0.109, 0.1065, 0.1035], 4: [0.1222] * 3})
    row = row_on(4, compare(before, [now]))
    assert row.verdict is Verdict.REGRESSED
    assert row.finding is Finding.SLOWER_TRAINING
    # The efficiency may be as before: the runs on 1 GPU do not tell.
    assert row.reason.code == "moved"


@pytest.mark.parametrize(
    ("began_s", "is_told"), [(1e9, True), (2e9, False), (3e9, False), (None, False)]
)
def test_a_baseline_newer_than_the_results_is_named(began_s: float | None, is_told: bool) -> None:
    def begun(runs: Sequence[Run], moment_s: float | None) -> tuple[Run, ...]:
        return tuple(replace(run, started_at_s=moment_s) for run in runs)

    then, now = baseline({1: [0.1 * f for f in THEN]}), quiet_now(n1=0.1)
    then = replace(then, runs=begun(then.runs, 2e9))
    notes = compare(then, [replace(now, runs=begun(now.runs, began_s))]).notes
    assert (Statement.of("newer_baseline") in notes) == is_told


def test_an_open_row_shows_the_quantity_whose_interval_lies_below_zero() -> None:
    # Real runs of two CPU ranks, of which one was slowed by 20 % before the second half of them.
    one = [0.165, 0.174, 0.156, 0.184, 0.196, 0.162], [0.145, 0.157, 0.186, 0.175, 0.193, 0.183]
    two = [0.215, 0.183, 0.205, 0.203, 0.188, 0.208], [0.242, 0.241, 0.216, 0.239, 0.206, 0.242]
    row = row_on(2, compare(baseline({1: one[0], 2: two[0]}), [measured({1: one[1], 2: two[1]})]))
    assert row.verdict is Verdict.INCONCLUSIVE
    # E may be as before, since the runs on one rank deviate by 10 %.
    assert row.reason.code == "not_beyond_chance"
    assert row.change is not None
    assert known(row.change.high) < 0
