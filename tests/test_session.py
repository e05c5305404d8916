"""Sessions that go on from results: what they leave out, what they judge, how they end."""

import re
import signal
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from changing import replace
from hosts import within_limit
from measuring import Session, run_pytest, start_pytest, write_case
from statements import known

from gpuscale.judge.baseline import baseline_from_results
from gpuscale.records import Results
from gpuscale.store.files import write_baseline
from gpuscale.store.results import create_results, read_results

QUICK = ("--device", "cpu", "--run-seconds", "0.1")
STEADY = (1.0, 1.001, 0.999)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose session was killed while it wrote one of the last runs."""
    folder = tmp_path_factory.mktemp("killed")
    write_case(folder, "Case = Tiny")
    path = folder / "night.jsonl"
    options = ("--gpus", "1,2", "--runs", "2", "--results", "night.jsonl")
    session = start_pytest(folder, *QUICK, *options)
    assert within_limit(lambda: path.exists() or session.poll() is not None)
    assert within_limit(lambda: path.read_bytes().count(b"\n") >= 3 or session.poll() is not None)
    assert session.poll() is None, (folder / "log").read_text()
    session.send_signal(signal.SIGKILL)
    session.wait()
    lines = path.read_bytes().splitlines(keepends=True)
    # As if the kill had come while the third run was being written.
    path.write_bytes(b"".join(lines[:3]) + b'{"run": {"configuration"')
    return folder


@pytest.fixture(scope="module")
def resumed(killed: Path) -> Session:
    arguments = ("--gpus", "1,2", "--runs", "2", "--resume", "night.jsonl", "-rs")
    return run_pytest(killed, *QUICK, *arguments)


def test_a_killed_session_goes_on_where_it_was(killed: Path, resumed: Session) -> None:
    assert resumed.exit_code == 0, resumed.output
    assert "resuming night.jsonl: 2 runs so far" in resumed.output
    assert "its last line is cut short" in resumed.output
    assert re.findall(r"\[(\S+)\] PASSED", resumed.output) == ["ddp-1gpu-run2", "ddp-2gpus-run2"]
    assert re.findall(r"PASSED .*\[ *(\d+)%\]", resumed.output) == ["50", "100"]
    assert "2 skipped: measured before, in night.jsonl" in resumed.output
    runs = read_results(killed / "night.jsonl").runs
    assert [(run.gpus, run.index) for run in runs] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    table = resumed.output.split(" scaling -")[1]
    assert len(re.findall(r"^tiny/ddp +[12] +2 ", table, re.MULTILINE)) == 2


def test_a_session_refuses_what_does_not_belong_together(killed: Path, resumed: Session) -> None:
    path = killed / "night.jsonl"
    before = path.read_bytes()
    resume = ("--gpus", "1", "--resume", path.name)
    other = run_pytest(killed, *QUICK, *resume, "--precision", "bf16").ended(4)
    assert "precision: fp32 → bf16" in other.output
    assert path.read_bytes() == before


def test_runs_of_a_changed_case_are_not_added_to_others(killed: Path, resumed: Session) -> None:
    path, case = killed / "night.jsonl", killed / "test_tiny.py"
    before, text = path.read_bytes(), case.read_text()
    case.write_text(f"{text}\n# changed")
    session = run_pytest(killed, *QUICK, "--gpus", "1", "--runs", "3", "--resume", path.name)
    case.write_text(text)
    assert "script test_tiny.py: " in session.ended(4).output
    # The table would be that of the case before.
    assert "speedup" not in session.output
    assert path.read_bytes() == before


@pytest.fixture(scope="module")
def real(killed: Path, resumed: Session) -> Results:
    return read_results(killed / "night.jsonl")


def write_results(path: Path, real: Results, steps_s: Mapping[str, Sequence[float]]) -> Results:
    """A results file of some cases: a real run on 1 GPU, with these step times."""
    run = next(run for run in real.runs if run.gpus == 1)
    with create_results(path, replace(real, created_at=datetime.now(UTC).isoformat())) as file:
        for case, times_s in steps_s.items():
            configuration = replace(run.configuration, case=case)
            for index, step_s in enumerate(times_s, start=1):
                time_s = step_s * known(run.steps_per_window)
                windows = [replace(w, time_s=time_s, busy_s=(time_s,)) for w in run.windows]
                own = {"configuration": configuration, "index": index, "windows": (*windows,)}
                file.append(replace(run, **own))
    return read_results(path)


def write_as_baseline(folder: Path, real: Results, steps_s: Mapping[str, Sequence[float]]) -> None:
    then = write_results(folder / "then.jsonl", real, steps_s)
    baseline = baseline_from_results([then], name="b", cluster="here", minimum_runs=3)
    write_baseline(folder / "b.json", baseline)


def judged(folder: Path, real: Results, *, factor: float, more: Sequence[str] = ()) -> Session:
    """A resumed session of three runs, judged against a baseline slower by a factor."""
    write_case(folder, "Case = Tiny")
    slower = [factor * step_s for step_s in STEADY]
    write_as_baseline(folder, real, {"tiny": slower, "elsewhere": slower})
    write_results(folder / "now.jsonl", real, {"tiny": STEADY})
    options = ("--gpus", "1", "--baseline", "b.json", "--runs", "3:6", "--resume", "now.jsonl")
    return run_pytest(folder, *QUICK, *options, *more)


def test_what_is_clearly_fine_stops_after_the_fewest_runs(tmp_path: Path, real: Results) -> None:
    session = judged(tmp_path, real, factor=20).ended()
    assert len(read_results(tmp_path / "now.jsonl").runs) == 3
    assert "resuming now.jsonl: 3 runs so far" in session.output
    assert "cut short" not in session.output
    assert "3 skipped: improved after 3 runs" in session.output
    # A line for each would hide the others.
    assert " SKIPPED (" not in session.output
    assert "1 improved (exit code 0)" in session.output
    assert "elsewhere" not in session.output


@pytest.mark.thorough
def test_a_failed_import_keeps_a_good_verdict_from_0(tmp_path: Path, real: Results) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_that_name\n")
    session = judged(tmp_path, real, factor=20, more=["--continue-on-collection-errors"])
    assert "1 improved (exit code 1)" in session.output
    assert session.exit_code == 1, session.output


def test_a_regression_is_called_so_only_after_a_fresh_run(tmp_path: Path, real: Results) -> None:
    # No machine makes a step in 10 ns, however it is used otherwise.
    session = judged(tmp_path, real, factor=1e-8).ended(1)
    runs = len(read_results(tmp_path / "now.jsonl").runs)
    assert runs > 3
    assert f"skipped: regressed after {runs} runs" in session.output
    assert "REGRESSED" in session.output


def test_a_session_that_measures_nothing_comparable_says_so(tmp_path: Path, real: Results) -> None:
    write_as_baseline(tmp_path, real, {"elsewhere": STEADY})
    write_case(tmp_path, "Case = Tiny")
    write_results(tmp_path / "now.jsonl", real, {"tiny": STEADY})
    options = ("--gpus", "1", "--baseline", "b.json", "--resume", "now.jsonl")
    session = run_pytest(tmp_path, *QUICK, *options).ended(4)
    assert len(read_results(tmp_path / "now.jsonl").runs) == 3
    assert "no entry in the baseline" in session.output


def test_an_interrupted_session_tells_its_exit_code(tmp_path: Path, real: Results) -> None:
    path = write_case(tmp_path, "Case = Tiny")
    # Ctrl-C may arrive at an instruction that has no line number.
    interrupt = "def interrupt():\n    raise KeyboardInterrupt\n"
    unnumbered = "interrupt.__code__ = interrupt.__code__.replace(co_linetable=b'')\n"
    path.write_text(f"{interrupt}{unnumbered}{path.read_text()}    interrupt()\n")
    write_as_baseline(tmp_path, real, {"tiny": STEADY})
    session = run_pytest(tmp_path, *QUICK, "--gpus", "1", "--baseline", "b.json").ended(2)
    assert "too few runs to look at (1 so far)" in session.output
    assert "more runs" not in session.output
    assert "1 inconclusive (exit code 2)" in session.output
