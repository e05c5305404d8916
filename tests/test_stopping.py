"""What a session prints of itself, when it stops making runs, and its exit code."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import CNN, baseline, cpu_environment, environment, measured, request, results, run
from builders.comparisons import comparison, entry
from changing import replace
from statements import known

from gpuscale import __version__
from gpuscale.judge.stopping import DecidedVerdict
from gpuscale.plugin import terminal
from gpuscale.plugin.options import parse_options
from gpuscale.plugin.run_maker import broken_by, stopping_rule
from gpuscale.plugin.terminal import status_of_verdict, status_without_verdict
from gpuscale.records import Failure, HostLoad, Run, Verdict
from gpuscale.store.files import write_baseline
from gpuscale.store.results import create_results

QUIET = (1.0, 1.001, 0.999)


def runs(gpus: int, *step_times_s: float | None) -> list[Run]:
    return [run(gpus, time_s, index=i) for i, time_s in enumerate(step_times_s, start=1)]


def test_runs_are_three_or_what_decides_has_three_to_eight() -> None:
    given = {"gpus": "1,2"}
    assert parse_options(given).bounds_of_runs == (None, 3)
    assert stopping_rule(parse_options(given)) is None
    judged = parse_options({**given, "baseline": "b.json"})
    assert judged.bounds_of_runs == (3, 8)
    assert replace(judged, runs=(None, 6)).bounds_of_runs == (3, 6)


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
    with create_results(path, results()) as writer:
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
    compared = None if verdict is None else comparison(entry(verdict))
    parts = {"failed_tests": failed == "test", "failed_runs": failed == "run"}
    assert status_of_verdict(given, **parts, comparison=compared) == expected


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


def failed(gpus: int, kind: str = "raised", *, index: int = 1, batch: int | None = None) -> Run:
    failure = Failure(kind=kind, message="IndexError: 8")  # type: ignore[arg-type] # a kind each
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


IDLE = HostLoad(other_cores=0.1, cores=4)
BUSY = HostLoad(other_cores=2.0, cores=4)


def header(*, gpus: bool = False, load: HostLoad = IDLE, **given: Any) -> str:
    where = environment() if gpus else cpu_environment()
    options = parse_options({"gpus": "1", "threads_per_rank": 3, **given})
    return "\n".join(terminal.header_lines(where, options, None, load))


def test_a_session_begins_with_the_devices_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = environment().hardware_label
    assert header(gpus=True) == f"gpuscale {__version__}: {hardware}, NCCL (device: cuda)"
    on_cpus = f"on {cpu_environment().hardware_label} (device: cpu)"
    ranks = "measuring CPU ranks over gloo, 3 threads a rank"
    assert header() == f"gpuscale {__version__}: no GPU found, {ranks}, {on_cpus}"
    assert ": --device cpu, measuring CPU ranks" in header(device="cpu")
    options = parse_options({"gpus": "1"})
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    (line,) = terminal.header_lines(cpu_environment(), options, None, IDLE, is_command=True)
    assert f"gloo, OMP_NUM_THREADS=5 unless the command sets it, {on_cpus}" in line
    monkeypatch.delenv("OMP_NUM_THREADS")
    (line,) = terminal.header_lines(cpu_environment(), options, None, IDLE, is_command=True)
    assert "OMP_NUM_THREADS=1 unless" in line


def test_a_session_warns_of_a_busy_host_and_of_faults_on_purpose() -> None:
    busy = header(load=BUSY).splitlines()[1]
    assert busy == "this host is busy, so intervals may be wide: 2.0 of 4 cores used by others"
    warning = header(inject=["data=5ms"]).splitlines()[0]
    assert "data=5ms" in warning


def test_an_assertion_on_a_run_that_fails_names_the_run_in_a_few_words() -> None:
    assert repr(run(2, 0.1)) == "<mnist_cnn/ddp on 2 GPUs, run 1>"


def test_a_session_without_runs_says_that_it_wrote_no_file() -> None:
    (line,) = terminal.summary_lines(results(), Path("n.jsonl"), new_runs=(), interrupted=True)
    assert line == "nothing was measured: no results file was written"


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_session_without_a_valid_run_ends_with_what_to_do(is_interrupted: bool) -> None:
    made = results(run(1, None))
    asked: Any = {"new_runs": made.runs, "interrupted": is_interrupted}
    said = " ".join("\n".join(terminal.summary_lines(made, Path("n.jsonl"), **asked)).split())
    assert "no run gave a number: there is nothing to compare" in said
    go_on = "go on as before, with --resume n.jsonl and without --results"
    assert (go_on in said) is is_interrupted
    assert said.endswith("results: n.jsonl")


def test_a_session_ends_with_its_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    then, now = tmp_path / "then.json", tmp_path / "now.jsonl"
    write_baseline(then, baseline({1: [1.0, 1.001, 0.999] * 2}))
    rule = known(stopping_rule(parse_options({"gpus": "1", "baseline": str(then)})))
    # Half as slow again, which fresh runs have to confirm.
    slower = measured({1: [1.5, 1.501, 1.499]})
    shown = [*terminal.verdict_lines(rule, slower, (then, now), False, 1)]
    assert shown[0].startswith("INCONCLUSIVE")
    assert shown[-1].endswith("(exit code 1)")
    said = "\n".join(shown)
    assert "baseline      then.json: 6 runs a row" in said
    assert "now           now.jsonl: node1" in said
    assert "\033" not in said
    assert "\033" in "".join(terminal.verdict_lines(rule, slower, (then, now), True, 1))


@pytest.mark.parametrize("own", [None, {"more": 1}])
def test_pytest_benchmark_gets_the_parameters_of_a_test_and_its_run(own: Any) -> None:
    item: Any = SimpleNamespace(stash=pytest.Stash(), add_marker=lambda _: None)
    terminal.add_clock(item, "tiny/ddp")
    benchmark: Any = SimpleNamespace(extra_info={}, params=own, pedantic=lambda *_, **__: None)
    terminal.enter_run(item, benchmark, "ddp-2gpus-run1", run(2, 0.25))
    assert benchmark.params == {**(own or {}), "scaling": "ddp-2gpus-run1"}
