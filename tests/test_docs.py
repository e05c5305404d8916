"""The pages name nothing that is not there: links, anchors, and pages named elsewhere."""

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from measuring import REPOSITORY

from gpuscale.base.strategies import STRATEGIES
from gpuscale.reports import COMPARISON_FORMATS, SHOWN_FORMATS
from gpuscale.reports.figures import FIGURES

PAGES = sorted(
    [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *REPOSITORY.glob("docs/**/*.md")]
)
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
