"""The history of the machine on a page: when rows changed, and what else changed then."""

from gpuscale.page.content import Block, Cell, Item, Section, Subject, Table
from gpuscale.page.pictures import pictures
from gpuscale.reports import phrases
from gpuscale.reports.history_text import event_lines, night_names, standing
from gpuscale.reports.screen import Screen
from gpuscale.units import format_seconds


def last_loss(subject: Subject) -> str:
    """The last night from which rows were slower and have been since; empty without one."""
    history = subject.history
    if history is None:
        return ""
    lost = {row.changes[-1] for row in history.rows if row.changes and row.changes[-1].is_loss}
    events = [event for event in history.events if lost & {*event.changes}]
    if not events:
        return ""
    event, names = events[-1], night_names(history.nights)
    labels = phrases.set_apart([row.point.configuration for row in history.rows])
    first, *_, changed = event_lines(event, len(history.rows), labels, names, Screen())
    return f"{first.removeprefix('from ').replace('  ', ': ')}; {changed.strip()}"


def nights(subject: Subject) -> Section | None:
    """Where each row stands among its nights, and the nights that changed it, the latest first."""
    history = subject.history
    if history is None:
        return None
    names = night_names(history.nights)
    labels = phrases.set_apart([row.point.configuration for row in history.rows])
    headers = ("case", "GPUs", "step time", "against its level", "level since", "nights")
    table = Table(
        caption="The last night of each row beside the nights before",
        headers=headers,
        rows=[
            (
                Cell(labels[row.point.configuration]),
                Cell(str(row.point.gpus)),
                Cell(format_seconds(row.last_step_time_s)),
                Cell(standing(row), tone="doubt" if row.stands_out else ""),
                Cell(names[row.nights[-row.level_nights]]),
                Cell(str(len(row.nights))),
            )
            for row in history.rows
        ],
    )
    blocks = []
    for event in reversed(history.events):
        first, *rest = event_lines(event, len(history.rows), labels, names, Screen())
        is_loss = event.changes[0].is_loss
        items = [Item(line.strip()) for line in rest]
        blocks.append(
            Block(title=first.replace("  ", ": "), items=items, tone="loss" if is_loss else "pass")
        )
    count = phrases.counted(len(history.nights), "night")
    intro = f"{count} of {history.machine}, {names[0]} to {names[-1]}."
    return Section(
        title="History",
        intro=intro,
        blocks=blocks,
        figures=pictures(subject, "history"),
        tables=[table],
        notes=() if blocks else ["no change of level"],
    )
