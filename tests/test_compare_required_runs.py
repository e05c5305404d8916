"""The required runs of an inconclusive row, or why none help, and what the row missed."""

import pytest
from builders import baseline, measured
from changing import replace
from statements import codes_in, known

from gpuscale.judge.compare import compare
from gpuscale.judge.compare.decision import RequiredRuns
from gpuscale.judge.compare.while_measuring import SequentialPlan, judge_session
from gpuscale.records import (
    EntryVerdict,
    Finding,
    Statement,
    ToleranceOverride,
    Tolerances,
    Verdict,
)

NOISY = [0.098, 0.102, 0.1015, 0.099, 0.102, 0.098]
QUIET = [0.1 * f for f in (0.997, 1.003, 1.000, 1.004, 0.998, 0.999)]


@pytest.mark.parametrize(
    ("needed", "made", "credible"), [(1, 3, 1), (9, 3, 9), (10, 3, None), (5, 1, None)]
)
def test_only_a_credible_number_is_advised(needed: int, made: int, credible: int | None) -> None:
    found = RequiredRuns(needed=needed, made=made)
    assert found.credible == credible
    assert found.advice == (
        Statement.of("unknown_further_runs", too_few=made)
        if credible is None
        else Statement.of("further_runs", needed=needed)
    )


def test_a_session_and_a_comparison_advise_the_same_on_the_same_runs() -> None:
    before, now = baseline({1: NOISY}), measured({1: [0.096, 0.105, 0.102]})
    (compared,) = compare(before, [now]).entries
    (looked,) = judge_session(before, [now], SequentialPlan(fewest_runs=3, most_runs=8)).entries
    assert compared.verdict is looked.entry.verdict is Verdict.INCONCLUSIVE
    assert compared.further_runs == looked.entry.further_runs


def _only(now: list[float]) -> EntryVerdict:
    before = baseline({1: QUIET})
    (row,) = compare(before, [measured({1: now})]).entries
    return row


def test_a_loss_that_chance_may_explain_says_so_and_at_which_level() -> None:
    row = _only([0.13, 0.155, 0.115])
    assert row.verdict is Verdict.INCONCLUSIVE
    assert known(known(row.change).high) < 0
    assert row.reason.code == "not_beyond_chance"
    assert row.reason.facts["significance"] == 0.01


def test_an_uncertain_row_names_the_loss_that_it_does_not_exclude() -> None:
    reason = _only([0.09, 0.1, 0.11]).reason
    assert reason.code == "loss_not_excluded"
    assert reason.facts["ok_bound"] == 0.05


def test_what_lasts_of_a_speedups_spread_is_told_by_the_speedup() -> None:
    wide = Tolerances(allocation_deviation_time=0.001, allocation_deviation_speedup=0.06)
    before = replace(baseline({1: QUIET, 4: [1.1 * t for t in QUIET]}), tolerances=wide)
    now = measured({1: QUIET[:3], 4: [1.1 * t for t in QUIET[:3]]})
    row = compare(before, [now]).entries[1]
    assert (row.verdict, row.changed_quantity) == (Verdict.INCONCLUSIVE, "E(n)")
    assert row.further_runs is None
    remedy = row.reason.facts["remedy"]
    assert isinstance(remedy, Statement)
    assert remedy.code == "nights_differ"
    assert remedy.facts["deviation"] == pytest.approx(0.062, abs=1e-3)


def test_noise_of_the_runs_on_1_gpu_is_what_lasts_of_a_speedups_spread() -> None:
    loud = [0.1 * f for f in (0.9, 1.1, 0.95, 1.12, 0.88, 1.04)]
    row = compare(baseline({1: loud, 4: QUIET}), [measured({1: QUIET, 4: QUIET})]).entries[1]
    assert (row.verdict, row.changed_quantity) == (Verdict.INCONCLUSIVE, "E(n)")
    assert "baseline_runs_differ" in codes_in(row.reason)
    row = compare(baseline({1: QUIET, 4: QUIET}), [measured({1: loud[:3], 4: QUIET})]).entries[1]
    assert (row.verdict, row.changed_quantity) == (Verdict.INCONCLUSIVE, "E(n)")
    assert "baseline_runs_differ" not in codes_in(row.reason)


def test_the_limits_of_the_row_on_1_gpu_hold_for_it_as_the_reference() -> None:
    then, faster = baseline({1: QUIET, 4: QUIET}), measured({1: [0.09] * 3, 4: QUIET[:3]})
    usual = compare(then, [faster]).entries[1]
    assert usual.finding is Finding.REFERENCE_FASTER
    # By a margin of 20 %, T(1) has not moved, so that nothing explains the lost speedup.
    wide = Tolerances(overrides=(ToleranceOverride(gpus=1, margin=0.2),))
    row = compare(replace(then, tolerances=wide), [faster]).entries[1]
    assert (row.verdict, row.finding) == (Verdict.INCONCLUSIVE, None)
