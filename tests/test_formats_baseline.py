"""The baseline format: what is read, and how each broken rule is named with place and remedy."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changing import replace

from gpuscale.errors import DecodeError
from gpuscale.formats import decode_baseline, encode_baseline
from gpuscale.records import Tolerances

PAGE = Path(__file__).parent.parent / "docs" / "format.md"
Change = Callable[[dict[str, Any]], object]


def example() -> dict[str, Any]:
    found = re.search(r"```json baseline\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    value: dict[str, Any] = json.loads(found[1])
    return value


def refusal(change: Change) -> str:
    value = example()
    change(value)
    message = text_refusal(json.dumps(value))
    return message.removeprefix("line 1: ")


def text_refusal(text: str) -> str:
    with pytest.raises(DecodeError) as caught:
        decode_baseline(text)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def put(*keys: str | int, value: object) -> Change:
    def change(target: Any) -> None:
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value

    return change


def test_what_is_encoded_is_decoded_to_the_same_baseline() -> None:
    baseline = decode_baseline(json.dumps(example()))
    assert decode_baseline(encode_baseline(baseline)) == baseline


def test_tolerances_that_are_left_out_have_their_defaults() -> None:
    value = example()
    value["tolerances"] = {"margin": 0.1}
    assert decode_baseline(json.dumps(value)).tolerances == Tolerances(margin=0.1)
    del value["tolerances"]
    assert decode_baseline(json.dumps(value)).tolerances == Tolerances()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("format", value="x"), "format: expected 'gpuscale-baseline', found text 'x'"),
        (put("format", value=["x"]), "format: expected 'gpuscale-baseline', found a list"),
        (put("version", value=2), "version: version 2 is newer than this gpuscale (1); upgrade"),
        (put("version", value=True), "version: expected a whole number from 1, found true"),
        (put("hardware", "device", value="tpu"), "hardware.device: expected 'cuda' or 'cpu'"),
        (put("hardware", "device", value="cpu"), "hardware.gpu_name: a machine of device 'cpu'"),
        (put("published", 0, "times_s", value=[]), "published[0]: expected exactly one of"),
        (put("published", 0, "samples_per_s", value=1), "published[0]: expected exactly one of"),
        (put("published", 0, "timed", value=None), "published[0].timed: 'timed' says what"),
        (put("published", 2, "timed", value="job"), "published[2].timed: 'timed' says what"),
        (put("published", 0, "discard_first", value=3), "published[0].discard_first: 3 of 3 times"),
        (put("published", 2, "discard_first", value=1), "published[2].discard_first: 1 of 0 times"),
        (put("published", 0, "times_s", 1, value=-45), "published[0].times_s[1]: expected a time"),
        (put("published", 0, "nodes", value=2), "published[0].nodes: 1 GPUs cannot lie on 2"),
        (put("published", 3, "nodes", value=1), "published[3].nodes: 8 GPUs do not fit on 1 node"),
        (
            put("published", 1, "gpus", value=1),
            "published[1]: the same entry as published[0]; keep",
        ),
        (put("published", 0, "runs", value=0), "published[0].runs: expected a count between 1"),
        (lambda value: value.pop("source"), "published figures need a 'source'; name where"),
        (put("measured", 0, "runs", value=[]), "measured[0].runs: an entry without runs says"),
        (
            put("measured", 0, "configuration", "device", value="cpu"),
            "measured[0].configuration.device: measured on 'cpu', but hardware says 'cuda'",
        ),
        (
            lambda value: value["measured"].append(value["measured"][0]),
            "measured[1]: the same entry as measured[0]; put all their runs into one",
        ),
        (
            put("measured", 0, "runs", 2, "step_time_s", value=0),
            "measured[0].runs[2].step_time_s: expected a time in seconds between",
        ),
        (put("tolerances", "margin", value=2), "tolerances.margin: expected a fraction between 0"),
        (put("tolerances", "ok_bound", value=0), "tolerances.ok_bound: expected a fraction"),
        (
            lambda value: value.update(published=[], measured=[]),
            "expected entries in 'published' or 'measured', found none",
        ),
    ],
)
def test_a_baseline_that_breaks_a_rule_is_refused(change: Change, message: str) -> None:
    assert refusal(change).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty; docs/format.md describes a baseline"),
        ("3", "expected a baseline, an object, found 3"),
        ("{}", "this is not a baseline: it has no field 'format'; docs/format.md describes one"),
        ('{\n  "format": "gpuscale-baseline",\n  "vers', "line 3: column 3: this is not JSON"),
        ('{"machine_info": {}, "benchmarks": []}', "this is a pytest-benchmark file, not a base"),
        (
            '{"format": "gpuscale-results", "version": 1}\n{"run": {}}\n',
            "this is a results file, not a baseline; give it after the baseline: gpuscale compare",
        ),
    ],
)
def test_another_file_given_as_a_baseline_is_named(text: str, message: str) -> None:
    assert text_refusal(text).startswith(message)


def test_a_baseline_that_could_not_be_read_back_is_not_encoded() -> None:
    baseline = replace(decode_baseline(json.dumps(example())), published=(), measured=())
    with pytest.raises(DecodeError, match="found none"):
        encode_baseline(baseline)
