"""A comparison as annotations of a GitHub workflow: lines that the runner turns into messages.

The syntax and its escapes are those of GitHub's "Workflow commands". A step shows ten annotations
of each kind at most and drops the rest without a word, so what weighs most comes first and the
tenth stands for all that are left.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from gpuscale.report.view import Row, View, explanations, weight

SHOWN_OF_A_KIND = 10
_LONGEST_MESSAGE = 4000

_Kind = Literal["error", "warning", "notice"]


def render(view: View) -> str:
    """Errors for what got worse, warnings for what was not shown to be fine, and a notice.

    Each annotation is one line; there is no line break at the end.
    """
    rows = view.ranked
    title, notes = f"gpuscale: {view.outcome}", "\n".join(view.notes)
    warnings = [("gpuscale", view.warning)] if view.warning else []
    if not rows:
        warnings.append((title, notes))
    summary = f"{view.summary} (exit code {view.exit_code}); baseline {view.baseline}"
    notices = [("gpuscale: notes", notes)] if rows and notes else []
    return "\n".join(
        (
            *_annotations("error", _losses(rows)),
            *_annotations("warning", [*warnings, *_doubts(rows)]),
            *_annotations("notice", [(title, summary), *notices]),
        )
    )


def _losses(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Title and message of each row that got worse, the largest loss first."""
    lost = [row for row in rows if row.entry.verdict.is_loss]
    lost.sort(key=lambda row: 0.0 if row.change is None else -abs(row.change.value))
    return [
        (
            f"{row.label}: {row.verdict} {row.short_reason}".rstrip(),
            "\n".join((row.reason, *row.details())),
        )
        for row in lost
    ]


def _doubts(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """The same of the rows that were not shown to be fine; rows with one reason share one."""
    doubted = [row for row in rows if weight(row.entry.verdict) == 1]
    return [
        (f"{found.subject}: {found.rows[0].verdict}", found.reason)
        for found in explanations(doubted)
    ]


def _annotations(kind: _Kind, messages: Sequence[tuple[str, str]]) -> Iterator[str]:
    shown = messages
    if len(messages) > SHOWN_OF_A_KIND:
        rest = messages[SHOWN_OF_A_KIND - 1 :]
        titles = "\n".join(title for title, _ in rest)
        shown = [*messages[: SHOWN_OF_A_KIND - 1], (f"gpuscale: {len(rest)} more", titles)]
    for title, message in shown:
        text = message or title
        if len(text) > _LONGEST_MESSAGE:
            text = f"{text[: _LONGEST_MESSAGE - 1]}…"
        yield f"::{kind} title={_property(title)}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
