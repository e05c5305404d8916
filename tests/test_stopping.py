"""When a session stops making runs, and its exit code."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import CNN, baseline, measured, request, results, run
from builders.comparisons import comparison, entry
from changing import replace

from gpuscale.judge.stopping import DecidedVerdict
from gpuscale.plugin.options import parse_options
from gpuscale.plugin.run_maker import broken_by, stopping_rule
from gpuscale.plugin.terminal import status_of_verdict, status_without_verdict
from gpuscale.records import Failure, Run, Verdict
from gpuscale.store.files import write_baseline
from gpuscale.store.results import ResultsWriter
from gpuscale.workload.command_case import NO_BATCH

QUIET = (1.0, 1.001, 0.999)


def runs(gpus: int, *step_times_s: float | None) -> list[Run]:
    return [run(gpus, time_s, index=i) for i, time_s in enumerate(step_times_s, start=1)]


def test_runs_are_three_or_what_decides_has_three_to_eight() -> None:
    given = {"gpus": "1,2"}
    assert parse_options(given).bounds_of_runs == (None, 3)
    assert stopping_rule(parse_options(given)) is None
    judged = parse_options({**given, "baseline": "b.json"})
    assert judged.bounds_of_runs == (3, 8)


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
    # Its speedups may have needed one more.
    more = measured({1: [*QUIET, 1.0], 2: [0.5, 0.5005, 0.4995]})
    assert judge.reason_to_leave_out(request(index=5), more) == "improved after 4 runs"
    assert judge.verdict_after(fine).comparison.exit_code == 0


def test_earlier_results_in_place_of_a_baseline_are_judged_as_results(tmp_path: Path) -> None:
    path = tmp_path / "then.jsonl"
    with ResultsWriter(path, results()) as writer:
        for earlier in runs(1, *QUIET):
            writer.append(earlier)
    rule = stopping_rule(parse_options({"gpus": "1", "baseline": str(path)}))
    assert isinstance(rule, DecidedVerdict)
    assert rule.baseline_kind == "results"


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
        comparison=None if verdict is None else comparison(entry(verdict)),
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


def failed(
    gpus: int,
    kind: str = "raised",
    *,
    index: int = 1,
    batch: int | None = None,
    message: str = "IndexError: 8",
) -> Run:
    failure = Failure(kind=kind, message=message)  # type: ignore[arg-type] # a kind each
    made = run(gpus, None, configuration=replace(CNN, batch=batch), index=index)
    return replace(made, failure=failure, wall_s=1.0)


@pytest.mark.parametrize(
    ("runs", "broken"),
    [
        ([], ()),
        ([failed(1)], ()),
        ([failed(1), failed(4)], (1, 2, 4)),
        ([run(1, 0.1), failed(4), failed(4, index=2)], (4,)),
        ([failed(1), failed(1, index=2), run(1, 0.1)], ()),
        ([failed(1, "out_of_memory"), failed(2, "killed"), failed(4, "timeout")], ()),
        ([failed(1, "unread"), failed(2, "unread")], (1, 2, 4)),
        ([failed(1, "unread")], (1,)),
        ([failed(1, "unread", message=NO_BATCH)], (1, 2, 4)),
        ([failed(4), failed(4)], ()),
        ([failed(1, "timeout"), failed(2, "timeout")], ()),
        ([failed(1, "timeout"), failed(2), failed(1, "timeout", index=2)], (1,)),
        ([run(1, 0.1), failed(1, "timeout", index=2), failed(1, "timeout", index=3)], (1,)),
        ([failed(1, "timeout"), run(1, 0.1, index=2), failed(1, "timeout", index=3)], ()),
        ([run(1, 0.1), failed(1, "timeout", batch=8), failed(1, "timeout", batch=9)], ()),
        ([failed(1, "timeout", batch=8), failed(1, "timeout", batch=9)], (1,)),
    ],
    ids=[
        "nothing was run",
        "one run raised",
        "two runs raised",
        "on so many GPUs only",
        "it has given a number",
        "by memory, a signal or time",
        "lines that no format knows",
        "such lines once, which may differ on other numbers of ranks",
        "no batch, on whatever number of ranks",
        "two metrics of one run",
        "a row each",
        "two in succession of a row",
        "two in succession after a number",
        "a number between them",
        "larger batches after a number",
        "two batches of a row without a number",
    ],
)
def test_a_faulty_case_gets_no_further_runs(runs: Sequence[Run], broken: tuple[int, ...]) -> None:
    assert tuple(gpus for gpus in (1, 2, 4) if broken_by(run(gpus, 0.1).key, runs)) == broken
