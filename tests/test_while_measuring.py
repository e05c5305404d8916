"""Judging while measuring: when a row stops, how a loss is confirmed, how often sessions err."""

import math
import random
import statistics
from pathlib import Path
from typing import Any

import builders
import numpy as np
import pytest
from builders import QUIET_NOW, baseline, figure, measured, quiet_now, quiet_then, results, run
from builders.causes import night_of, well
from builders.comparisons import viewed
from builders.nights import Fault
from changing import replace
from statements import codes_in, known

from gpuscale.base.errors import ExitCode
from gpuscale.judge import stopping
from gpuscale.judge.compare import compare
from gpuscale.judge.stopping import DecidedVerdict, RowStatus, SequentialPlan
from gpuscale.plugin import terminal
from gpuscale.records import Baseline, Failure, Results, Run, Statement, Verdict
from gpuscale.reports.reason_words import reason_text

PLAN = SequentialPlan(fewest_runs=3, most_runs=8)
BF16 = replace(builders.CNN, precision="bf16")
BEFORE = quiet_then(n1=0.1, n2=0.11)


def judge_session(
    before: Baseline, now: Results, plan: SequentialPlan = PLAN, **measured: Any
) -> stopping.SessionVerdict:
    return DecidedVerdict(baseline=before, plan=plan, **measured).verdict_after(now)


def _row(step: stopping.SessionVerdict, gpus: int) -> stopping.RowProgress:
    (found,) = [each for each in step.entries if each.entry.key.gpus == gpus]
    return found


def test_each_look_of_a_plan_errs_less_than_one_comparison_and_more_than_its_share() -> None:
    rates = PLAN.rates()
    assert 0.01 / 5 < rates.significance < 0.01
    assert 0.05 / 6 < 1 - rates.confidence < 0.05
    alone = SequentialPlan(fewest_runs=3, most_runs=3).rates()
    assert (alone.significance, alone.confidence) == (0.01, 0.95)
    # A loss is only reported by the second of two looks, which may err as often as a comparison.
    two = SequentialPlan(fewest_runs=3, most_runs=4).rates()
    assert two.significance == 0.01
    assert two.confidence > 0.95


@pytest.mark.parametrize(
    ("later", "verdict"), [((1.01, 0.99), Verdict.OK), ((1.3, 0.8), Verdict.INCONCLUSIVE)]
)
def test_a_reference_that_passed_and_got_more_runs_is_reported_by_all_of_them(
    later: tuple[float, float], verdict: Verdict
) -> None:
    singles = [0.1 * f for f in (*QUIET_NOW[:3], *later * 2)]
    open_ = [0.2 * f for f in (1.2, 0.8, 1.1, 0.9, 1.3, 0.75, 1.0)]
    step = judge_session(BEFORE, measured({1: singles, 2: open_}))
    one = _row(step, 1)
    assert (one.analysed_after, one.entry.verdict) == (3, verdict)
    shown = known(one.entry.current.step_time_s).value
    assert shown == pytest.approx(statistics.geometric_mean(singles))


def test_before_the_first_look_every_row_needs_runs_and_nothing_is_called() -> None:
    step = judge_session(BEFORE, quiet_now(2, n1=0.1, n2=0.2))
    assert {each.status for each in step.entries} == {RowStatus.NEEDS_RUNS}
    assert {each.entry.verdict for each in step.entries} == {Verdict.INCONCLUSIVE}
    assert _row(step, 2).entry.reason == Statement.of("too_few_to_look", runs=2)
    assert {key.gpus for key, _ in step.needs_runs} == {1, 2}
    assert step.comparison.exit_code == 3


def test_runs_that_were_judged_are_not_judged_again_before_another_has_ended() -> None:
    rule, now = DecidedVerdict(baseline=quiet_then(n1=0.1), plan=PLAN), quiet_now(3, n1=0.1)
    judged = rule.verdict_after(now)
    assert rule.verdict_after(now) is judged
    (row,) = rule.verdict_after(replace(now, runs=now.runs[:2])).entries
    assert row.status is RowStatus.NEEDS_RUNS


