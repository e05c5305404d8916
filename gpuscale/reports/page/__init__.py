"""The content of a page, sections of figures, tables and notes, and its HTML by Jinja2."""

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
    """The subject of a page; None if not given."""

    results: Sequence[Results]
    baseline: Baseline | None = None
    view: View | None = None
    """The results compared with the baseline."""
    history: History | None = None
    folder: str = ""
    """Folder of the nights, if the results are the newest night in it."""

    @property
    def runs(self) -> list[Run]:
        """The runs of all results."""
        return [run for result in self.results for run in result.runs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells by their headers; the first cell of a row names it."""

    caption: str
    rows: Sequence[Mapping[str, Cell]]
    words: frozenset[str] = frozenset()
    """The headers, besides the first, whose cells are words and not numbers."""

    @property
    def headers(self) -> Sequence[str]:
        """The headers of all rows."""
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
    """A part of a page."""

    title: str
    intro: str = ""
    blocks: Sequence[Block] = ()
    figures: Sequence[str] = ()
    """SVG elements, each with its title."""
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


def tone_of(verdict: Verdict) -> Tone:
    """The tone of a verdict."""
    return _BY_WEIGHT[verdict.weight]


def without_unknown(rows: Sequence[Mapping[str, Cell]]) -> list[dict[str, Cell]]:
    """The rows without the columns in which nothing is known."""
    known = [name for name in rows[0] if any(row[name].text != UNKNOWN for row in rows)]
    return [{name: row[name] for name in known} for row in rows]


def readable(text: str) -> str:
    """Keep numbers with their percent signs, and shorten UUIDs.

    nvidia-smi accepts the shortened UUIDs, and the last table has the full ones.
    """
    text = text.replace(" %", "\u00a0%")
    return re.sub(r"\b((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f-]{22}", r"\1", text)


def rendered(sections: Sequence[Section], **values: Any) -> str:
    """The HTML of a page with these sections and further values; all texts are escaped."""
    require_packages("a page", ("jinja2",))
    # Imported here: the index of nights needs it, but not all that imports this module.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gpuscale.reports.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["readable"] = readable
    # A page without a verdict has these values empty.
    common = {"version": __version__, "word": "", "warning": "", "sections": sections}
    text: str = environment.get_template("page.html").render({**common, **values})
    return text
