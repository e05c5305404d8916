"""What a session prints of itself, and what it hands to pytest-benchmark, without measuring."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import baseline, cpu_environment, environment, measured, results, run
from statements import known

from gpuscale import __version__
from gpuscale.plugin import terminal
from gpuscale.plugin.options import parse_options
from gpuscale.plugin.run_maker import stopping_rule
from gpuscale.records import HostLoad
from gpuscale.store.files import write_baseline

IDLE = HostLoad(other_cores=0.1, cores=4)
BUSY = HostLoad(other_cores=2.0, cores=4)


def header(*, gpus: bool = False, load: HostLoad = IDLE, **given: Any) -> str:
    where = environment() if gpus else cpu_environment()
    options = parse_options({"gpus": "1", "threads_per_rank": 3, **given})
    return "\n".join(terminal.header_lines(where, options, None, load))


def test_a_session_begins_with_the_devices_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    assert header(gpus=True) == (
        f"gpuscale {__version__}: {environment().hardware_label}, NCCL (device: cuda)"
    )
    on_cpus = f"on {cpu_environment().hardware_label} (device: cpu)"
    assert header() == (
        f"gpuscale {__version__}: no GPU found, measuring CPU ranks over gloo, 3 threads a rank, "
        f"{on_cpus}"
    )
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