def test_what_looks_regressed_gets_a_fresh_run_before_it_is_called_so() -> None:
    suspected = judge_session(BEFORE, quiet_now(3, n1=0.1, n2=0.12))
    row = _row(suspected, 2)
    assert (row.status, row.suspected_after) == (RowStatus.NEEDS_RUNS, 3)
    assert row.entry.verdict is Verdict.INCONCLUSIVE
    assert row.entry.reason.code == "not_yet_confirmed"
    # T(1) goes on too: the speedup is taken over it.
    assert {key.gpus for key, _ in suspected.needs_runs} == {1, 2}
    assert suspected.comparison.exit_code == 3

    confirmed = judge_session(BEFORE, quiet_now(4, n1=0.1, n2=0.12))
    assert _row(confirmed, 2).status is RowStatus.CONFIRMED
    assert _row(confirmed, 2).entry.verdict is Verdict.REGRESSED
    assert confirmed.needs_runs == frozenset()
    assert confirmed.comparison.exit_code == 1


@pytest.mark.parametrize(("slower", "suspected"), [(1.05, 3), (1.02, None)])
def test_a_loss_that_chance_may_explain_is_suspected(slower: float, suspected: int | None) -> None:
    times = [0.1 * slower * f for f in (1, 1.01, 0.99)]
    row = _row(judge_session(quiet_then(n1=0.1), measured({1: times})), 1)
    assert (row.suspected_after, row.entry.verdict) == (suspected, Verdict.INCONCLUSIVE)


def test_a_look_waits_for_the_run_on_1_gpu_that_belongs_to_it() -> None:
    uneven = measured({1: [0.1 * f for f in QUIET_NOW[:3]], 2: [0.12 * f for f in QUIET_NOW[:4]]})
    for gpus in (None, [1, 2]):
        assert _row(judge_session(BEFORE, uneven, gpus=gpus), 2).analysed_after == 3


def test_slow_first_runs_that_fresh_ones_do_not_repeat_are_not_called_regressed() -> None:
    before = replace(quiet_then(n1=0.1), tolerances=builders.EXACT)
    times = [0.112, 0.1121, 0.1119, *(0.1 * f for f in QUIET_NOW[:5])]
    first = judge_session(before, measured({1: times[:3]}))
    assert _row(first, 1).suspected_after == 3
    for runs in range(4, 9):
        step = judge_session(before, measured({1: times[:runs]}))
        assert _row(step, 1).entry.verdict is not Verdict.REGRESSED
    assert (_row(step, 1).status, _row(step, 1).analysed_after) == (RowStatus.UNDECIDED, 8)
    assert (step.needs_runs, step.comparison.exit_code) == (frozenset(), 3)


@pytest.mark.parametrize(("fresh_s", "is_confirmed"), [(0.1015, False), (0.106, True)])
def test_a_loss_needs_a_fresh_run_beyond_the_margin(fresh_s: float, is_confirmed: bool) -> None:
    before = replace(quiet_then(n1=0.1), tolerances=builders.EXACT)
    now = measured({1: [*(0.106 * f for f in QUIET_NOW[:3]), fresh_s]})
    at_once = judge_session(before, now, SequentialPlan(fewest_runs=4, most_runs=4))
    assert _row(at_once, 1).status is RowStatus.CONFIRMED
    row = _row(judge_session(before, now), 1)
    assert (row.suspected_after, row.analysed_after) == (3, 4)
    assert row.status is (RowStatus.CONFIRMED if is_confirmed else RowStatus.NEEDS_RUNS)
    assert row.entry.verdict is (Verdict.REGRESSED if is_confirmed else Verdict.INCONCLUSIVE)


def test_what_is_settled_stays_so_whatever_later_runs_of_it_say() -> None:
    # T(1) is settled after three runs and goes on, slower, as the reference of T(2).
    times = {1: [0.1, 0.1001, 0.0999, 0.2, 0.2], 2: [0.12 * f for f in QUIET_NOW[:5]]}
    row = _row(judge_session(BEFORE, measured(times)), 1)
    assert (row.status, row.analysed_after) == (RowStatus.SETTLED, 3)


def test_rows_that_no_run_can_judge_are_settled_and_those_that_failed_go_on() -> None:
    before = quiet_then(n1=0.1, n2=0.11, n4=0.12)
    now = results(
        *(run(1, 0.1 * f) for f in QUIET_NOW[:3]),
        *(run(2, 0.11 * f, configuration=BF16) for f in QUIET_NOW[:3]),
        *(run(4, None) for _ in range(3)),
        *(run(8, 0.13 * f) for f in QUIET_NOW[:3]),
    )
    step = judge_session(before, now)
    settled = {each.entry.key.gpus: each.status is RowStatus.SETTLED for each in step.entries}
    assert settled == {1: True, 2: True, 4: False, 8: True}
    assert _row(step, 4).status is RowStatus.NEEDS_RUNS
    assert _row(step, 2).entry.verdict is Verdict.INCOMPARABLE
    assert _row(step, 4).entry.verdict is Verdict.MISSING


