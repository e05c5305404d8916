"""docs/comparison.md is true: its table has every field of the JSON, and no other."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from comparison_records import ALL_REDUCE, comparison, entry, of_each_verdict, view

from gpuscale.records import Configuration, Verdict
from gpuscale.report import FORMATS
from gpuscale.report import json as json_format

PAGE = (Path(__file__).parent.parent / "docs" / "comparison.md").read_text(encoding="utf-8")
ESTIMATE = {"value", "low", "high"}


def paths(value: object, place: str = "") -> Iterator[str]:
    """Every field of a document, as the page writes it: `entries[].change`."""
    if isinstance(value, dict) and value.keys() != ESTIMATE and not place.endswith("configuration"):
        for name, item in value.items():
            path = f"{place}.{name}" if place else name
            yield from paths(item, path)
    elif isinstance(value, list):
        for item in value:
            yield from paths(item, f"{place}[]")
    if place:
        yield place


def documented() -> set[str]:
    part = PAGE.split("\n## JSON\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", part, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def document() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(json_format.render(view(of_each_verdict(), "data=5ms")))
    return value


def test_every_field_of_the_json_has_a_row_and_every_row_a_field() -> None:
    # `entries` itself is documented as the list that it is, and so are the others.
    found = set(paths(document()))
    without_lists = {path for path in found if f"{path}[]" not in found}
    containers = {"baseline", "current"}
    assert documented() == without_lists - containers


def test_the_row_of_the_configuration_names_its_fields() -> None:
    (row,) = re.findall(r"^\| `entries\[\]\.configuration` \|.*$", PAGE, re.MULTILINE)
    names = {*Configuration.__struct_fields__} - {"case", "strategy"}
    assert {f"`{name}`" for name in names} <= set(re.findall(r"`\w+`", row))
    assert document()["entries"][0]["configuration"].keys() == names


def test_the_json_says_which_metrics_and_causes_the_row_has() -> None:
    (entry,) = [e for e in document()["entries"] if e["causes"]]
    assert entry["verdict"] == "regressed"
    assert entry["metrics"][0]["metric"] == "peak memory"
    assert entry["metrics"][0]["verdict"] == "regressed"
    assert entry["metrics"][0]["change"] == {"value": 0.5, "low": 0.48, "high": 0.52}
    (cause,) = entry["causes"]
    assert cause["kind"] == "communication"
    assert cause["share"] == 0.83
    assert cause["device_uuids"] == ["GPU-2"]


def test_the_json_keeps_what_to_do_next_of_every_cause() -> None:
    lost = [entry(Verdict.REGRESSED, gpus=gpus, causes=[ALL_REDUCE]) for gpus in (2, 4)]
    rows = json.loads(json_format.render(view(comparison(*lost))))["entries"]
    assert [row["causes"][0]["next_step"] for row in rows] == [ALL_REDUCE.next_step] * 2


def test_the_page_lists_the_formats_that_there_are() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.split("\n## ")[0], re.MULTILINE)
    assert dict(listed) == FORMATS
