"""HTML pages: their sections, tables and notes, rendering, and the index of nightly runs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpuscale import __version__
from gpuscale.analysis.history import History
from gpuscale.analysis.nights import began, date_texts
from gpuscale.base.errors import ExitCode, FileError, require_packages
from gpuscale.records import Baseline, Results, Run, Verdict
from gpuscale.reports.columns import Cell, Tone
from gpuscale.reports.comparison import View
from gpuscale.reports.comparison.rows import Item
from gpuscale.reports.phrases import UNKNOWN, counted
from gpuscale.store.campaign_folders import NIGHT_TEXT, NightRecord, read_headline, read_night
from gpuscale.store.files import write_report
from gpuscale.store.results import read_beginning

_BY_WEIGHT: tuple[Tone, ...] = ("loss", "doubt", "pass")
TONES: Mapping[int | None, Tone] = {ExitCode.OK: "pass", ExitCode.REGRESSED: "loss"}
"""Tone of a page or night, keyed by exit code; the tone for any other code is `doubt`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Data for a report page; an attribute is None if its data were not given."""

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
    """SVG elements, which contain their own titles."""
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


def tone_of(verdict: Verdict) -> Tone:
    """Return the tone that colours a verdict."""
    return _BY_WEIGHT[verdict.weight]


def without_unknown(rows: Sequence[Mapping[str, Cell]]) -> list[dict[str, Cell]]:
    """Return the rows without the columns in which all values are unknown."""
    known = [name for name in rows[0] if any(row[name].text != UNKNOWN for row in rows)]
    return [{name: row[name] for name in known} for row in rows]


def readable(text: str) -> str:
    """Prevent line breaks before percent signs; shorten UUIDs to a form that nvidia-smi accepts."""
    text = text.replace(" %", "\u00a0%")
    return re.sub(r"\b((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f-]{22}", r"\1", text)


def rendered(sections: Sequence[Section], **values: Any) -> str:
    """Return the HTML of a page with these sections and template values; all text is escaped."""
    require_packages("a page", ("jinja2",))
    # Imported here, since modules that only use the classes above need no Jinja2.
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


INDEX = "index.html"
PAGE = "report.html"
_LINKED = (PAGE, "comparison.txt", NIGHT_TEXT)
"""Files of a nightly run to which the index may link; it uses the first that exists."""


def write_index(folder: Path) -> None:
    """Atomically rewrite the index page of a folder of nightly runs."""
    lines = list(_lines(folder))
    nights = Table(
        caption=f"{counted(len(lines), 'night')}, the latest first",
        rows=lines,
        words=frozenset(("verdict", "job", "host")),
    )
    section = Section(title="", tables=[nights])
    html = rendered([section], title=f"Nights of {folder.name}", place="Scaling")
    write_report(folder / INDEX, html)


def _lines(folder: Path) -> Iterator[dict[str, Cell]]:
    """Yield the rows of the index, the latest nightly run first."""
    nights = [path for path in folder.iterdir() if path.is_dir() and "_" in path.name]
    found = sorted(map(_night_in, nights), key=lambda each: each[0], reverse=True)
    dates = date_texts([moment for moment, *_ in found])
    for (_, night, record, reason), date in zip(found, dates, strict=True):
        code = "" if record.exit is None else str(record.exit)
        linked = next((name for name in _LINKED if (night / name).exists()), None)
        lost = _lost_text(night) if record.exit == ExitCode.REGRESSED else ""
        below = "; ".join(filter(None, (lost, reason and f"left out: {reason}")))
        # What to do about a night without a verdict is no news once later nights follow.
        said = re.sub(r"(?<=not judged yet): .*", "", record.night)
        yield {
            "date": Cell(date, link=f"{quote(night.name)}/{linked}" if linked else ""),
            "verdict": Cell(said, below, TONES.get(record.exit, "doubt")),
            "exit": Cell(code),
            "job": Cell(night.name.partition("_")[2]),
            "host": Cell(record.host or ""),
        }


def _lost_text(night: Path) -> str:
    """Return a night's loss and its cause, `2 of 2 rows: …`, without intervals and shares."""
    headline = read_headline(night)
    texts = (next(iter(headline.values()), ""), headline.get("cause", "").rpartition("; ")[0])
    return re.sub(r" (\[.*?\]|\(.*?\))", "", "; ".join(filter(None, texts)))


def _night_in(night: Path) -> tuple[datetime, Path, NightRecord, str]:
    """Return a night's start, folder, record, and reason for being left out (empty if it is not).

    Without results, the start is that of the record, or else the date in the folder's name.
    """
    record = read_night(night)
    try:
        results = read_beginning(night / "results.jsonl")
        moment, reason = began(results), results.left_out or ""
    except FileError:
        text = (record and record.started) or night.name[:10]
        moment, reason = datetime.fromisoformat(text).astimezone(UTC), ""
    unknown = NightRecord(night="no record: it still runs, or was ended")
    return moment, night, record or unknown, reason
