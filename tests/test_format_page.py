"""docs/format.md is true: its examples are read, and its lists are those of the records."""

import re
from pathlib import Path

import pytest
from format_page import PAGE, page_with_lists

from gpuscale.records import Baseline, Results
from gpuscale.store import read_any

TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("block", "kind"), [("jsonl results", Results), ("json baseline", Baseline)]
)
def test_the_examples_are_read(tmp_path: Path, block: str, kind: type) -> None:
    found = re.search(rf"```{block}\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    path = tmp_path / "example"
    path.write_text(found[1], encoding="utf-8")
    assert isinstance(read_any(path), kind)


def test_the_lists_are_made_from_the_records_of_today() -> None:
    assert page_with_lists(TEXT) == TEXT, "run: python tests/format_page.py"
