"""The pages are true: links and names lead somewhere, and examples and lists are those of today."""

import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.comparisons import of_each_verdict, view
from format_page import PAGE as FORMAT_PAGE
from format_page import example, page_with_lists
from measuring import REPOSITORY

from gpuscale.base.strategies import STRATEGIES
from gpuscale.records import Baseline, Configuration, Results
from gpuscale.reports.comparison import formats
from gpuscale.reports.comparison.formats import COMPARISON_FORMATS
from gpuscale.reports.figures import FIGURES
from gpuscale.reports.show.formats import SHOWN_FORMATS
from gpuscale.store.files import read_any

PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
PAGES += sorted(REPOSITORY.glob("docs/**/*.md"))
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub and GitLab make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        assert anchor not in found, f"{page.name} has two headings '{heading}'"
        found.add(anchor)
    return found


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text("utf-8")))
    yield from re.findall(r"\]\(([^)\s]+)\)", text)
    yield from re.findall(r'<img src="([^"]+)"', text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_of_a_page_leads_to_a_file_and_an_anchor(page: Path) -> None:
    for link in links(page):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_that_a_file_names_is_there() -> None:
    asked = ["git", "grep", "-ohE", r"\bdocs/[a-z_/]+\.(md|svg)", "--", ":!CHANGELOG.md"]
    said = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert [name for name in sorted({*said.split()}) if not (REPOSITORY / name).is_file()] == []


def test_the_index_leads_to_every_page() -> None:
    index = REPOSITORY / "docs" / "README.md"
    named = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert {*REPOSITORY.glob("docs/**/*.md")} - named - {index} == set()


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("measuring.md", STRATEGIES),
        ("outputs.md", [*SHOWN_FORMATS, *FIGURES]),
        ("tools.md", COMPARISON_FORMATS),
    ],
)
def test_a_page_names_all_that_its_registry_has(page: str, names: Iterable[str]) -> None:
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in text] == []


def test_contributing_names_files_and_names_that_are_there() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = "".join(path.read_text("utf-8") for path in REPOSITORY.glob("gpuscale/**/*.py"))
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", text):
        assert any((root / name).exists() for root in (REPOSITORY, REPOSITORY / "gpuscale")), name
    for name in re.findall(r"`([A-Z_]{2,}|[A-Z][a-z]+[A-Z]\w+)`", text):
        assert name in code, name


FORMAT_TEXT = FORMAT_PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "kind"), [("results", Results), ("baseline", Baseline)])
def test_the_examples_are_read(tmp_path: Path, name: str, kind: type) -> None:
    path = tmp_path / "example"
    path.write_text(example(name), encoding="utf-8")
    assert isinstance(read_any(path), kind)


def test_the_lists_are_made_from_the_records_of_today() -> None:
    assert page_with_lists(FORMAT_TEXT) == FORMAT_TEXT, "run: python tests/format_page.py"


DOCS = REPOSITORY / "docs"
TOOLS_TEXT = (DOCS / "tools.md").read_text(encoding="utf-8")
ESTIMATE = {"value", "low", "high"}


def fields_of(value: object, place: str = "") -> Iterator[str]:
    """Every field of a document, as the page writes it: `entries[].change`."""
    if isinstance(value, dict) and value.keys() != ESTIMATE and not place.endswith("configuration"):
        for name, item in value.items():
            path = f"{place}.{name}" if place else name
            yield from fields_of(item, path)
    elif isinstance(value, list):
        for item in value:
            yield from fields_of(item, f"{place}[]")
    if place:
        yield place


def test_every_field_of_the_json_has_a_row_and_every_row_a_field() -> None:
    document: dict[str, Any] = json.loads(formats.json(view(of_each_verdict(), "data=5ms")))
    part = TOOLS_TEXT.split("\n## JSON of a comparison\n")[1].split("\n## ")[0]
    cells = re.findall(r"^- (`.*?):", part, re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    # `entries` itself is documented as the list that it is, and so are the others.
    found = set(fields_of(document))
    without_lists = {path for path in found if f"{path}[]" not in found}
    assert documented == without_lists - {"baseline", "current"}
    (row,) = re.findall(r"^- `entries\[\]\.configuration`:.*$", TOOLS_TEXT, re.MULTILINE)
    names = {*Configuration.__struct_fields__} - {"case", "strategy"}
    assert {f"`{name}`" for name in names} <= set(re.findall(r"`\w+`", row))
    assert document["entries"][0]["configuration"].keys() == names


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("reading.md", "compare/environment.txt"),
        ("reading.md", "compare/noisy_cpu_ranks.txt"),
        ("history.md", "history.txt"),
    ],
)
def test_what_a_page_shows_is_what_is_printed(page: str, printed: str) -> None:
    said = (REPOSITORY / "tests/golden/expected" / printed).read_text(encoding="utf-8").splitlines()
    blocks = re.findall(r"```(?:console)?\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    of_cases = (block for block in blocks if "mnist_cnn/ddp" in block)
    (shown,) = (block for block in of_cases if {*block.splitlines()[:3]} & {*said})
    for line in shown.splitlines():
        assert line.strip() in ("", "…") or line.startswith("$ ") or line in said, line
