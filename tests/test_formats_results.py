"""The results format: what is read, and how each broken rule is named with line and remedy."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changing import replace

from gpuscale.errors import DecodeError
from gpuscale.formats import decode_results, encode_header, encode_run
from gpuscale.records import Failure, Results

PAGE = Path(__file__).parent.parent / "docs" / "format.md"
Change = Callable[[dict[str, Any]], object]


def example() -> list[str]:
    found = re.search(r"```jsonl results\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1].splitlines()


def results() -> Results:
    return decode_results("\n".join(example()))


def changed(line: int, change: Change) -> str:
    """The example with a change to the object in one of its lines, counted from 1."""
    lines = example()
    value = json.loads(lines[line - 1])
    change(value)
    lines[line - 1] = json.dumps(value)
    return "\n".join(lines) + "\n"


def refusal(text: str) -> str:
    with pytest.raises(DecodeError) as caught:
        decode_results(text)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def run_refusal(change: Change) -> str:
    return refusal(changed(2, lambda line: change(line["run"])))


def put(*keys: str | int, value: object) -> Change:
    def change(target: Any) -> None:
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value

    return change


def encoded(measured: Results) -> list[str]:
    header = encode_header(
        created_at=measured.created_at,
        gpuscale_version=measured.gpuscale_version,
        environment=measured.environment,
    )
    return [header, *map(encode_run, measured.runs)]


def test_what_is_encoded_is_decoded_to_the_same_results() -> None:
    lines = encoded(results())
    assert decode_results("\n".join(lines) + "\n") == results()
    assert all("\n" not in line and line.isascii() for line in lines)


def test_a_file_with_only_a_header_has_no_runs() -> None:
    assert decode_results(example()[0] + "\n").runs == ()


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n", "\n  \n"])
def test_empty_lines_at_the_end_are_no_problem(end: str) -> None:
    assert len(decode_results("\n".join(example()) + end).runs) == 2


def test_windows_line_ends_are_no_problem() -> None:
    assert decode_results("\r\n".join(example())) == results()


def test_an_empty_file_says_that_nothing_was_recorded() -> None:
    assert refusal("") == "the file is empty: nothing was recorded; measure again"
    assert refusal("\n\n") == refusal("")


def test_a_last_line_that_was_cut_short_names_the_runs_before_it() -> None:
    text = "\n".join([*example(), *example()[1:]])
    assert refusal(text[:-40]) == (
        "line 5: the line is cut short (was the job killed while writing it?); "
        "delete it to use the 3 runs before it, or go on with pytest --resume"
    )
    header, first, second = example()
    assert refusal(f"{header}\n{first}\n{second[:50]}").endswith(
        "the 1 run before it, or go on with pytest --resume"
    )
    assert refusal(f"{header}\n{first[:50]}").endswith("it was the first run, so measure again")
    assert refusal(header[:50]) == (
        "line 1: the header is cut short (was the job killed while writing it?); "
        "no run was recorded, measure again"
    )


def test_a_broken_line_in_the_middle_is_placed_and_not_taken_for_a_cut() -> None:
    header, first, second = example()
    assert refusal(f"{header}\n{first[:50]}\n{second}\n").startswith("line 2: column ")
    assert refusal(f"{header}\n{first}\n{second[:-1]}\n").startswith("line 3: column ")
    assert refusal(f"{header}\n\n{first}\n") == "line 2: the line is empty; delete it"


def test_two_files_put_together_are_refused_at_the_second_header() -> None:
    message = refusal("\n".join([*example(), *example()]))
    assert message.startswith("line 4: a second header; ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("version", value=3), "line 1: version: version 3 is newer than this gpuscale (1); "),
        (put("version", value=0), "line 1: version: expected a whole number from 1, found 0"),
        (put("version", value="1"), "line 1: version: expected a whole number from 1, found text"),
        (put("format", value="other"), "line 1: format: expected 'gpuscale-results', found text"),
        (put("created_at", value="2026-11-21T03:30"), "line 1: created_at: expected a date and"),
        (put("created_at", value="yesterday"), "line 1: created_at: expected a date and time"),
        (put("environment", "cpu_count", value=0), "line 1: environment.cpu_count: expected a"),
        (put("environment", "hots", value="a"), "line 1: environment: unknown field 'hots'; did"),
        (lambda line: line.pop("version"), "line 1: missing field 'version'; this gpuscale reads"),
        (lambda line: line.pop("format"), "line 1: this is not a results file: it has no field"),
    ],
)
def test_a_header_that_breaks_a_rule_is_refused(change: Change, message: str) -> None:
    assert refusal(changed(1, change)).startswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("windows", 0, "time_s", value=-3.0), "windows[0].time_s: expected a time in seconds"),
        (put("windows", 1, "time_s", value=0), "windows[1].time_s: expected a time in seconds"),
        (put("windows", 0, "busy_s", 1, value=1e12), "windows[0].busy_s[1]: expected a time in"),
        (put("windows", 0, "busy_s", value=[0.4]), "windows[0].busy_s: expected a number for each"),
        (put("windows", value=[]), "windows: a run without failure has windows; give them, or"),
        (put("steps_per_window", value=0), "steps_per_window: expected a count between 1 and"),
        (put("steps_per_window", value=None), "steps_per_window: a run with windows says how"),
        (put("gpus", value=0), "gpus: expected a number of GPUs between 1 and 1000000, found 0"),
        (put("gpus", value=10**30), "gpus: expected a whole number, found 1e+30"),
        (put("gpus", value=4), "ranks: ddp on 4 GPUs has the ranks 0 to 3; give all of them"),
        (put("ranks", 1, "rank", value=0), "ranks: expected each of the ranks 0 to 1 once, found"),
        (put("ranks", 1, "rank", value=2), "ranks: expected each of the ranks 0 to 1 once, found"),
        (put("ranks", value=[]), "ranks: ddp on 2 GPUs has the ranks 0 to 1; give all of them"),
        (put("ranks", 1, "final_loss", value=None), "ranks[1].final_loss: a run whose loss is not"),
        (put("ranks", 1, "parameter_digest", value="b"), "ranks[1].parameter_digest: its paramet"),
        (put("batch_per_gpu", value=0), "batch_per_gpu: expected a number of samples between 1"),
        (put("sample_shape", value=[]), "sample_shape: expected 1 to 16 dimensions, found 0"),
        (put("sample_shape", value=[1, 0]), "sample_shape[1]: expected a dimension between 1"),
        (put("wall_s", value=-1), "wall_s: expected a duration in seconds between 0"),
        (put("configuration", "case", value=" a"), "configuration.case: expected a name without"),
        (put("configuration", "case", value=""), "configuration.case: expected a name without"),
        (put("configuration", "case", value="a\nb"), "configuration.case: text with the unprint"),
        (put("configuration", "case", value="a" * 201), "configuration.case: a name of 201 char"),
        (
            put("configuration", "precision", value="fp8"),
            "configuration.precision: expected 'fp32'",
        ),
        (put("configuration", "device", value="cuda"), "configuration.device: measured on 'cuda'"),
    ],
)
def test_a_run_that_breaks_a_rule_is_refused(change: Change, message: str) -> None:
    assert run_refusal(change).startswith(f"line 2: run.{message}")


def test_a_share_of_time_above_1_is_refused() -> None:
    summary = {
        "uuid": "GPU-1",
        "name": None,
        "samples": 10,
        "utilization_mean": 98.0,
        "memory_used_peak_bytes": None,
        "power_mean_w": None,
        "sm_clock_mean_mhz": None,
    }
    message = run_refusal(put("gpu_summaries", value=[summary]))
    assert "gpu_summaries[0].utilization_mean: expected a share of time between 0 and 1" in message


@pytest.mark.parametrize(("count", "is_read"), [(0, True), (1, False), (2, True), (3, False)])
def test_a_gpu_has_a_window_for_each_of_the_run_or_none(count: int, is_read: bool) -> None:
    summary = {
        "uuid": "GPU-1",
        "name": None,
        "samples": 10,
        "utilization_mean": 0.98,
        "memory_used_peak_bytes": None,
        "power_mean_w": None,
        "sm_clock_mean_mhz": None,
        "windows": [{"samples": 5}] * count,
    }
    text = changed(2, lambda line: put("gpu_summaries", value=[summary])(line["run"]))
    if is_read:
        assert len(decode_results(text).runs[0].gpu_summaries[0].windows) == count
    else:
        assert f"windows, or none; found {count}" in refusal(text)


def test_a_run_that_failed_needs_no_windows_and_no_ranks() -> None:
    failed = results().runs[1]
    assert failed.failure is not None
    assert not failed.is_valid


def test_a_run_that_failed_its_checks_keeps_what_it_measured() -> None:
    def change(run: dict[str, Any]) -> None:
        run["ranks"][1]["parameter_digest"] = "another"
        run["ranks"][0]["final_loss"] = None
        run["failure"] = {"kind": "invalid", "message": "the ranks disagree"}

    run = decode_results(changed(2, lambda line: change(line["run"]))).runs[0]
    assert len(run.windows) == 2
    assert not run.is_valid


def test_dp_on_two_gpus_is_one_rank() -> None:
    def change(run: dict[str, Any]) -> None:
        run["configuration"]["strategy"] = "dp"
        run["ranks"].pop()
        for window in run["windows"]:
            window["busy_s"].pop()

    run = decode_results(changed(2, lambda line: change(line["run"]))).runs[0]
    assert run.is_valid


def test_a_coloured_traceback_is_written_so_that_it_can_be_read() -> None:
    failure = Failure(kind="raised", message="CUDA error:\n\tgone", detail="a\x1b[31m\nb\udc80")
    run = replace(results().runs[1], failure=failure)
    read = decode_results("\n".join([example()[0], encode_run(run)])).runs[0]
    assert read.failure == replace(
        failure, message="CUDA error: gone", detail="a\\x1b[31m\nb\\udc80"
    )


def test_a_run_that_could_not_be_read_back_is_not_encoded() -> None:
    run = results().runs[0]
    broken = replace(run, windows=(replace(run.windows[0], time_s=float("nan")),))
    with pytest.raises(DecodeError, match=r"run\.windows\[0\]\.time_s: expected a finite number"):
        encode_run(broken)


def test_a_baseline_given_as_results_is_named_as_one() -> None:
    baseline = json.dumps({"format": "gpuscale-baseline", "version": 1}, indent=2)
    assert refusal(baseline).startswith("this is a baseline, not a results file; give it first")


def test_a_pytest_benchmark_file_is_named_as_one() -> None:
    text = json.dumps({"machine_info": {}, "commit_info": {}, "benchmarks": [], "version": "5"})
    assert refusal(text).startswith("line 1: this is a pytest-benchmark file, not a results file")
