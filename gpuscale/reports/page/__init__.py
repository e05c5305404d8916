"""HTML pages: the classes of their content, their rendering, and the index of nightly runs."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from gpuscale import __version__
from gpuscale.analysis.history import History
from gpuscale.analysis.nights import began
from gpuscale.base.errors import ExitCode, FileError, require_packages
from gpuscale.records import Baseline, Results, Run, Verdict
from gpuscale.reports.columns import Cell, Tone
from gpuscale.reports.comparison import View
from gpuscale.reports.comparison.rows import Item
from gpuscale.reports.phrases import UNKNOWN, counted
from gpuscale.store import campaign_folders
from gpuscale.store.files import is_night_folder, write_report
from gpuscale.store.results import RESULTS, read_beginning

_BY_WEIGHT: tuple[Tone, ...] = ("loss", "doubt", "pass")
TONES: Mapping[int | None, Tone] = {ExitCode.OK: "pass", ExitCode.REGRESSED: "loss"}
"""Tone of a page or night, keyed by exit code; the tone for any other code is `doubt`."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """Data for a report page; an attribute is None if its data were not given."""

    results: Sequence[Results]
    baseline: Baseline | None = None
    earlier: Sequence[Run] = ()
    """Runs of the baseline with their windows, unless it is a baseline file."""
    view: View | None = None
    history: History | None = None

    @property
    def runs(self) -> list[Run]:
        """The runs of all results."""
        return [run for result in self.results for run in result.runs]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose rows are cells keyed by header; the first cell of each row names the row."""

    caption: str
    rows: Sequence[Mapping[str, Cell]]
    words: frozenset[str] = frozenset()
    """Headers of columns that contain words, not numbers; the first column always does."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A heading with its items, such as a row and its causes."""

    title: str
    text: str = ""
    items: Sequence[Item] = ()
    tone: Tone = ""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A section of a page: text, figures, tables and notes under a title."""

    title: str
    intro: str = ""
    blocks: Sequence[Block] = ()
    figures: Sequence[str] = ()
    """SVG elements, which contain their own titles."""
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


def tone_of(verdict: Verdict) -> Tone:
    """Return the colour class of a verdict: `loss`, `doubt` or `pass`."""
    return _BY_WEIGHT[verdict.weight]


def without_unknown(rows: Sequence[Mapping[str, Cell]]) -> list[dict[str, Cell]]:
    """Return the rows without the columns in which all values are unknown."""
    known = [name for name in rows[0] if any(row[name].text != UNKNOWN for row in rows)]
    return [{name: row[name] for name in known} for row in rows]


def readable(text: str) -> str:
    """Prevent line breaks before units; shorten GPU UUIDs to a prefix that nvidia-smi accepts."""
    text = re.sub(r"(?<=\d) (?=(%|m?s\b))", "\u00a0", text)
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
    return str(environment.get_template("page.html").render({**common, **values}))


INDEX = "index.html"
PAGE = "report.html"
_LINKED = (PAGE, "comparison.txt", campaign_folders.NIGHT_TEXT)
"""Files of a nightly run to which the index may link; it uses the first that exists."""


def has_index(folder: Path) -> bool:
    """True if a folder has nightly runs and an index page of them."""
    return (folder / INDEX).is_file() and any(folder.glob(f"*/{campaign_folders.NIGHT_JSON}"))


def write_index(folder: Path) -> None:
    """Atomically rewrite the index page of a folder of nightly runs."""
    nights = [path for path in folder.iterdir() if path.is_dir() and is_night_folder(path.name)]
    found = sorted(map(_night_in, nights), key=lambda each: each[0], reverse=True)
    table = Table(
        caption=f"{counted(len(found), 'night')}, the latest first",
        rows=[cells for _, cells in found],
        words=frozenset(("verdict", "host")),
    )
    section = Section(title="", tables=[table])
    html = rendered([section], title=f"Nights of {folder.name}", place="Scaling")
    write_report(folder / INDEX, html)


def _night_in(night: Path) -> tuple[datetime, dict[str, Cell]]:
    """Return when the nightly run in a folder began, and its row in the index.

    Without results, the start is read from the night's record or else from the folder's name.
    """
    unknown = "no record: it still runs, or was ended"
    record = campaign_folders.read_night(night) or campaign_folders.NightRecord(night=unknown)
    try:
        results = read_beginning(night / RESULTS)
        moment, reason = began(results), results.why_excluded
    except FileError:
        moment = datetime.fromisoformat(record.started or night.name[:10]).astimezone(UTC)
        reason = None
    brief = "" if record.exit == ExitCode.OK else campaign_folders.read_brief(night)
    why = [] if brief or reason else [*record.left_out, *record.infrastructure]
    below = "; ".join(filter(None, (brief, reason and f"left out: {reason}", *why)))
    linked = next((name for name in _LINKED if (night / name).exists()), None)
    return moment, {
        "night": Cell(night.name, link=f"{quote(night.name)}/{linked}" if linked else ""),
        "verdict": Cell(record.night, below, TONES.get(record.exit, "doubt")),
        "exit": Cell("" if record.exit is None else str(record.exit)),
        "host": Cell(record.host or ""),
    }
