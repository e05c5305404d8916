"""The report page: the order of its sections, and the section on the machine's history."""

from collections.abc import Callable, Sequence
from datetime import datetime

from gpuscale.analysis.history import RowChange, RowHistory
from gpuscale.base.errors import ExitCode
from gpuscale.reports import phrases
from gpuscale.reports.columns import Tone
from gpuscale.reports.history_text import (
    event_text,
    nights_text,
    node_table,
    notes,
    standings,
    verdict,
)
from gpuscale.reports.page import Block, Item, Section, Subject, Table, rendered
from gpuscale.reports.page.row_sections import causes, machines, measured_headline, place_text, rows
from gpuscale.reports.page.step_sections import budget, curves, phases, pictures, windows

_MOST_LOSSES = 3
_NEVER = "1970-01-01T00:00:00+00:00"


def losses(subject: Subject) -> list[str]:
    """Describe the losses that affect the most rows, up to three.

    Only losses since the baseline count or, without one, since the earliest recent loss of any row.
    """
    history, view = subject.history, subject.view
    if history is None:
        return []
    if view is None:
        recent = (row.recent_loss for row in history.rows)
        begun = min((loss.since for loss in recent if loss), default=len(history.nights))
    else:
        last = datetime.fromisoformat(view.comparison.before.last_at or _NEVER)
        begun = sum(night.began_at <= last for night in history.nights)
    lost = {change for row in history.rows for change in _unmended(row)}
    shared = {event: len(lost & {*event.changes}) for event in history.events}
    found = [event for event in history.events if shared[event] and event.night >= begun]
    most = sorted(found, key=lambda event: -shared[event])[:_MOST_LOSSES]
    texts = (event_text(event, history) for event in found if event in most)
    return [
        f"{text.when if text.is_drift else text.night}: {text.rows}; {text.details[-1]}"
        for text in texts
    ]


def _unmended(row: RowHistory) -> list[RowChange]:
    """Return the losses of a row that no later gain undid."""
    found: list[RowChange] = []
    for change in row.changes:
        if change.is_loss:
            found.append(change)
        elif found:
            found.pop()
    return found


def verdict_of_nights(subject: Subject) -> tuple[str, str] | None:
    """Return the verdict on the history; None if the page does not show its latest nightly run."""
    history = subject.history
    shown = {results.allocation_of(run) for results in subject.results for run in results.runs}
    if history is None or history.nights[-1].allocation not in shown:
        return None
    return verdict(history)


def nights(subject: Subject) -> Section | None:
    """Return the section on each row's latest nightly result and all changes, latest first."""
    history = subject.history
    if history is None:
        return None
    rows = [
        {header: cell for header, cell in row.items() if header != "batch/GPU"}
        for row in standings(history)
    ]
    tables = [Table(caption="The last night of each row against the nights before", rows=rows)]
    if history.nodes:
        tables.append(Table(caption="The slowest nodes", rows=node_table(history)))
    blocks = []
    for event in reversed(history.events):
        text = event_text(event, history)
        blocks.append(
            Block(
                title=f"{text.when}: {text.rows}",
                items=[*map(Item, text.details)],
                tone="loss" if event.changes[0].is_loss else "pass",
            )
        )
    return Section(
        title="History",
        intro=f"{nights_text(history)}.",
        blocks=blocks,
        figures=pictures(subject, "history"),
        tables=tables,
        notes=[note.strip() for note in notes(history)],
    )


SECTIONS: Sequence[Callable[[Subject], Section | None]] = (
    causes,
    rows,
    curves,
    nights,
    budget,
    phases,
    windows,
    machines,
)
"""Functions that create the sections below the verdict, in order, or return None without data."""
_TONES_OF_NIGHTS: dict[str, Tone] = {"STEADY": "", "SLOWER": "loss"}
_TONES: dict[ExitCode, Tone] = {ExitCode.OK: "pass", ExitCode.REGRESSED: "loss"}


def report_html(subject: Subject) -> str:
    """Return the HTML of a report; raise UsageError if Jinja2 or matplotlib is missing."""
    view = subject.view
    made = [section for make in SECTIONS if (section := make(subject)) is not None]
    injections = dict.fromkeys(each for result in subject.results for each in result.injections)
    (word, first), *facts = measured_headline(subject) if view is None else view.headline
    tone: Tone = "" if view is None else _TONES.get(view.comparison.exit_code, "doubt")
    if view is None and (of_nights := verdict_of_nights(subject)):
        word, first = of_nights
        tone = _TONES_OF_NIGHTS.get(word, "doubt")
        facts.append(("baseline", "none was given; this is from the nights alone"))
    if view or word == "SLOWER":
        at = 1 if view else 0
        facts[at:at] = [("since", text) for text in losses(subject)]
    if subject.folder:
        facts = [
            (label, f"{subject.folder}: {text}" if label == "now" else text)
            for label, text in facts
        ]
    place = place_text(subject.results[0])
    return rendered(
        made,
        title=f"{word}: {place}",
        place=f"GPU scaling: {place}",
        warning=phrases.injection_warning([*injections]),
        word=word,
        first=first,
        facts=facts,
        tone=tone,
    )
