"""Runs go on until they tell enough, what that does to intervals, and how a session ends."""

import math

import numpy as np
import pytest
from builders import run

from gpuscale.plugin.stopping import StoppingRule, status_of_verdict, status_without_verdict
from gpuscale.records import (
    Comparison,
    EntryKey,
    EntryVerdict,
    ReasonCode,
    Run,
    SpeedupPair,
    Statement,
    Verdict,
)
from gpuscale.scaling import PointKey, scaling_points


def one_percent(*gpus: int) -> StoppingRule:
    return StoppingRule(minimum_runs=3, target=0.01, gpus=gpus)


QUIET = (1.0, 1.001, 0.999)
NOISY = (1.0, 1.05, 0.95)


def runs(gpus: int, *step_times_s: float | None) -> list[Run]:
    return [run(gpus, time_s, index=i) for i, time_s in enumerate(step_times_s, start=1)]


def settled(measured: list[Run], of_gpus: int, gpus: tuple[int, ...] = (1, 2, 4)) -> int | None:
    key = next(PointKey.of(r) for r in measured if r.gpus == of_gpus)
    return one_percent(*gpus).settled_after(key, measured)


def test_quiet_runs_are_settled_after_the_minimum() -> None:
    assert settled(runs(1, *QUIET) + runs(2, *QUIET), 1) == 3
    assert settled(runs(1, *QUIET) + runs(2, *QUIET), 2) == 3


def test_fewer_runs_than_the_minimum_are_never_settled() -> None:
    assert settled(runs(1, 1.0, 1.0), 1) is None


def test_failed_runs_do_not_count() -> None:
    assert settled(runs(1, 1.0, None, 1.0), 1) is None
    assert settled(runs(1, None, *QUIET), 1) == 3


def test_a_point_that_only_failed_is_not_settled() -> None:
    assert settled(runs(1, None, None, None), 1) is None


def test_noisy_runs_go_on() -> None:
    assert settled(runs(1, *NOISY), 1) is None


def test_one_gpu_goes_on_while_a_speedup_needs_it() -> None:
    measured = runs(1, *QUIET) + runs(2, *NOISY)
    assert settled(measured, 1) is None
    assert settled(measured, 2) is None


def test_more_gpus_go_on_while_their_reference_is_noisy() -> None:
    assert settled(runs(1, *NOISY) + runs(2, *QUIET), 2) is None


def test_one_settled_speedup_does_not_wait_for_another() -> None:
    measured = runs(1, *QUIET) + runs(2, *QUIET) + runs(4, *NOISY)
    assert settled(measured, 2) == 3
    assert settled(measured, 4) is None
    assert settled(measured, 1) is None


def test_numbers_of_gpus_that_are_not_measured_hold_up_nothing() -> None:
    assert settled(runs(1, *QUIET) + runs(4, *NOISY), 1, gpus=(1, 2)) == 3


def test_a_speedup_that_only_failed_is_not_waited_for() -> None:
    assert settled(runs(1, *QUIET) + runs(2, None, None, None), 1) == 3
    assert settled(runs(1, None, None, None) + runs(2, *QUIET), 2) == 3


def test_what_is_not_settled_at_the_end_is_named() -> None:
    measured = runs(1, *QUIET) + runs(2, *QUIET) + runs(4, *NOISY)
    found = one_percent(1, 2, 4).unsettled_points(measured)
    assert [point.key.gpus for point in found] == [4]
    short = runs(1, *QUIET) + runs(2, *QUIET[:2])
    assert [p.key.gpus for p in one_percent(1, 2).unsettled_points(short)] == [2]
    assert one_percent(1).unsettled_points(runs(1, None)) == ()


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
    # 95% without stopping; docs/measuring.md states what is left of it. The worst deviations lie
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
            assert estimate is not None
            assert estimate.low is not None
            assert estimate.high is not None
            covered[name] += estimate.low <= truth <= estimate.high
    # Three standard errors of the simulation below 93%.
    assert min(covered.values()) / sessions > 0.93 - 3 * math.sqrt(0.93 * 0.07 / sessions)


@pytest.mark.thorough
def test_an_item_alone_covers_the_truth_as_seldom_as_the_docs_say_and_no_seldomer() -> None:
    random = np.random.default_rng(7)
    sessions, covered = 3000, 0
    for _ in range(sessions):
        made = sequential_session(random, 0.015, gpus=(1,))
        (estimate,) = [point.step_time_s for point in scaling_points(made)]
        assert estimate is not None
        assert estimate.low is not None
        assert estimate.high is not None
        covered += estimate.low <= 2.0 <= estimate.high
    assert covered / sessions == pytest.approx(0.912, abs=3 * math.sqrt(0.09 * 0.91 / sessions))


def test_a_quiet_machine_needs_the_fewest_runs_and_a_noisy_one_all() -> None:
    random = np.random.default_rng(6)
    assert len(sequential_session(random, 0.001)) == 6
    assert len(sequential_session(random, 0.1)) == 16


def comparison_of(verdict: Verdict) -> Comparison:
    unknown = SpeedupPair(speedup=None, efficiency=None)
    key = EntryKey("tiny", "ddp", 1)
    reason = Statement.of(ReasonCode.NOT_MEASURED)
    entry = EntryVerdict(key=key, verdict=verdict, baseline=unknown, current=unknown, reason=reason)
    return Comparison(
        baseline_name="b", baseline_machine="here", current_machine="here", entries=(entry,)
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
    ("given", "measured", "valid", "needless", "expected"),
    [
        (pytest.ExitCode.OK, True, True, False, 0),
        (pytest.ExitCode.OK, True, False, False, 1),
        (pytest.ExitCode.OK, False, False, False, 5),
        (pytest.ExitCode.OK, False, False, True, 0),
        (pytest.ExitCode.TESTS_FAILED, True, True, False, 1),
        (pytest.ExitCode.INTERRUPTED, False, False, False, 2),
    ],
)
def test_without_a_baseline_a_session_without_numbers_never_ends_with_0(
    given: int, measured: bool, valid: bool, needless: bool, expected: int
) -> None:
    status = status_without_verdict(given, measured=measured, valid=valid, needless=needless)
    assert status == expected
