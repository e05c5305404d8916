"""The state of a history's rows, gravest first: SLOWER, UNUSUAL, MISSING, UNCLEAR or STEADY."""

from gpuscale.analysis.history import History, RowHistory
from gpuscale.analysis.level_changes import REMEMBERED
from gpuscale.base.text import rough_percent
from gpuscale.judge.baseline import TOO_WEAK
from gpuscale.records import PointKey
from gpuscale.records.environment_diff import listed
from gpuscale.reports import phrases

MOST_NAMED = 2
"""Maximum number of rows that the verdict names for each problem."""


def verdict(history: History) -> tuple[str, str] | None:
    """Return the gravest verdict, and a text with all; None if all rows have too few nights."""
    rows, names, nights = history.rows, row_names(history), history.names
    last, rate = len(nights) - 1, rate_word(history)
    if all(row.nights_missing for row in rows):
        return None
    losses = sorted(
        (
            loss.throughput.value,
            names[row.point],
            f"slowly until {nights[loss.onset]}"
            if loss.kind == "drift" and loss.since == loss.onset
            else f"from {nights[loss.since]} on",
        )
        for row in rows
        if (loss := row.recent_loss)
    )
    whens = {when for *_, when in losses}
    slower = [
        f"{name} {phrases.percent_text(change)}{f' {when}' if len(whens) > 1 else ''}"
        for change, name, when in losses
    ]
    departed = {
        row: f"{names[row.point]} {phrases.percent_text(row.departure)}"
        for row in rows
        if row.departure is not None and row.nights[-1] == last
    }
    unusual = [text for row, text in departed.items() if row.stands_out]
    blurred = [row for row in rows if is_weak(row) and not (row.recent_loss or row.is_unclear)]
    ends = [*map(rough_percent, sorted(row.smallest_loss or 0.0 for row in blurred))] or [""]
    only_large = (
        " with nights that vary so widely that only a lasting loss above "
        f"{phrases.format_range(ends)} would be noticed"
    )
    unclear = [text for row, text in departed.items() if row.is_unclear]
    # A row that was absent for more than 15 nights is no longer reported as missing.
    missing = [names[row.point] for row in rows if last - REMEMBERED <= row.nights[-1] < last]
    groups = (
        ("SLOWER", slower, f" {whens.pop()}, {rate}" if len(whens) == 1 else f", {rate}"),
        ("UNUSUAL", unusual, f" unusual on the last night, {rate}"),
        ("MISSING", missing, " without a valid run on the last night"),
        ("UNCLEAR", [names[row.point] for row in blurred], only_large),
        ("UNCLEAR", unclear, f" with too few nights to tell whether it lasts, {rate}"),
    )
    count = phrases.counted(len(rows), "row")
    steady = sum(not row.nights_missing for row in rows)
    since = max((event.night for event in history.events), default=0)
    found = [
        (word, f"{len(texts)} of {count}{what}: {listed(texts, MOST_NAMED)}")
        for word, texts, what in groups
        if texts
    ]
    if not found:
        return "STEADY", f"{steady} of {count}: no change since {nights[since]}"
    (word, text), *others = found
    return word, "; ".join((text, *map(" ".join, others)))


def is_weak(row: RowHistory) -> bool:
    """True if nights vary so much that only a large lasting loss could be detected."""
    return row.smallest_loss is not None and row.smallest_loss > TOO_WEAK


def rate_word(history: History) -> str:
    """Return `performance` if a row has a metric instead of the step time, else `throughput`."""
    words = {phrases.rate_word(row.point.configuration) for row in history.rows}
    return "performance" if "performance" in words else "throughput"


def row_names(history: History) -> dict[PointKey, str]:
    """Return a name for each row, which differs from those of all others."""
    points = [row.point for row in history.rows]
    cases = phrases.set_apart([point.configuration for point in points])
    return {each: phrases.row_text(cases, each.configuration, each.gpus) for each in points}
