"""Runs go on until they tell enough, what that does to intervals, and how a session ends."""

import math
from pathlib import Path

import numpy as np
import pytest
from builders import baseline, measured, request, results, run

from gpuscale.analysis.scaling import scaling_points
from gpuscale.judge.stopping import DecidedVerdict, NarrowIntervals
from gpuscale.plugin.ending import status_of_verdict, status_without_verdict
from gpuscale.plugin.options import parse_options
from gpuscale.plugin.run_maker import stopping_rule
from gpuscale.records import (
    Comparison,
    EntryKey,
    EntryVerdict,
    Estimate,
    PointKey,
    Run,
    Scaling,
    Statement,
    Verdict,
)
from gpuscale.store import ResultsWriter, write_baseline


def one_percent(*gpus: int) -> NarrowIntervals:
    return NarrowIntervals(minimum_runs=3, target=0.01, gpus=gpus)


QUIET = (1.0, 1.001, 0.999)
NOISY = (1.0, 1.05, 0.95)


def runs(gpus: int, *step_times_s: float | None) -> list[Run]:
    return [run(gpus, time_s, index=i) for i, time_s in enumerate(step_times_s, start=1)]


FAILED = (None, None, None)


@pytest.mark.parametrize(
    ("step_times_s", "settled"),
    [
        pytest.param({1: QUIET, 2: QUIET}, {1: 3, 2: 3}, id="quiet runs"),
        pytest.param({1: (1.0, 1.0)}, {1: None}, id="fewer than the minimum"),
        pytest.param({1: (1.0, None, 1.0)}, {1: None}, id="a failed run does not count"),
        pytest.param({1: (None, *QUIET)}, {1: 3}, id="a failed run besides"),
        pytest.param({1: FAILED}, {1: None}, id="only failed runs"),
        pytest.param({1: NOISY}, {1: None}, id="noisy runs"),
        pytest.param({1: QUIET, 2: NOISY}, {1: None, 2: None}, id="a speedup needs T(1)"),
        pytest.param({1: NOISY, 2: QUIET}, {2: None}, id="a noisy reference"),
        pytest.param({1: QUIET, 2: QUIET, 4: NOISY}, {1: None, 2: 3, 4: None}, id="each by itself"),
        pytest.param({1: QUIET, 8: NOISY}, {1: 3}, id="numbers of GPUs that are not measured"),
        pytest.param({1: QUIET, 2: FAILED}, {1: 3}, id="a speedup that only failed"),
        pytest.param({1: FAILED, 2: QUIET}, {2: 3}, id="a reference that only failed"),
    ],
)
def test_a_point_is_settled_when_its_time_and_the_speedups_that_need_it_are(
    step_times_s: dict[int, tuple[float | None, ...]], settled: dict[int, int | None]
) -> None:
    made = [each for gpus, times_s in step_times_s.items() for each in runs(gpus, *times_s)]
    keys = {each.gpus: PointKey.of(each) for each in made}
    found = {gpus: one_percent(1, 2, 4).settled_after(keys[gpus], made) for gpus in settled}
    assert found == settled


def test_what_is_not_settled_at_the_end_is_named() -> None:
    measured = runs(1, *QUIET) + runs(2, *QUIET) + runs(4, *NOISY)
    found = one_percent(1, 2, 4).unsettled_points(measured)
    assert [point.key.gpus for point in found] == [4]
    short = runs(1, *QUIET) + runs(2, *QUIET[:2])
    assert [p.key.gpus for p in one_percent(1, 2).unsettled_points(short)] == [2]
    assert one_percent(1).unsettled_points(runs(1, None)) == ()


def test_runs_are_three_or_what_decides_has_three_to_eight() -> None:
    given = {"gpus": "1,2"}
    assert parse_options(given).bounds_of_runs == (None, 3)
    assert stopping_rule(parse_options(given)) is None
    asked = parse_options({**given, "runs": "4:9"})
    assert asked.bounds_of_runs == (4, 9)
    assert stopping_rule(asked) == NarrowIntervals(minimum_runs=4, target=0.01, gpus=(1, 2))
    narrower = stopping_rule(parse_options({**given, "runs": "4:9", "target_ci": "2.5%"}))
    assert narrower == NarrowIntervals(minimum_runs=4, target=0.025, gpus=(1, 2))
    judged = parse_options({**given, "baseline": "b.json"})
    assert judged.bounds_of_runs == (3, 8)


