"""A session as a user makes it: real ranks, the table, the results file, pytest-benchmark."""

import json
import re
from pathlib import Path

import pytest
from measuring import BENCH_CASES, REPOSITORY, Session, run_pytest, write_case
from statements import known
from warm_sessions import AT_FIRST, environment_of_sessions

QUICK = ("--runs", "1", "--device", "cpu", "--run-seconds", "0.1")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A case of a shipped one's name with both strategies on one and two CPU ranks, twice each."""
    folder = tmp_path_factory.mktemp("session")
    case = 'class MnistCnn(Tiny):\n    strategies = ("dp", "ddp")\n\n\nCase = MnistCnn'
    write_case(folder, case)
    asked = ("--gpus", "1,2,64", "--runs", "2", "--device", "cpu", "--run-seconds", "0.1", "-rs")
    return run_pytest(folder, *asked, "--benchmark-json", "benchmark.json")


def test_runs_are_made_in_turn_so_that_a_drift_cancels(session: Session) -> None:
    assert session.exit_code == 0, session.output
    ids = re.findall(r"test_case\[([^]]+)\] PASSED", session.output)
    each = ("dp-1gpu", "ddp-1gpu", "ddp-2gpus")
    assert ids == [f"{name}-run{index}" for index in (1, 2) for name in each]


def test_what_cannot_be_measured_here_is_skipped_once_with_the_reason(session: Session) -> None:
    skipped = re.findall(r"test_case\[([^]]+)\] SKIPPED", session.output)
    assert skipped == ["dp-2gpus-run1", "dp-64gpus-run1", "ddp-64gpus-run1"]
    assert "1 skipped: dp on 2 devices needs GPUs" in session.output
    assert "1 skipped: 64 CPU ranks need as many cores" in session.output
    assert "go on with" not in session.output


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


def test_pytest_benchmark_gets_exactly_the_windows(session: Session) -> None:
    text = (session.folder / "benchmark.json").read_text()
    assert "UNSERIALIZABLE" not in text
    by_name = {benchmark["name"]: benchmark for benchmark in json.loads(text)["benchmarks"]}
    run = next(r for r in session.results.runs if r.gpus == 2 and r.index == 1)
    benchmark = by_name["test_case[ddp-2gpus-run1]"]
    assert benchmark["params"] == {"scaling": "ddp-2gpus-run1"}
    assert benchmark["stats"]["rounds"] == len(run.windows)
    assert benchmark["stats"]["iterations"] == run.steps_per_window
    assert benchmark["extra_info"].items() >= {"gpus": 2, "run": 1, "device": "cpu"}.items()
    steps_s = [window.time_s / known(run.steps_per_window) for window in run.windows]
    assert benchmark["stats"]["data"] == pytest.approx(steps_s)


def test_the_table_of_pytest_benchmark_is_shown_if_asked(session: Session, tmp_path: Path) -> None:
    assert "benchmark 'mnist_cnn/ddp'" not in session.output
    write_case(tmp_path, "Case = Tiny")
    asked = run_pytest(tmp_path, *QUICK, "--gpus", "1", "--benchmark-columns", "median,rounds")
    assert "benchmark 'tiny/ddp': 1 tests" in asked.output, asked.output


def test_collect_only_measures_nothing_and_writes_nothing(tmp_path: Path) -> None:
    asked = ("--gpus", "1,2", "--device", "cpu", "--collect-only", "-q")
    session = run_pytest(tmp_path, str(BENCH_CASES), *asked).ended()
    runs = re.findall(r"::.*run(\d)\]", session.output)
    assert runs == sorted(runs)
    # dp on two CPU ranks is impossible, and one item says so.
    assert runs.count("1") > runs.count("2") == runs.count("3") > 12
    assert not (tmp_path / ".gpuscale").exists()


def test_without_gpus_asked_for_nothing_is_measured_and_the_reason_is_given(tmp_path: Path) -> None:
    session = run_pytest(tmp_path, str(BENCH_CASES / "test_mnist_cnn.py"), "-rs").ended()
    assert "gpuscale measured nothing" in session.output
    assert "--gpus 1,2" in session.output


def readme_case() -> str:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (case,) = [block for block in blocks if "TrainingCase" in block]
    return case


def test_what_tests_import_leaves_their_sessions_one_server() -> None:
    assert environment_of_sessions() == AT_FIRST


def test_the_readmes_case_is_measured_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "test_digits_mlp.py").write_text(readme_case())
    session = run_pytest(tmp_path, *QUICK, "--gpus", "2").ended()
    assert [(run.gpus, run.is_valid) for run in session.results.runs] == [(2, True)]


def test_an_exception_without_a_line_of_the_user_is_shown_without_frames(tmp_path: Path) -> None:
    case = readme_case().replace("nn.Linear(64, 4096)", "nn.Linear(60, 4096)")
    (tmp_path / "test_digits_mlp.py").write_text(case)
    session = run_pytest(tmp_path, *QUICK, "--gpus", "1")
    shown = session.output.split("= FAILURES =")[1].split("short test summary")[0]
    message, place = shown.strip().splitlines()[2:4]
    assert message.startswith("rank 0 raised RuntimeError: "), session.output
    assert place.startswith("in the forward pass of DigitsMlp's model, layer 0: Linear(")
    assert shown.count(message) == 1
    assert "Traceback" not in shown


def test_fewer_outputs_than_classes_are_told_with_what_to_set(tmp_path: Path) -> None:
    fewer = """
class Case(Tiny):
    def model(self):
        return torch.nn.Linear(16, 5)
"""
    write_case(tmp_path, fewer)
    (run,) = run_pytest(tmp_path, *QUICK, "--gpus", "1").results.runs
    assert known(run.failure).message.endswith(
        "; labels are 0 to 9 (`classes` is 10), the model has 5 outputs: change one of the two"
    )


@pytest.mark.thorough
def test_a_checkouts_plugin_measures_with_importlib_mode(tmp_path: Path) -> None:
    package = tmp_path / "our_cases"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "test_digits_mlp.py").write_text(readme_case())
    plugins = ("-p", "gpuscale.plugin", "-p", "pytest_benchmark.plugin")
    variables = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(REPOSITORY)}
    asked = ("--import-mode", "importlib", "--gpus", "2")
    session = run_pytest(tmp_path, *plugins, *QUICK, *asked, **variables).ended()
    assert session.results.runs[0].is_valid
