"""A place inside a baseline is told by its path."""

from pathlib import Path

import pytest
from format_page import example

from gpuscale.base.errors import FileError
from gpuscale.store import read_any, read_baseline


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
def test_a_bad_hand_edit_has_a_place(tmp_path: Path, old: str, new: str, problem: str) -> None:
    text, path = example("baseline"), tmp_path / "mine.json"
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    for read in (read_baseline, read_any):
        with pytest.raises(FileError) as caught:
            read(path)
        assert f": {problem}" in str(caught.value)
