"""The history of the machine on a page: when rows changed, and what else changed then."""

from gpuscale.page.content import Block, Cell, Item, Section, Subject, Table
from gpuscale.page.pictures import pictures
from gpuscale.reports.history_text import (
    STANDING,
    event_lines,
    nights_text,
    notes,
    standings,
    verdict,
)


def last_loss(subject: Subject) -> str:
    """The night from which most rows were slower and have been since; empty without one."""
    history = subject.history
    if history is None:
        return ""
    lost = {row.changes[-1] for row in history.rows if row.changes and row.changes[-1].is_loss}
    events = [event for event in history.events if lost & {*event.changes}]
    if not events:
        return ""
    most = max(events, key=lambda event: (len(lost & {*event.changes}), event.night))
    first, *_, changed = event_lines(most, history)
    return f"{first.removeprefix('from ').replace('  ', ': ')}; {changed.strip()}"


def told_by_nights(subject: Subject) -> tuple[str, str] | None:
    """What the nights say, for what stands first; None where the page is about no last night."""
    history = subject.history
    shown = {its.allocation_of(run) for its in subject.results for run in its.runs}
    if history is None or history.nights[-1].allocation not in shown:
        return None
    return verdict(history)


def nights(subject: Subject) -> Section | None:
    """Where each row stands among its nights, and the nights that changed it, the latest first."""
    history = subject.history
    if history is None:
        return None
    shown = standings(history)
    headers = [header for header in shown[0] if header != "batch/GPU"]
    table = Table(
        caption="The last night of each row beside the nights before",
        headers=headers,
        rows=[
            [
                Cell(cells[header], tone="doubt" if its.stands_out and header == STANDING else "")
                for header in headers
            ]
            for its, cells in zip(history.rows, shown, strict=True)
        ],
    )
    blocks = []
    for event in reversed(history.events):
        first, *rest = event_lines(event, history)
        is_loss = event.changes[0].is_loss
        items = [Item(line.strip()) for line in rest]
        blocks.append(
            Block(title=first.replace("  ", ": "), items=items, tone="loss" if is_loss else "pass")
        )
    return Section(
        title="History",
        intro=f"{nights_text(history)}.",
        blocks=blocks,
        figures=pictures(subject, "history"),
        tables=[table],
        notes=[note.strip() for note in notes(history)],
    )