def _quiet(gpus: int, runs: int, time_s: float) -> list[Run]:
    return [run(gpus, time_s * f, index=i) for i, f in enumerate(QUIET_NOW[:runs], 1)]


def test_a_look_needs_runs_that_gave_a_number_and_not_attempts() -> None:
    unsteady = replace(run(2, None), failure=Failure(kind="unsteady", message="windows alternate"))
    now = results(*_quiet(1, 3, 0.1), run(2, 0.11), unsteady, unsteady)
    step = judge_session(BEFORE, now)
    row = _row(step, 2)
    assert (row.status, row.analysed_after) == (RowStatus.NEEDS_RUNS, None)
    failures = {"unsteady": 2}
    few = Statement.of("too_few_valid_runs", valid=1, made=3, failures=failures)
    assert row.entry.reason == few
    assert step.comparison.exit_code == 3


def test_the_session_s_end_shows_what_compare_shows_of_the_same_runs() -> None:
    for deviation, runs, seed in ((0.015, 4, 1), (0.015, 5, 2), (0.02, 5, 6)):
        noise = random.Random(seed)
        then, tonight = (
            {n: [t * (1 + noise.gauss(0, deviation)) for _ in range(made)] for n, t in times_s}
            for made, times_s in ((6, ((1, 0.1), (2, 0.11))), (runs, ((1, 0.115), (2, 0.1265))))
        )
        before, now = baseline(then), measured(tonight)
        session = judge_session(before, now).comparison
        ended, compared = (viewed(each, now) for each in (session, compare(before, [now])))
        assert ended.headline == compared.headline
        assert "every GPU lost" in ended.headline[0][1]
        assert [row.numbers for row in ended.rows] == [row.numbers for row in compared.rows]
        said = ([each[:2] for each in view.explanations] for view in (ended, compared))
        assert next(said) == next(said)


def test_an_open_row_asks_at_the_end_of_a_session_for_what_compare_asks_for() -> None:
    uneven = [0.1, 0.109, 0.096, 0.104, 0.093, 0.107]
    before, now = baseline({1: uneven}), measured({1: [1.02 * time_s for time_s in uneven[::-1]]})
    by_session = _row(judge_session(before, now, SequentialPlan(fewest_runs=3, most_runs=6)), 1)
    (by_compare,) = compare(before, [now]).entries
    remedy = known(by_compare.reason.facts["remedy"])
    assert remedy.code == "baseline_runs_differ"
    assert by_session.entry.reason.facts["remedy"] == remedy


def test_a_row_that_passes_states_the_bound_of_its_look_also_beside_one_that_moved() -> None:
    now = quiet_now(4, n1=0.1, n2=0.09)
    comparisons = judge_session(BEFORE, now).comparison, compare(BEFORE, [now])
    of_look, of_all = (each.entries[0].reason.facts["bound"] for each in comparisons)
    assert of_look > of_all


@pytest.mark.parametrize(("failures", "runs"), [({2: 8}, 8), ({1: 5}, 3)])
def test_runs_made_after_many_failures_are_looked_at_and_failed_ones_not_waited_for(
    failures: dict[int, int], runs: int
) -> None:
    failed = [run(n, None, index=i) for n, count in failures.items() for i in range(count)]
    now = results(*failed, *_quiet(1, runs, 0.1), *_quiet(2, 8, 0.143))
    row = _row(judge_session(BEFORE, now), 2)
    assert (row.status, row.analysed_after) == (RowStatus.CONFIRMED, 4)


def test_a_look_leaves_out_later_failures_even_of_unknown_batch() -> None:
    made = _quiet(1, 5, 0.1)
    failed = [replace(run(1, None, index=i), batch_per_gpu=None) for i in range(4, 8)]
    (row,) = judge_session(quiet_then(n1=0.1), results(*made[:3], *failed, *made[3:])).entries
    assert (row.status, row.analysed_after) == (RowStatus.SETTLED, 3)


def test_failures_after_a_look_that_passed_take_the_pass_back() -> None:
    now = results(*_quiet(1, 3, 0.1), *(run(1, None, index=i) for i in range(4, 9)))
    row = _row(judge_session(quiet_then(n1=0.1), now), 1)
    assert row.entry.verdict is Verdict.INCONCLUSIVE
    assert codes_in(row.entry.reason)[:2] == ["too_few_since_look", "bounded_loss"]


def test_a_session_without_1_gpu_looks_on_though_an_earlier_one_made_few_runs_of_it() -> None:
    now = results(*_quiet(1, 3, 0.1), *_quiet(2, 8, 0.143))
    row = _row(judge_session(BEFORE, now, gpus=[2]), 2)
    assert (row.status, row.entry.changed_quantity) == (RowStatus.CONFIRMED, "E(n)")