def test_an_interval_is_narrow_where_half_of_it_is_within_the_target() -> None:
    made = runs(1, *NOISY)
    (point,) = scaling_points(made)
    estimate = point.step_time_s
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    half = (estimate.high - estimate.low) / 2 / estimate.value
    for target, count in ((half, 3), (half * 1.01, 3), (half * 0.99, None)):
        rule = NarrowIntervals(minimum_runs=3, target=target, gpus=(1,))
        assert rule.settled_after(point.point_key, made) == count


def test_a_run_that_is_not_needed_is_left_out_with_the_reason() -> None:
    settled_runs = results(*runs(1, *QUIET))
    rule, fourth = one_percent(1), request(index=4)
    assert rule.reason_to_leave_out(fourth, settled_runs) == "settled after 3 runs"
    assert rule.reason_to_leave_out(fourth, measured({1: NOISY})) is None


def test_a_baseline_decides_which_runs_are_left_out(tmp_path: Path) -> None:
    write_baseline(tmp_path / "b.json", baseline({1: [2.0, 2.001, 1.999] * 2, 2: [1.0] * 6}))
    options = parse_options({"gpus": "1,2", "baseline": str(tmp_path / "b.json")})
    judge = stopping_rule(options)
    assert isinstance(judge, DecidedVerdict)
    assert (judge.plan.fewest_runs, judge.plan.most_runs, judge.gpus) == (3, 8, (1, 2))
    now = measured({1: QUIET, 2: [2.0, 2.001, 1.999], 4: QUIET})
    assert judge.reason_to_leave_out(request(index=3), now) is None
    # Twice as slow, and so to be confirmed by a fresh run; T(1) too, which S(2) is taken over.
    assert judge.reason_to_leave_out(request(gpus=2, index=4), now) is None
    assert judge.reason_to_leave_out(request(gpus=8, index=4), now) is None
    fine = measured({1: QUIET, 2: [0.5, 0.5005, 0.4995]})
    assert judge.reason_to_leave_out(request(index=4), fine) == "improved after 3 runs"
    assert judge.reason_to_leave_out(request(index=3), fine) is None
    assert judge.verdict_after(fine).comparison.exit_code == 0


def test_earlier_results_in_place_of_a_baseline_are_judged_as_results(tmp_path: Path) -> None:
    path = tmp_path / "then.jsonl"
    with ResultsWriter(path, results()) as writer:
        for earlier in runs(1, *QUIET):
            writer.append(earlier)
    rule = stopping_rule(parse_options({"gpus": "1", "baseline": str(path)}))
    assert isinstance(rule, DecidedVerdict)
    assert rule.baseline_kind == "results"


def covers(estimate: Estimate | None, truth: float) -> bool:
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low <= truth <= estimate.high


def sequential_session(
    random: np.random.Generator, deviation: float, gpus: tuple[int, ...] = (1, 2)
) -> list[Run]:
    """Runs on 1 and 2 GPUs in turn, as a session makes them; T(1) = 2 s and T(2) = 1 s."""
    made: list[Run] = []
    for index in range(1, 9):
        for count in gpus:
            time_s = 2 / count * math.exp(random.normal(0, deviation))
            candidate = run(count, time_s, index=index)
            if one_percent(*gpus).settled_after(PointKey.of(candidate), made) is None:
                made.append(candidate)
    return made


