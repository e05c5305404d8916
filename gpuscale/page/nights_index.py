"""The index over all nights of one machine: a line each, with its verdict and its page."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from gpuscale.night import FIRST_ATTEMPT, RECORD, facts_of
from gpuscale.night.attempt import NightExit
from gpuscale.page.content import Tone
from gpuscale.page.rendering import rendered
from gpuscale.store import write_report

INDEX = "index.html"
PAGE = "report.html"
_LINKED = (PAGE, "comparison.txt", RECORD)
"""The first of them that a night has is what its line leads to."""


class NightLine(NamedTuple):
    """One night in the index."""

    date: str
    job: str
    host: str
    verdict: str
    exit_code: str
    tone: Tone
    link: str
    """Relative to the index; empty where the night left nothing to read."""


def write_index(folder: Path) -> None:
    """Write the index of the nights in a folder anew, whole or not at all."""
    lines = list(_lines(folder))
    html = rendered("nights.html", title=f"Nights of {folder.name}", name=folder.name, nights=lines)
    write_report(folder / INDEX, html)


def _lines(folder: Path) -> Iterator[NightLine]:
    """The nights, the latest first."""
    nights = [path for path in folder.iterdir() if path.is_dir() and "_" in path.name]
    facts = {night: facts_of(night) or facts_of(night / FIRST_ATTEMPT) for night in nights}
    for night in sorted(
        nights, key=lambda each: (each.name[:10], facts[each].get("started", "")), reverse=True
    ):
        its = facts[night]
        date, _, job = night.name.partition("_")
        code = its.get("exit", "")
        linked = next((name for name in _LINKED if (night / name).exists()), None)
        yield NightLine(
            date=date,
            job=job,
            host=its.get("host", ""),
            verdict=its.get("night", "no record: it runs still, or something ended it"),
            exit_code=code,
            tone=_tone(code),
            link=f"{quote(night.name)}/{linked}" if linked else "",
        )


def _tone(code: str) -> Tone:
    if code == str(int(NightExit.OK)):
        return "pass"
    return "loss" if code == str(int(NightExit.REGRESSED)) else "doubt"
