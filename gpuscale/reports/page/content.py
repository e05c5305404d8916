"""What a page shows: sections of figures, tables and notes, without a word of HTML."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from gpuscale.analysis.history import History
from gpuscale.records import Baseline, Results, Run, Verdict
from gpuscale.reports.comparison.view import View
from gpuscale.reports.phrases import UNKNOWN

Tone = Literal["loss", "doubt", "pass", "slow", "slower", "slowest", ""]
"""What a colour says beside the words; never without them."""
_BY_WEIGHT: tuple[Tone, ...] = ("loss", "doubt", "pass")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a page is about; None is what was not given."""

    results: Sequence[Results]
    baseline: Baseline | None = None
    view: View | None = None
    """Of the results against the baseline."""
    history: History | None = None
    folder: str = ""
    """Of the nights whose newest the results are; empty where files were given."""

    @property
    def runs(self) -> list[Run]:
        """Those of all results."""
        return [run for result in self.results for run in result.runs]


class Cell(NamedTuple):
    """A text in a table."""

    text: str
    below: str = ""
    """Said in small type, such as the value before."""
    tone: Tone = ""
    link: str = ""
    """To another page; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows whose first cell names them."""

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: frozenset[str] = frozenset()
    """The headers, but for the first, whose cells are words and not numbers."""


class Item(NamedTuple):
    """One thing among others, such as a cause."""

    text: str
    facts: Sequence[str] = ()
    next_step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A heading with what belongs to it, such as a row's causes."""

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
    """The tone of a row's verdict."""
    return _BY_WEIGHT[verdict.weight]


def without_unknown(table: Table) -> Table:
    """The table without the columns in which nothing is known."""
    kept = [
        place
        for place, column in enumerate(zip(*table.rows, strict=True))
        if any(cell.text != UNKNOWN for cell in column)
    ]
    return replace(
        table,
        headers=[table.headers[place] for place in kept],
        rows=[[row[place] for place in kept] for row in table.rows],
    )


def readable(text: str) -> str:
    """The text with numbers that keep their percent sign, and with the beginnings of UUIDs.

    nvidia-smi takes these too, and a table has the whole.
    """
    text = text.replace(" %", "\u00a0%")
    return re.sub(r"\b((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f-]{22}", r"\1", text)


def cells(*texts: str) -> tuple[Cell, ...]:
    """A row of plain texts."""
    return tuple(map(Cell, texts))