@pytest.mark.thorough
@pytest.mark.parametrize("deviation_over_target", [0.4, 0.9])
def test_intervals_after_stopping_still_cover_the_truth(deviation_over_target: float) -> None:
    # 95% without stopping; docs/evidence/rates.md states what is left. The worst deviations lie
    # about the target: there stopping is decided by how the deviation happens to look.
    random = np.random.default_rng(5)
    sessions, covered = 1500, {"T(1)": 0, "T(2)": 0, "S(2)": 0}
    for _ in range(sessions):
        made = sequential_session(random, deviation_over_target * 0.01)
        one, two = scaling_points(made)
        for name, estimate, truth in (
            ("T(1)", one.step_time_s, 2.0),
            ("T(2)", two.step_time_s, 1.0),
            ("S(2)", two.speedup, 4.0),
        ):
            covered[name] += covers(estimate, truth)
    # Three standard errors of the simulation below 93%.
    assert min(covered.values()) / sessions > 0.93 - 3 * math.sqrt(0.93 * 0.07 / sessions)


@pytest.mark.thorough
def test_an_item_alone_covers_the_truth_as_seldom_as_the_docs_say_and_no_seldomer() -> None:
    random = np.random.default_rng(7)
    sessions, covered = 3000, 0
    for _ in range(sessions):
        made = sequential_session(random, 0.015, gpus=(1,))
        (estimate,) = [point.step_time_s for point in scaling_points(made)]
        covered += covers(estimate, 2.0)
    assert covered / sessions == pytest.approx(0.912, abs=3 * math.sqrt(0.09 * 0.91 / sessions))


def test_a_quiet_machine_needs_the_fewest_runs_and_a_noisy_one_all() -> None:
    random = np.random.default_rng(6)
    assert len(sequential_session(random, 0.001)) == 6
    assert len(sequential_session(random, 0.1)) == 16


def comparison_of(verdict: Verdict) -> Comparison:
    unknown = Scaling(speedup=None, efficiency=None)
    key = EntryKey("tiny", "ddp", 1)
    reason = Statement.of("not_measured")
    entry = EntryVerdict(key=key, verdict=verdict, baseline=unknown, current=unknown, reason=reason)
    return Comparison(
        cluster="here",
        baseline_name="b",
        baseline_machine="here",
        current_machine="here",
        entries=(entry,),
    )


@pytest.mark.parametrize(
    ("given", "failed", "verdict", "expected"),
    [
        (pytest.ExitCode.OK, "", Verdict.OK, 0),
        (pytest.ExitCode.OK, "", Verdict.REGRESSED, 1),
        (pytest.ExitCode.TESTS_FAILED, "run", Verdict.OK, 3),
        (pytest.ExitCode.TESTS_FAILED, "run", Verdict.REGRESSED, 1),
        (pytest.ExitCode.TESTS_FAILED, "test", Verdict.OK, 1),
        (pytest.ExitCode.INTERRUPTED, "", Verdict.OK, 2),
        (pytest.ExitCode.INTERNAL_ERROR, "", Verdict.OK, 3),
        (pytest.ExitCode.NO_TESTS_COLLECTED, "", None, 4),
    ],
)
def test_the_exit_code_is_the_verdicts_unless_pytest_has_more_to_say(
    given: int, failed: str, verdict: Verdict | None, expected: int
) -> None:
    status = status_of_verdict(
        given,
        failed_tests=failed == "test",
        failed_runs=failed == "run",
        comparison=None if verdict is None else comparison_of(verdict),
    )
    assert status == expected


@pytest.mark.parametrize(
    ("given", "step_times_s", "needless", "expected"),
    [
        (pytest.ExitCode.OK, [None, 1.0], False, 0),
        (pytest.ExitCode.OK, [None], False, 1),
        (pytest.ExitCode.OK, [], False, 5),
        (pytest.ExitCode.OK, [], True, 0),
        (pytest.ExitCode.TESTS_FAILED, [1.0], False, 1),
        (pytest.ExitCode.INTERRUPTED, [], False, 2),
    ],
)
def test_without_a_baseline_a_session_without_numbers_never_ends_with_0(
    given: int, step_times_s: list[float | None], needless: bool, expected: int
) -> None:
    assert status_without_verdict(given, runs(1, *step_times_s), needless=needless) == expected