def test_entries_in_configurations_that_a_session_does_not_measure_are_left_out() -> None:
    other = [replace(each, configuration=BF16) for each in BEFORE.runs]
    both = replace(BEFORE, runs=(*BEFORE.runs, *other))
    step = judge_session(both, quiet_now(3, n1=0.1, n2=0.11), configurations=[builders.CNN])
    assert {each.entry.verdict for each in step.entries} == {Verdict.OK}
    assert {(each.status, each.analysed_after) for each in step.entries} == {(RowStatus.SETTLED, 3)}
    assert (step.needs_runs, step.comparison.exit_code) == (frozenset(), 0)


def test_what_a_session_did_not_come_to_is_not_called_asked_for() -> None:
    step = judge_session(quiet_then(n1=0.1), quiet_now(2, n1=0.1), cases=["mnist_cnn/ddp", "x/dp"])
    assert not any(note.code == "no_row_left" for note in step.comparison.notes)
    assert _row(step, 1).entry.further_runs is None


def test_a_published_figure_is_missed_only_where_fresh_runs_miss_it_too() -> None:
    before = builders.published(figure(1, time_s=100.0), figure(2, time_s=55.0))
    slow = [0.1 * f for f in QUIET_NOW], [0.16 * f for f in QUIET_NOW]
    looks = (measured({1: slow[0][:runs], 2: slow[1][:runs]}) for runs in (3, 4))
    first, second = (judge_session(before, now) for now in looks)
    assert _row(first, 2).status is RowStatus.NEEDS_RUNS
    assert _row(first, 2).suspected_after == 3
    assert _row(first, 2).entry.verdict is Verdict.INCONCLUSIVE
    assert _row(second, 2).entry.verdict is Verdict.INCONSISTENT
    # 2 % below the figure, and so within the tolerance, by an interval that is not.
    unsure = measured({1: slow[0][:3], 2: [0.09, 0.11, 0.14]})
    assert _row(judge_session(before, unsure), 2).suspected_after is None


@pytest.mark.thorough
def test_sessions_of_unchanged_training_rarely_end_regressed_and_end() -> None:
    rng = np.random.default_rng(31)
    alarms = 0
    for _ in range(60):
        # Where runs differ by 3%, most rows are looked at several times.
        before = baseline({1: [0.1 * math.exp(x) for x in rng.normal(0, 0.03, 6)]})
        made: list[float] = []
        is_open = True
        while is_open:
            made.append(0.1 * math.exp(rng.normal(0, 0.03)))
            step = judge_session(before, measured({1: made}))
            is_open = bool(step.needs_runs)
        assert len(made) <= 8
        alarms += step.comparison.exit_code == 1
    # 1% is 0.6 of 60; 4 or more would then come up less than once in 100 times.
    assert alarms < 4


def test_a_row_that_is_open_only_since_it_was_looked_at_often_says_so() -> None:
    def times_s(*places: int) -> dict[int, list[float]]:
        return {1: [0.1 + 0.004 * place for place in places]}

    before = baseline(times_s(-1, 1, -1, 1, -1, 1))
    now = measured(times_s(-1, 0, 1, -1, 0, 1, -1, 1))
    assert compare(before, [now]).entries[0].verdict is Verdict.OK
    row = _row(judge_session(before, now), 1)
    assert row.entry.verdict is Verdict.INCONCLUSIVE
    assert "looked at run by run, ok needs 98.1 % confidence" in reason_text(row.entry)


def test_a_session_ends_with_the_exit_code_of_what_it_says_of_a_lagging_rank() -> None:
    rng, slow = np.random.default_rng(0), Fault(computing=1.2, ranks=frozenset({1}))
    usual = well(rng, [1, 4], deviation=0.06)
    now = night_of(rng, [1, 4], 8, slow, deviation=0.06)
    rule = DecidedVerdict(baseline=usual, plan=PLAN)
    said = terminal.diagnosed(rule, now)
    code = terminal.status_of_verdict(0, failed_tests=False, failed_runs=False, comparison=said)
    files = Path("a"), Path("b")
    first, *_, last = terminal.verdict_lines(rule, now, files, colour=False, exit_code=code)
    assert rule.verdict_after(now).comparison.exit_code == ExitCode.INCONCLUSIVE
    assert (first.split()[0], code) == ("REGRESSED", ExitCode.REGRESSED)
    assert last.endswith("(exit code 1)")
