"""Both formats: what is read back as it was written, and how a broken rule is named."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from builders import results_text
from changing import replace
from format_page import example, lists
from fuzz import readers
from fuzz.samples import samples
from test_store import refusal

from gpuscale.base.errors import DecodeError
from gpuscale.records import Baseline, Configuration, Results, Run
from gpuscale.records.record import to_json
from gpuscale.store.file_formats import (
    BASELINE_FORMAT,
    RESULTS_FORMAT,
    decode_baseline,
    decode_results,
    encode_baseline,
    schema,
)

Change = Callable[[Any], object]


LINES = example("results").splitlines()
RESULTS: Results = decode_results("\n".join(LINES))
DOCUMENT: dict[str, Any] = json.loads(example("baseline"))
BASELINE: Baseline = decode_baseline(json.dumps(DOCUMENT))


def of_results(text: str) -> str:
    return refusal(decode_results, text)


def changed_line(number: int, change: Change) -> str:
    """The example with a change to the object in one of its lines, counted from 1."""
    lines = list(LINES)
    value = json.loads(lines[number - 1])
    change(value)
    lines[number - 1] = json.dumps(value)
    return "\n".join(lines) + "\n"


def of_baseline(change: Change) -> str:
    value = json.loads(json.dumps(DOCUMENT))
    change(value)
    return refusal(decode_baseline, json.dumps(value)).removeprefix("line 1: ")


def put(*keys: str | int, value: object) -> Change:
    def change(target: Any) -> None:
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value

    return change


def test_what_is_written_is_read_back_unchanged() -> None:
    assert decode_results(results_text(RESULTS)) == RESULTS
    assert decode_baseline(encode_baseline(BASELINE)) == BASELINE
    text = encode_baseline(BASELINE)
    assert sum('"measured"' in line for line in text.splitlines()) == len(BASELINE.runs)


def test_a_run_of_which_only_a_throughput_is_known_is_a_run() -> None:
    gpt, speed = Configuration(case="gpt", strategy="horovod", device="hpu"), 8 * 32 / 4711.0
    elsewhere = Run(configuration=gpt, gpus=8, batch_per_gpu=32, measured={"step_time_s": speed})
    header = replace(RESULTS.environment, device="hpu", host=None, python_version=None)
    read = decode_results(results_text(replace(RESULTS, environment=header, runs=(elsewhere,))))
    assert read.runs == (elsewhere,)
    known = {"configuration", "gpus", "batch_per_gpu", "measured"}
    assert set(json.loads(to_json(elsewhere))) == known


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n", "\n  \n"])
def test_line_ends_at_the_end_are_no_problem(end: str) -> None:
    assert len(decode_results("\n".join(LINES) + end).runs) == 2
    assert decode_results("\r\n".join(LINES) + end) == RESULTS


def test_a_line_that_was_cut_short_is_named_with_what_can_be_used() -> None:
    header, first, second = LINES
    longer = "\n".join([*LINES, first, second])
    assert of_results(longer[:-40]).startswith("line 5: the line is cut short")
    assert "delete it to use the other runs" in of_results(longer[:-40])
    assert "line 2: the line is cut short" in of_results(f"{header}\n{first[:50]}\n{second}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the file is empty"),
        (f"{LINES[0]}\n\n{LINES[1]}\n", "line 2: the line is cut short or damaged"),
        (f'{LINES[0]}\n{{"foo": 1\n{LINES[1]}\n', "line 2: the line is cut short or damaged"),
        ("\n".join([*LINES, *LINES]), "line 4: a second header"),
        (encode_baseline(BASELINE), "line 1: column 2: this is not JSON"),
        (json.dumps(DOCUMENT), "line 1: this is a baseline, not a results file"),
        ("[" * 100_000, "line 1: "),
        ("\ufeff" + LINES[0] + "\n", "line 1: starts with a byte-order mark"),
        ("gpus,seconds\n1,30\n", "line 1: this is neither a results file nor a baseline"),
    ],
)
def test_a_file_that_is_no_results_file_is_told_by_line(text: str, message: str) -> None:
    assert of_results(text).startswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("version", value=3), "version: expected 2"),
        (put("format", value="other"), "format: expected 'gpuscale-results'"),
        (put("created_at", value="yesterday"), "created_at: expected a date and time"),
        (put("environment", "cpu_count", value=0), "environment.cpu_count: "),
        (put("environment", "hots", value="a"), "environment.hots: unknown field"),
        (lambda line: line.pop("version"), "version: expected 2"),
        (lambda line: line.pop("format"), "format: expected 'gpuscale-results'"),
    ],
)
def test_a_header_that_breaks_a_rule_is_refused(change: Change, message: str) -> None:
    assert of_results(changed_line(1, change)).startswith(f"line 1: {message}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("windows", 0, "time_s", value=-3.0), "windows[0].time_s: "),
        (put("windows", 0, "busy_s", 1, value=1e12), "windows[0].busy_s[1]: "),
        (put("windows", 0, "busy_s", value=[0.4]), "windows[0].busy_s: expected a number for each"),
        (put("steps_per_window", value=None), "steps_per_window: is needed for a run with"),
        (put("measured", value={}), "measured: a run without failure has a step_time_s"),
        (put("measured", "step_time_s", value=0), "step_time_s is expected between"),
        (put("measured", "latency_s", value=1), "unknown metric 'latency_s'; known are"),
        (put("ranks", 1, "rank", value=0), "ranks: each rank is expected once, found"),
        (put("ranks", 1, "parameter_digest", value="b"), "ranks: parameter_digest differs"),
        (put("sample_shape", value=[1, 0]), "sample_shape[1]: "),
        (put("configuration", "case", value=" a"), "configuration.case: "),
        (put("configuration", "case", value="a\x1bb"), "configuration.case: "),
        (put("configuration", "scaling", value="x"), "configuration.scaling: "),
        (put("configuration", "device", value="cuda"), "configuration.device: measured on 'cuda'"),
        (put("x" * 2000, value=1), f"{'x' * 200}: unknown field"),
        (lambda run: run.pop("gpus"), ""),
    ],
)
def test_a_run_that_breaks_a_rule_is_refused(change: Change, message: str) -> None:
    assert of_results(changed_line(2, change)).startswith(f"line 2: {message}")


def test_a_run_that_failed_its_checks_keeps_its_windows_and_is_not_valid() -> None:
    def change(run: Any) -> None:
        run["ranks"][1]["parameter_digest"] = "another"
        run["failure"] = {"kind": "invalid", "message": "the ranks disagree"}

    run = decode_results(changed_line(2, change)).runs[0]
    assert len(run.windows) == 2
    assert not run.is_valid


def test_a_baseline_that_could_not_be_read_back_is_not_written() -> None:
    nothing = replace(BASELINE, published=(), runs=())
    with pytest.raises(DecodeError, match="found none"):
        encode_baseline(nothing)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("format", value=["x"]), "format: expected 'gpuscale-baseline'"),
        (put("published", 0, "times_s", value=[]), "published[0]: expected exactly one of"),
        (put("published", 2, "timed", value="job"), "published[2]: 'timed' belongs to"),
        (put("published", 0, "discard_first", value=3), "published[0].discard_first: discards all"),
        (put("published", 0, "times_s", 1, value=-45), "published[0].times_s[1]: "),
        (put("published", 0, "nodes", value=2), "published[0].nodes: 1 GPUs cannot lie on 2"),
        (put("published", 3, "nodes", value=1), "published[3].nodes: 8 GPUs do not fit on 1 node"),
        (
            put("published", 1, "gpus", value=1),
            "published[1]: resnet50v2_cifar/ddp on 1 GPU occurs",
        ),
        (lambda value: value.pop("source"), "published figures need a 'source'; name where"),
        (put("runs", 0, "configuration", "device", value="cpu"), "runs[0].configuration.device: "),
        (put("runs", 1, "batch_per_gpu", value=64), "runs[1]: mnist_cnn/ddp on 2 GPUs has another"),
        (put("runs", 1, "measured", value={}), "runs[1]: a baseline has only valid runs"),
        (put("runs", 1, "allocation", value=None), "runs[1]: a baseline has only valid runs"),
        (put("tolerances", "margin", value=2), "tolerances.margin: "),
        (lambda value: value.update(published=[], runs=[]), "expected entries in 'published'"),
    ],
)
def test_a_baseline_that_breaks_a_rule_is_refused(change: Change, message: str) -> None:
    assert of_baseline(change).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("3", ""),
        ("{}", "format: expected 'gpuscale-baseline'"),
        (example("baseline").replace('"cluster": ', '"name": '), "the field 'name' occurs twice"),
        ('{\n  "format": "gpuscale-baseline",\n  "vers', "line 3: column 3: this is not JSON"),
        ("\n".join(LINES), "this is a results file, not a baseline"),
        ("gpus,seconds\n1,30\n", "this is neither a results file nor a baseline"),
        ('"""A script."""\n', "this is neither a results file nor a baseline"),
    ],
)
def test_another_file_given_as_a_baseline_is_named(text: str, message: str) -> None:
    assert refusal(decode_baseline, text).startswith(message)


def test_the_schema_of_both_formats_names_every_field_of_a_run() -> None:
    for name in (RESULTS_FORMAT, BASELINE_FORMAT):
        run = schema(name)["$defs"]["Run"]
        assert set(run["properties"]) == set(Run.__struct_fields__)
        assert run["properties"]["gpus"]["minimum"] == 1


@pytest.mark.parametrize("files", [400, pytest.param(4000, marks=pytest.mark.thorough)])
def test_spoiled_files_are_read_or_refused_in_one_line(files: int) -> None:
    tally = readers.Tally()
    readers.fuzz(tally, range(files), seed=4)
    assert tally.faults == []
    assert tally.values + tally.refusals == 2 * files
    # Mutations that nothing survives, or that nothing notices, would try little.
    assert tally.values > files / 5
    assert tally.refusals > files
    assert len(tally.places) > 50


def test_the_files_that_are_spoiled_have_every_field() -> None:
    text = "".join(samples().values())
    items = "\n".join(lists().values()).splitlines()
    names = [re.split(r" \(|: ", item)[0] for item in items]
    fields = set(re.findall(r"`(\w+)`", "".join(names)))
    assert {field for field in fields if f'"{field}":' not in text} == set()
