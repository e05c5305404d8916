"""A session as a user makes it: real ranks, the table, the results file, pytest-benchmark."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from measuring import BENCH_CASES, REPOSITORY, Session, run_pytest, write_case

from gpuscale.scaling import scaling_points


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """mnist_cnn with both strategies on one and two CPU ranks, twice each."""
    return run_pytest(
        tmp_path_factory.mktemp("session"),
        str(BENCH_CASES / "test_mnist_cnn.py"),
        *("--gpus", "1,2", "--runs", "2", "--device", "cpu"),
        *("--benchmark-json", "benchmark.json"),
    )


@pytest.mark.alone
def test_the_first_line_says_that_cpu_ranks_are_measured(session: Session) -> None:
    assert session.exit_code == 0, session.output
    line = next(x for x in session.output.splitlines() if x.startswith("gpuscale "))
    assert "CPU ranks over gloo" in line
    assert "(device: cpu)" in line


@pytest.mark.alone
def test_runs_are_made_in_turn_so_that_a_drift_cancels(session: Session) -> None:
    ids = re.findall(r"test_mnist_cnn\[([^]]+)\] PASSED", session.output)
    assert ids == [
        *("dp-1gpu-run1", "ddp-1gpu-run1", "ddp-2gpus-run1"),
        *("dp-1gpu-run2", "ddp-1gpu-run2", "ddp-2gpus-run2"),
    ]


@pytest.mark.alone
def test_dp_on_two_cpu_ranks_is_skipped_with_the_reason(session: Session) -> None:
    assert "SKIPPED [2]" in session.output
    assert "DataParallel has no CPU counterpart" in session.output


@pytest.mark.alone
def test_each_run_is_on_disk_with_its_windows_and_ranks(session: Session) -> None:
    runs = session.results.runs
    assert [run.gpus for run in runs if run.configuration.strategy == "ddp"] == [1, 2, 1, 2]
    for run in runs:
        assert run.is_valid
        assert run.configuration.device == "cpu"
        assert run.configuration.size == "smoke"
        assert len(run.windows) >= 5
        assert len(run.ranks) == (1 if run.configuration.strategy == "dp" else run.gpus)
        assert len({rank.parameter_digest for rank in run.ranks}) == 1
        assert all(len(window.busy_s) == len(run.ranks) for window in run.windows)
        assert all(window.time_s == max(window.busy_s) for window in run.windows)
        assert run.telemetry_absent == "no GPU: measured on CPU"
        assert run.startup_s is not None


@pytest.mark.alone
def test_both_ranks_together_train_more_than_one_alone(session: Session) -> None:
    points = {(p.key.strategy, p.key.gpus): p for p in scaling_points(session.results.runs)}
    two = points["ddp", 2]
    assert two.speedup is not None
    # Two cores cannot do more than twice; other tests of this machine may be running.
    assert 0.5 < two.speedup.value < 2.5
    assert two.speedup.has_interval


@pytest.mark.alone
def test_the_benchmark_json_names_what_each_item_measured(session: Session) -> None:
    text = (session.folder / "benchmark.json").read_text()
    assert "UNSERIALIZABLE" not in text
    params = [benchmark["params"] for benchmark in json.loads(text)["benchmarks"]]
    assert {"scaling": "ddp-2gpus-run1"} in params


@pytest.mark.alone
def test_the_table_shows_each_row_with_its_interval_and_the_results_path(
    session: Session,
) -> None:
    table = session.output.split(" scaling -")[1]
    (row,) = re.findall(r"^mnist_cnn/ddp +2 +weak .*$", table, re.MULTILINE)
    assert re.search(r"ms (±\d+\.\d %|×\[).* \d\.\d\d \[\d+\.\d\d, \d+\.\d\d\]", row)
    assert str(session.results_path.name) in table
    assert "CPU ranks, smoke, fp32, synthetic data; intervals: 95%" in table


@pytest.mark.alone
def test_pytest_benchmark_gets_exactly_the_windows(session: Session) -> None:
    data = json.loads((session.folder / "benchmark.json").read_text())
    by_name = {benchmark["name"]: benchmark for benchmark in data["benchmarks"]}
    run = next(r for r in session.results.runs if r.gpus == 2 and r.index == 1)
    stats = by_name["test_mnist_cnn[ddp-2gpus-run1]"]["stats"]
    assert stats["rounds"] == len(run.windows)
    assert stats["iterations"] == run.steps_per_window
    assert stats["median"] == pytest.approx(run.median_step_time_s)
    assert "benchmark 'mnist_cnn/ddp'" in session.output


@pytest.mark.alone
def test_pytest_benchmark_compare_reads_its_json(session: Session) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare", "benchmark.json"],
        cwd=session.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "test_mnist_cnn[ddp-2gpus-run2]" in answer.stdout


@pytest.mark.alone
def test_compare_takes_the_newest_results_and_shows_both_shapes(session: Session) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "gpuscale", "compare", str(REPOSITORY / "baselines" / "arc4.json")],
        cwd=session.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 4, answer.stderr
    assert re.search(r"mnist_cnn/ddp +2 GPUs +E 0\.86 → \d\.\d\d", answer.stdout)
    assert "measured on CPU ranks, the baseline on GPUs" in answer.stdout


def test_collect_only_measures_nothing_and_writes_nothing(tmp_path: Path) -> None:
    session = run_pytest(
        tmp_path, str(BENCH_CASES), "--gpus", "1,2", "--device", "cpu", "--collect-only", "-q"
    )
    ids = [line for line in session.output.splitlines() if "::" in line]
    assert session.exit_code == 0, session.output
    assert len(ids) == 36
    assert [re.search(r"run(\d)", x).group(1) for x in ids] == sorted("123" * 12)  # type: ignore[union-attr] # every id has a run
    assert not (tmp_path / ".gpuscale").exists()


def test_without_gpus_asked_for_nothing_is_measured_and_the_reason_is_given(
    tmp_path: Path,
) -> None:
    session = run_pytest(tmp_path, str(BENCH_CASES / "test_mnist_cnn.py"), "-rs")
    assert session.exit_code == 0
    assert "1 skipped" in session.output
    assert "--gpus 1,2" in session.output


def test_more_ranks_than_cores_are_skipped_unless_told_otherwise(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    options = ["--gpus", "64", "--runs", "1", "--device", "cpu", "-rs"]
    session = run_pytest(tmp_path, *options)
    assert "64 CPU ranks need as many cores" in session.output
    assert "nothing was measured" in session.output


def test_oversubscribed_ranks_are_measured(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    options = ["--gpus", "3", "--runs", "1", "--device", "cpu", "--run-seconds", "0.1"]
    session = run_pytest(tmp_path, *options, "--oversubscribe")
    assert session.exit_code == 0, session.output
    (run,) = session.results.runs
    assert [rank.rank for rank in run.ranks] == [0, 1, 2]


def test_options_become_part_of_what_identifies_a_result(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    results = tmp_path / "chosen.jsonl"
    session = run_pytest(
        tmp_path,
        *("--gpus", "1", "--runs", "1", "--device", "cpu", "--run-seconds", "0.1"),
        *("--precision", "bf16", "--threads-per-rank", "2", "--results", str(results)),
    )
    assert session.exit_code == 0, session.output
    line = json.loads(results.read_text().splitlines()[1])
    configuration = line["run"]["configuration"]
    assert configuration["precision"] == "bf16"
    assert configuration["threads_per_rank"] == 2
    assert "bf16" in session.output.split(" scaling -")[1]


def test_the_plugin_works_uninstalled_from_a_checkout(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    session = run_pytest(
        tmp_path,
        *("-p", "gpuscale.plugin", "-p", "pytest_benchmark.plugin"),
        *("--gpus", "1", "--runs", "1", "--device", "cpu", "--run-seconds", "0.1"),
        environment=["PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", f"PYTHONPATH={REPOSITORY}"],
    )
    assert session.exit_code == 0, session.output
    assert session.results.runs[0].is_valid
