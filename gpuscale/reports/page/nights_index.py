"""The index of a machine's nightly runs: a line for each, with its verdict and a link."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from gpuscale.base.errors import ExitCode
from gpuscale.reports.columns import Cell, Tone
from gpuscale.reports.page import Section, Table, rendered
from gpuscale.reports.phrases import counted
from gpuscale.store import left_out_reason, write_report
from gpuscale.store.night_record import FIRST_ATTEMPT, RECORD_TEXT, NightRecord, read_night

INDEX = "index.html"
PAGE = "report.html"
_LINKED = (PAGE, "comparison.txt", RECORD_TEXT)
"""Files that a line may link to; the first that exists is used."""

_TONES: dict[int | None, Tone] = {ExitCode.OK: "pass", ExitCode.REGRESSED: "loss"}


def write_index(folder: Path) -> None:
    """Atomically rewrite the index page of a folder of nightly runs."""
    lines = list(_lines(folder))
    nights = Table(
        caption=f"{counted(len(lines), 'night')}, the latest first",
        rows=lines,
        words=frozenset(("verdict", "job", "host")),
    )
    section = Section(title="", tables=[nights])
    html = rendered([section], title=f"Nights of {folder.name}", place="GPU scaling")
    write_report(folder / INDEX, html)


def _lines(folder: Path) -> Iterator[dict[str, Cell]]:
    """Yield the rows of the table, the latest nightly run first."""
    nights = [path for path in folder.iterdir() if path.is_dir() and "_" in path.name]
    unknown = NightRecord(night="no record: it still runs, or was ended")
    records = {
        night: read_night(night) or read_night(night / FIRST_ATTEMPT) or unknown for night in nights
    }
    dates = Counter(night.name.partition("_")[0] for night in nights)
    for night in sorted(
        nights, key=lambda each: (each.name[:10], records[each].started or ""), reverse=True
    ):
        record = records[night]
        date, _, job = night.name.partition("_")
        if dates[date] > 1 and record.started and record.started.startswith(date):
            date = f"{date} {record.started[11:16]}"
        code = "" if record.exit is None else str(record.exit)
        linked = next((name for name in _LINKED if (night / name).exists()), None)
        reason = left_out_reason(night / "results.jsonl") or ""
        tone: Tone = "doubt" if reason else _TONES.get(record.exit, "doubt")
        yield {
            "date": Cell(date, link=f"{quote(night.name)}/{linked}" if linked else ""),
            "verdict": Cell(record.night, reason and f"left out: {reason}", tone),
            "exit": Cell(code),
            "job": Cell(job),
            "host": Cell(record.host or ""),
        }
