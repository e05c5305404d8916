"""docs/tools.md is true: its list has every field of the JSON, and no other."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.comparisons import of_each_verdict, view

from gpuscale.records import Configuration
from gpuscale.reports.comparison import as_json

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PAGE = (DOCS / "tools.md").read_text(encoding="utf-8")
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
    part = PAGE.split("\n## JSON of a comparison\n")[1].split("\n## ")[0]
    cells = re.findall(r"^- (`.*?):", part, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def document() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(as_json.render(view(of_each_verdict(), "data=5ms")))
    return value


def test_every_field_of_the_json_has_a_row_and_every_row_a_field() -> None:
    # `entries` itself is documented as the list that it is, and so are the others.
    found = set(paths(document()))
    without_lists = {path for path in found if f"{path}[]" not in found}
    containers = {"baseline", "current"}
    assert documented() == without_lists - containers


def test_the_row_of_the_configuration_names_its_fields() -> None:
    (row,) = re.findall(r"^- `entries\[\]\.configuration`:.*$", PAGE, re.MULTILINE)
    names = {*Configuration.__struct_fields__} - {"case", "strategy"}
    assert {f"`{name}`" for name in names} <= set(re.findall(r"`\w+`", row))
    assert document()["entries"][0]["configuration"].keys() == names


@pytest.mark.parametrize(
    ("page", "printed"), [("reading.md", "compare/environment.txt"), ("history.md", "history.txt")]
)
def test_what_a_page_shows_is_what_is_printed(page: str, printed: str) -> None:
    said = (HERE / "golden" / "expected" / printed).read_text(encoding="utf-8").splitlines()
    blocks = re.findall(r"```(?:console)?\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    (shown,) = (block for block in blocks if "mnist_cnn/ddp" in block)
    for line in shown.splitlines():
        assert line.strip() in ("", "…") or line.startswith("$ ") or line in said, line
