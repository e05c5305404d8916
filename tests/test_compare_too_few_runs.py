"""Rows most of whose runs gave no number: what is left is no pass."""

import pytest
from builders import CNN, baseline, figure, measured, published, results, run
from changing import replace

from gpuscale.judge.compare import compare
from gpuscale.records import Comparison, EntryVerdict, Failure, Run, Verdict

THEN = {
    1: [0.1, 0.1005, 0.0995, 0.1002, 0.0998, 0.1],
    4: [0.11, 0.1105, 0.1095, 0.1102, 0.1098, 0.11],
}
ONE = [0.1, 0.1001, 0.1002]


def _row(comparison: Comparison, gpus: int) -> EntryVerdict:
    (entry,) = [entry for entry in comparison.entries if entry.key.gpus == gpus]
    return entry


def _unsteady(gpus: int, index: int) -> Run:
    failure = Failure(kind="unsteady", message="windows alternate")
    return replace(run(gpus, None, index=index), failure=failure)


def test_one_run_that_survived_of_eight_is_no_pass() -> None:
    comparison = compare(baseline(THEN), [measured({1: [0.1] * 8, 4: [0.11] + [None] * 7})])
    row = _row(comparison, 4)
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.reason.code == "too_few_of_all_runs"
    assert (row.reason.facts["valid"], row.reason.facts["made"]) == (1, 8)
    assert comparison.exit_code == 3


def test_what_happened_to_the_others_is_told_by_kind() -> None:
    now = results(
        *(run(1, time_s) for time_s in ONE),
        run(4, 0.11),
        run(4, None, index=2),
        _unsteady(4, 3),
        _unsteady(4, 4),
        replace(run(4, 0.11), windows=(), measured={}),
    )
    reason = _row(compare(baseline(THEN), [now]), 4).reason
    assert reason.facts["failures"] == {"killed": 1, "unsteady": 2, "": 1}


@pytest.mark.parametrize(
    ("four", "verdict"),
    [
        ([0.11, 0.1101, None], Verdict.OK),
        ([0.11, 0.1101, None, None], Verdict.OK),
        ([0.11, 0.1101, None, None, None], Verdict.INCONCLUSIVE),
        ([0.11, None], Verdict.INCONCLUSIVE),
        ([0.11], Verdict.OK),
    ],
)
def test_a_pass_needs_two_numbers(four: list[float | None], verdict: Verdict) -> None:
    comparison = compare(baseline(THEN), [measured({1: ONE, 4: four})])
    assert _row(comparison, 4).verdict is verdict


def test_a_published_figure_is_not_met_by_too_few_valid_runs() -> None:
    before = published(figure(1, time_s=100.0), figure(4, time_s=27.0))
    now = measured({1: [0.1] * 3, 4: [0.1, None, None]}, configuration=CNN)
    row = _row(compare(before, [now]), 4)
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.reason.facts["failures"] == {"killed": 2}
