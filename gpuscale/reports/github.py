"""A comparison as annotations of a GitHub workflow: lines that the runner turns into messages.

The syntax and its escapes are those of GitHub's "Workflow commands". A step shows ten annotations
of each kind at most and drops the rest without a word, so what weighs most comes first and the
tenth stands for all that are left.
"""

from collections.abc import Iterator, Sequence

from gpuscale.reports.view import View, explanations, weight

SHOWN_OF_A_KIND = 10
_LONGEST_MESSAGE = 4000


def render(view: View) -> str:
    """Errors for what got worse, warnings for what was not shown to be fine, and a notice.

    Each annotation is one line; there is no line break at the end. Errors begin with the largest
    loss; doubtful rows with one reason share a warning.
    """
    rows = view.ranked
    title, notes = f"gpuscale: {view.outcome}", "\n".join(view.notes)
    lost = [row for row in rows if row.entry.verdict.is_loss]
    lost.sort(key=lambda row: 0.0 if row.change is None else -abs(row.change.value))
    errors = [
        (
            f"{row.label}: {row.verdict} {row.short_reason}".rstrip(),
            "\n".join((row.reason, *row.details())),
        )
        for row in lost
    ]
    warnings = [("gpuscale", view.warning)] if view.warning else []
    warnings += [] if rows else [(title, notes)]
    doubted = [row for row in rows if weight(row.entry.verdict) == 1]
    warnings += [
        (f"{found.subject}: {found.rows[0].verdict}", found.reason)
        for found in explanations(doubted)
    ]
    summary = f"{view.summary} (exit code {view.exit_code}); baseline {view.baseline}"
    notices = [(title, summary), *([("gpuscale: notes", notes)] if rows and notes else [])]
    kinds = {"error": errors, "warning": warnings, "notice": notices}
    return "\n".join(line for kind, its in kinds.items() for line in _annotations(kind, its))


def _annotations(kind: str, messages: Sequence[tuple[str, str]]) -> Iterator[str]:
    shown = messages
    if len(messages) > SHOWN_OF_A_KIND:
        rest = messages[SHOWN_OF_A_KIND - 1 :]
        titles = "\n".join(title for title, _ in rest)
        shown = [*messages[: SHOWN_OF_A_KIND - 1], (f"gpuscale: {len(rest)} more", titles)]
    for title, message in shown:
        text = message or title
        if len(text) > _LONGEST_MESSAGE:
            text = f"{text[: _LONGEST_MESSAGE - 1]}…"
        in_property = _escaped(title).replace(":", "%3A").replace(",", "%2C")
        yield f"::{kind} title={in_property}::{_escaped(text)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
