"""The content of a page (sections with figures, tables and notes), and its rendering by Jinja2."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuscale import __version__
from gpuscale.analysis.history import History
from gpuscale.base.errors import require_packages
from gpuscale.records import Baseline, Results, Run, Verdict
from gpuscale.reports.columns import Cell, Tone
from gpuscale.reports.comparison import View
from gpuscale.reports.phrases import UNKNOWN

_BY_WEIGHT: tuple[Tone, ...] = ("loss", "doubt", "pass")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Data for a page; attributes are None for data that were not given."""

    results: Sequence[Results]
    baseline: Baseline | None = None
    view: View | None = None
    """Comparison of the results with the baseline."""
    history: History | None = None
    folder: str = ""
    """Folder of nightly results if the page shows the newest of them; otherwise empty."""

    @property
    def runs(self) -> list[Run]:
        """The runs of all results."""
        return [run for result in self.results for run in result.runs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table whose rows are cells keyed by header; the first cell of each row names the row."""

    caption: str
    rows: Sequence[Mapping[str, Cell]]
    words: frozenset[str] = frozenset()
    """Headers of columns that contain words, not numbers; the first column always does."""

    @property
    def headers(self) -> Sequence[str]:
        """Column headers, which are the same for all rows."""
        return [*self.rows[0]] if self.rows else []


class Item(NamedTuple):
    """An item of a list, such as a cause."""

    text: str
    facts: Sequence[str] = ()
    next_step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A heading with its items, such as a row and its causes."""

    title: str
    text: str = ""
    items: Sequence[Item] = ()
    tone: Tone = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of a page: text, figures, tables and notes under a title."""

    title: str
    intro: str = ""
    blocks: Sequence[Block] = ()
    figures: Sequence[str] = ()
    """SVG elements, each with its title."""
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


def tone_of(verdict: Verdict) -> Tone:
    """Return the tone that colours a verdict."""
    return _BY_WEIGHT[verdict.weight]


def without_unknown(rows: Sequence[Mapping[str, Cell]]) -> list[dict[str, Cell]]:
    """Drop the columns in which all values are unknown."""
    known = [name for name in rows[0] if any(row[name].text != UNKNOWN for row in rows)]
    return [{name: row[name] for name in known} for row in rows]


def readable(text: str) -> str:
    """Prevent line breaks before percent signs, and shorten UUIDs.

    nvidia-smi accepts the shortened UUIDs; the last table on the page has the full ones.
    """
    text = text.replace(" %", "\u00a0%")
    return re.sub(r"\b((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f-]{22}", r"\1", text)


def rendered(sections: Sequence[Section], **values: Any) -> str:
    """Return the HTML of a page with these sections and template values; all text is escaped."""
    require_packages("a page", ("jinja2",))
    # Imported here, since not every importer of this module renders a page.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gpuscale.reports.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["readable"] = readable
    # On a page without a verdict these values are empty.
    common = {"version": __version__, "word": "", "warning": "", "sections": sections}
    text: str = environment.get_template("page.html").render({**common, **values})
    return text
