"""A place inside a baseline is told by its line, as an editor counts it."""

import json
from pathlib import Path

import pytest
from format_page import example

from gpuscale.base.errors import FileError
from gpuscale.records.json_text import line_of_place
from gpuscale.store import read_any, read_baseline

TEXT = """{
  "a": [
    {"b": 1},
    {
      "b": {"c": 2,
            "d.e": [3,
                    4]}
    }
  ],
  "map": {
    "job 4711": {"host":
      "x"},
    "\\u006aob": 5
  }
}
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("", 1),
        ("a", 2),
        ("a[0]", 3),
        ("a[1]", 4),
        ("a[1].b.c", 5),
        ("map.host", 10),
        # Of what is not there, the line of what should hold it.
        ("a[1].b.missing", 5),
        ("nothing.here", 1),
    ],
)
def test_a_place_has_the_line_of_its_key(place: str, line: int) -> None:
    assert line_of_place(TEXT, place) == line
    assert line_of_place(json.dumps(json.loads(TEXT)), place) == 1


def edited(old: str, new: str) -> tuple[str, int]:
    """The example with one hand edit, and the line that it is on."""
    text = example("baseline")
    assert text.count(old) == 1
    return text.replace(old, new), text[: text.index(old)].count("\n") + 1


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"step_time_s": 0.00415', '"step_time_s": -3', "runs[1]: step_time_s is expected between"),
        ('"samples_per_s": 2650.0', '"samples_per_s": "2650"', "published[3].samples_per_s: exp"),
        ('"gpu_name": "V100"', '"gpu_nmae": "V100"', "hardware: unknown field 'gpu_nmae'; did you"),
        ('"margin": 0.02', '"margin": 2', "tolerances.margin: expected a number up to"),
        ('"version": 2', '"version": 9', "version: version 9 is newer than this gpuscale"),
        ('"cluster": ', '"name": ', "the field 'name' occurs twice in one object"),
        ('"gpus_per_node": 4,', '"gpus_per_node" 4,', "column 21: this is not JSON: Expecting ':'"),
        ('"recorded_at"', '"recorded at"', "unknown field 'recorded at'; did you mean 'recorded_"),
    ],
)
def test_a_bad_hand_edit_has_a_line(tmp_path: Path, old: str, new: str, problem: str) -> None:
    text, line = edited(old, new)
    path = tmp_path / "mine.json"
    path.write_text(text, encoding="utf-8")
    for read in (read_baseline, read_any):
        with pytest.raises(FileError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}:{line}: {problem}")
