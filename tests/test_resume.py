"""A session that was ended goes on: only what lacks is measured, into the same file."""

import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from builders import CNN, COMMAND, environment, measured, request
from builders import run as made
from changing import replace
from test_store import refusal

from gpuscale import __version__
from gpuscale.base.errors import UsageError
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.measure.telemetry.summary import with_telemetry
from gpuscale.plugin import results_file
from gpuscale.plugin.options import parse_options
from gpuscale.plugin.results_file import Recorder, is_recorded, validate_environment
from gpuscale.records import Environment, GpuDevice, RunRequest
from gpuscale.store.results import ResultsFile, create_results, read_results

HERE = Path("night.jsonl")
NOW = datetime(2026, 11, 21, 3, 30, 15, tzinfo=UTC)
RESULTS = measured({1: [1.0], 2: [1.0]})
A100 = GpuDevice(index=0, name="A100")


def writer(path: Path) -> ResultsFile:
    return create_results(path, replace(RESULTS, created_at=NOW.isoformat()))


def file_of(path: Path, count: int) -> bytes:
    with writer(path) as file:
        for run in (RESULTS.runs * count)[:count]:
            file.append(run)
    return path.read_bytes()


def test_resuming_appends_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "night.jsonl"
    before = file_of(path, 1)
    with ResultsFile(path) as resumed:
        assert resumed.results == read_results(path)
        assert not resumed.is_cut_short
        assert path.read_bytes() == before
        resumed.append(RESULTS.runs[1])
    assert path.read_bytes().startswith(before)
    assert read_results(path).runs == RESULTS.runs
    assert [entry.name for entry in tmp_path.iterdir()] == ["night.jsonl"]


@pytest.mark.parametrize("partial", [b"{", b'{"run": {"configuration": {"ca', b"\0\0\0", b"\xff"])
def test_a_line_cut_short_gives_way_to_the_next_run(tmp_path: Path, partial: bytes) -> None:
    path = tmp_path / "night.jsonl"
    whole = file_of(path, 1)
    path.write_bytes(whole + partial)
    with ResultsFile(path) as resumed:
        assert resumed.results.runs == RESULTS.runs[:1]
        assert resumed.is_cut_short
        assert path.read_bytes() == whole + partial
        resumed.append(RESULTS.runs[1])
        resumed.append(RESULTS.runs[1])
    assert read_results(path).runs == (*RESULTS.runs, RESULTS.runs[1])


def test_two_sessions_never_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "night.jsonl"
    with writer(path):
        assert "another session is writing to it" in refusal(ResultsFile, path)
    with ResultsFile(path):
        assert "another session is writing to it" in refusal(ResultsFile, path)
    ResultsFile(path).close()


def test_a_file_that_changed_meanwhile_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "night.jsonl"
    whole = file_of(path, 1)
    with ResultsFile(path) as resumed:
        path.write_bytes(whole + b" ")
        assert "has changed since it was read" in refusal(resumed.append, RESULTS.runs[1])
    assert path.read_bytes() == whole + b" "


def compared(change: Callable[[Environment], Environment]) -> None:
    then = replace(measured({1: [1.0]}), gpuscale_version=__version__)
    validate_environment(HERE, then, change(then.environment), ())


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda e: replace(e, torch_version="2.15"), "torch_version: 2.11 → 2.15"),
        (lambda e: replace(e, nccl_version="2.27.5"), "nccl_version: None → 2.27.5"),
        (lambda e: replace(e, cpu_model="EPYC"), "cpu_model: Xeon Gold 6138 → EPYC"),
        (lambda e: replace(e, cases_revision="a1b2"), "cases_revision: None → a1b2"),
        (lambda e: replace(e, gpus=e.gpus[:3]), "GPUs: Tesla V100-SXM2-16GB, Tesla"),
        (lambda e: replace(e, gpus=(A100, *e.gpus[1:])), "→ A100, Tesla V100"),
        (lambda e: replace(e, variables={"NCCL_ALGO": "Ring"}), "NCCL_ALGO: not set → Ring"),
    ],
)
def test_another_environment_is_refused_with_the_difference(
    change: Callable[[Environment], Environment], difference: str
) -> None:
    with pytest.raises(UsageError, match="was measured in another environment") as caught:
        compared(change)
    assert difference in str(caught.value)
    assert "measure into a new file" in str(caught.value)


def test_another_node_of_the_same_kind_is_no_other_environment() -> None:
    gpus = tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in environment().gpus)
    there = replace(environment(), host="node2", job_id="4712", kernel="6.8", gpus=gpus)
    compared(lambda _: replace(there, variables={"CUDA_VISIBLE_DEVICES": "2,3"}))


def test_another_driver_is_refused() -> None:
    where = replace(environment(), driver_version="550.54")
    then = replace(measured({1: [1.0]}), gpuscale_version=__version__, environment=where)
    validate_environment(HERE, then, where, ())
    with pytest.raises(UsageError, match=r"driver_version: 550\.54 → 560\.35"):
        validate_environment(HERE, then, replace(where, driver_version="560.35"), ())


@pytest.mark.parametrize(
    ("version", "injections", "said"),
    [(__version__, ("data=5ms",), "injections: none → data=5ms"), ("0.0.9", (), "gpuscale: 0.0.9")],
)
def test_other_results_are_not_joined(version: str, injections: tuple[str, ...], said: str) -> None:
    then = replace(measured({1: [1.0]}), gpuscale_version=version)
    with pytest.raises(UsageError, match=re.escape(said)):
        validate_environment(HERE, then, then.environment, injections)


