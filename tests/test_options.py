"""What is asked for on the command line is checked before anything starts."""

from pathlib import Path

import pytest
from measuring import run_pytest, write_case

from gpuscale.errors import UsageError
from gpuscale.plugin.options import DEFAULT_TIMEOUT_S, parse_options

GIVEN: dict[str, object] = {
    "gpus": "1,2",
    "runs": "3",
    "device": "auto",
    "precision": "fp32",
    "threads_per_rank": "1",
    "launcher": "local",
}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("gpus", "0", "--gpus: 0 is not at least 1; for example --gpus 1,2,4"),
        ("gpus", "1,1", "--gpus 1,1: a number is given twice"),
        ("gpus", "two", "--gpus: 'two' is not a whole number; for example --gpus 1,2,4"),
        ("gpus", "", "--gpus: '' is not a whole number"),
        ("gpus", "1,,2", "--gpus: '' is not a whole number"),
        ("gpus", "-1", "--gpus: -1 is not at least 1"),
        ("gpus", "1e3", "--gpus: '1e3' is not a whole number"),
        ("gpus", "9" * 5000, "is not a whole number"),
        ("gpus", "999999999", "--gpus: 999999999 is not at most"),
        ("runs", "0", "--runs: 0 is not at least 1"),
        ("runs", "2:8", "--runs: 2 is not at least 3; for example --runs 3:8"),
        ("strategy", "fsdp", "--strategy: there is no 'fsdp'; choose from dp, ddp"),
        ("launcher", "torchrun", "--launcher: there is no 'torchrun'; choose from local, slurm"),
        ("device", "tpu", "--device: there is no 'tpu'; choose from auto, cuda, cpu"),
        ("precision", "int8", "--precision: there is no 'int8'"),
        ("timeout", "-3", "--timeout: '-3' is not a number of seconds above 0"),
        ("run_seconds", "nan", "--run-seconds: 'nan' is not a number of seconds above 0"),
        ("data_workers", "-1", "--data-workers: -1 is not at least 0"),
        ("threads_per_rank", "0", "--threads-per-rank: 0 is not at least 1"),
        ("download", True, "add --data-root DIR"),
        ("data_root", "/no/such/folder", "--data-root: /no/such/folder is not a folder"),
    ],
)
def test_a_value_that_means_nothing_is_refused_with_the_remedy(
    option: str, value: object, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_options(GIVEN | {option: value})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_of_gpus_come_in_order() -> None:
    assert parse_options(GIVEN | {"gpus": "4, 1,2"}).gpus == (1, 2, 4)


def test_results_are_never_overwritten(tmp_path: Path) -> None:
    existing = tmp_path / "night.jsonl"
    existing.touch()
    with pytest.raises(UsageError, match="exists already"):
        parse_options(GIVEN | {"results": str(existing)})


@pytest.mark.parametrize("value", [None, 0, 0.0])
def test_no_timeout_of_another_plugin_is_still_a_timeout_here(value: object) -> None:
    assert parse_options(GIVEN | {"timeout": value}).timeout_s == DEFAULT_TIMEOUT_S


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "two"], "'two' is not a whole number"),
        (["--gpus", "1", "--strategy", "fsdp"], "there is no 'fsdp'"),
        (["--gpus", "1", "--device", "cuda"], "--device cuda: torch sees no GPU here"),
        (["--gpus", "1", "--device", "cpu", "--precision", "tf32"], "tf32 exists on GPUs only"),
    ],
)
def test_pytest_ends_with_its_usage_code_before_anything_starts(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    write_case(tmp_path, "Case = Tiny")
    session = run_pytest(tmp_path, *arguments, environment=["CUDA_VISIBLE_DEVICES="])
    assert session.exit_code == 4
    assert message in session.output
    assert "Traceback" not in session.output
    assert not (tmp_path / ".gpuscale").exists()


def test_two_cases_of_one_name_are_refused(tmp_path: Path) -> None:
    write_case(tmp_path, "class Case(Tiny):\n    pass", name="test_one.py")
    write_case(tmp_path, "class Case(Tiny):\n    pass", name="test_two.py")
    session = run_pytest(tmp_path, "--gpus", "1", "--device", "cpu")
    assert session.exit_code == 4, session.output
    assert "two cases are named case" in session.output


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("", "uses 'scaling' but names no case"),
        ("@pytest.mark.gpuscale(case=42)\n", "takes a TrainingCase class"),
    ],
)
def test_a_test_without_a_case_is_an_error_of_collection(
    tmp_path: Path, mark: str, message: str
) -> None:
    test = tmp_path / "test_forgotten.py"
    test.write_text(f"import pytest\n\n{mark}def test_forgotten(scaling):\n    scaling()\n")
    session = run_pytest(tmp_path, "--gpus", "1", "--device", "cpu")
    assert session.exit_code == 2, session.output
    assert message in session.output


def test_a_size_that_the_case_lacks_is_named_with_those_it_has(tmp_path: Path) -> None:
    sizes = 'class Case(Tiny):\n    sizes = {"big": Size(batch=4, sample_shape=(16,))}'
    write_case(tmp_path, "from gpuscale import Size", sizes)
    session = run_pytest(tmp_path, "--gpus", "1", "--device", "cpu", "--runs", "1")
    assert session.exit_code == 1, session.output
    assert "case has no size 'smoke'; it has big" in session.output
    asked = run_pytest(tmp_path, "--gpus", "1", "--device", "cpu", "--size", "huge")
    assert asked.exit_code == 4, asked.output
    assert "--size huge: case has no size 'huge'; it has big" in asked.output


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('strategies = "ddp"', "it takes a tuple of dp, ddp"),
        ('strategies = ("fsdp",)', "it takes a tuple of dp, ddp"),
        ('scaling = "stong"', "Case.scaling is 'stong'; it is one of weak, strong"),
    ],
)
def test_a_case_that_says_what_gpuscale_does_not_know_is_refused_before_it_runs(
    tmp_path: Path, line: str, message: str
) -> None:
    write_case(tmp_path, f"class Case(Tiny):\n    {line}")
    session = run_pytest(tmp_path, "--gpus", "1", "--device", "cpu")
    assert session.exit_code == 2, session.output
    assert message in session.output


def test_a_strategy_that_the_case_lacks_is_skipped_with_the_reason(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    session = run_pytest(tmp_path, "--gpus", "1", "--device", "cpu", "--strategy", "dp", "-rs")
    assert "tiny has ddp only (--strategy)" in session.output