def test_valid_runs_are_not_made_again_and_failed_ones_are() -> None:
    runs = (made(1, 1.0), made(1, None, index=2), made(2, 1.0, index=3))
    assert is_recorded(request(), runs)
    assert not is_recorded(request(index=2), runs)
    assert not is_recorded(request(index=3), runs)
    assert is_recorded(request(gpus=2, index=3), runs)
    assert is_recorded(request(index=2), (*runs, made(1, 1.0, index=2)))


@pytest.mark.parametrize(("batch_from_output", "batch"), [(True, 32), (False, None)])
def test_a_command_has_the_batch_printed_before(batch_from_output: bool, batch: int | None) -> None:
    command = replace(COMMAND, batch_from_output=batch_from_output)
    failed, on_two_gpus = made(1, None, batch_per_gpu=64), made(2, 1.0, batch_per_gpu=16)
    earlier = (failed, on_two_gpus, made(1, 1.0, batch_per_gpu=32))
    asked = request(command=command, batch_per_gpu=None)
    assert results_file.with_printed(asked, earlier).batch_per_gpu == batch
    assert results_file.with_printed(request(), earlier) == request()


@pytest.mark.parametrize(
    ("asked", "difference"),
    [
        (request(configuration=replace(CNN, precision="bf16")), "precision: fp32 → bf16"),
        (request(2, configuration=replace(CNN, data_workers=2)), "data_workers: None → 2"),
        (request(batch_per_gpu=64), "batch_per_gpu: 128 → 64"),
        (request(sample_shape=(3, 8)), r"sample_shape: \(1, 28, 28\) → \(3, 8\)"),
    ],
)
def test_options_that_train_in_another_way_are_refused(asked: RunRequest, difference: str) -> None:
    with pytest.raises(UsageError, match=difference):
        results_file.validate_configurations(HERE, [made(1, 1.0)], [request(), asked])


def recorder_in(folder: Path, where: Environment, name: str = "night.jsonl") -> Recorder:
    options = parse_options({"gpus": "1", "results": str(folder / name)})
    return Recorder(where, options, folder=folder)


@pytest.mark.parametrize(
    ("words", "recorded"),
    [
        (["/usr/bin/pytest", "my cases", "--gpus=1,2"], "pytest 'my cases' --gpus=1,2"),
        (["/site/pytest/__main__.py", "cases"], "pytest cases"),
        (["/site/gpuscale/__main__.py", "run", "--", "a", "{gpus}"], "gpuscale run -- a {gpus}"),
        (["nightly.py", "--gpus", "1"], None),
        (["/usr/bin/gpuscale", "run", "--", "sh", "-c", "a\nb"], None),
    ],
)
def test_results_know_the_command_line_that_made_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], recorded: str | None
) -> None:
    monkeypatch.setattr(sys, "argv", words)
    recorder = recorder_in(tmp_path, environment())
    assert recorder.measured.started_as == recorded


def test_a_session_has_a_file_from_its_first_run_on(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path, environment(job_id="4711"))
    recorder.close()
    assert list(tmp_path.iterdir()) == []
    directory = RunDirectory(path=tmp_path)
    directory.gpus.write({})
    kept = recorder.append(with_telemetry(made(1, 1.0), directory))
    assert (kept.allocation, kept.telemetry_absent) == ("4711", "no GPU: measured on CPU")
    recorder.close()
    assert recorder.new_runs == [kept]
    assert recorder.measured.runs == (kept,)
    assert read_results(tmp_path / "night.jsonl") == recorder.measured


@pytest.mark.parametrize("is_of_commands", [False, True])
def test_a_file_of_commands_names_their_software(tmp_path: Path, is_of_commands: bool) -> None:
    recorder = recorder_in(tmp_path, environment())
    recorder.is_of_commands = is_of_commands
    found = replace(environment(), torch_version="9.9", host="another")
    recorder.append(made(1, 1.0), found)
    recorder.append(made(1, 1.0, index=2), None)
    recorder.close()
    recorded = read_results(recorder.path).environment
    assert recorded.torch_version == ("9.9" if is_of_commands else environment().torch_version)
    assert recorded.host == environment().host
    # Where nothing is known of the interpreter, gpuscale's own stands in.
    recorder = recorder_in(tmp_path, environment(), "other.jsonl")
    recorder.is_of_commands = is_of_commands
    recorder.append(made(1, 1.0), None)
    recorder.close()
    assert read_results(recorder.path).environment.torch_version == environment().torch_version


def test_the_content_of_cases_and_of_the_scripts_of_commands_is_recorded(tmp_path: Path) -> None:
    cases = ("a/x/test_one.py", "b/x/test_one.py", "b/x/test_two.py")
    for name in (*cases, "train.py", "job.sh", "data.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    recorder = Recorder(environment(), parse_options({"gpus": "1"}), folder=tmp_path)
    words = ("sh", "job.sh", "train.py", "absent.py", "data.bin", "x" * 5000 + ".py")
    command = replace(COMMAND, words=words, folder=str(tmp_path))
    of_cases = (request(case_file=str(tmp_path / name)) for name in cases)
    recorder.add_scripts([*of_cases, request(command=command)])
    files = (*cases, "job.sh", "train.py")
    # The folder of a case's file is named where files have one name.
    names = (*cases[:2], "test_two.py", "job.sh", "train.py")
    digests = (sha256(file.encode()).hexdigest()[:12] for file in files)
    assert recorder.environment.scripts == dict(zip(names, digests, strict=True))


def test_of_many_differences_the_first_eight_are_named() -> None:
    with pytest.raises(UsageError, match="NCCL_X7: not set → 1 and 2 more"):
        compared(lambda e: replace(e, variables={f"NCCL_X{n}": "1" for n in range(10)}))
