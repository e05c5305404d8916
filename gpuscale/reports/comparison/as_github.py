"""A comparison as annotations of a GitHub workflow: lines that the runner turns into messages.

The syntax and its escapes follow GitHub's "Workflow commands". A step shows at most ten annotations
of each kind and silently drops the rest, so the most serious come first and the tenth stands for
all that remain.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, starmap

from gpuscale.reports.comparison import Explanation, View
from gpuscale.reports.comparison.rows import Row, detail_lines, finding_of

SHOWN_OF_A_KIND = 10
_LONGEST_MESSAGE = 4000


def render(view: View) -> str:
    """Annotate losses as errors, rows not shown to be fine as warnings, and a summary as a notice.

    Each annotation is one line; there is no final line break. Rows that share an explanation share
    an annotation. Among the errors, the largest loss comes first.
    """
    (verdict, found), *facts = view.headline
    title, notes = f"gpuscale: {verdict} {found}", "\n".join(view.notes)
    summary = "\n".join((*(f"{label}: {text}" for label, text in facts), view.summary))
    by_weight: tuple[list[Explanation], ...] = ([], [], [])
    for explanation in view.explanations:
        by_weight[explanation.rows[0].entry.verdict.weight].append(explanation)
    lost, doubted, _ = by_weight
    errors = [
        (_title(loss), "\n".join((loss.reason, *detail_lines(loss.lost_metrics, loss.causes))))
        for loss in sorted(lost, key=lambda loss: max(map(_size, loss.rows)), reverse=True)
    ]
    warnings = [("gpuscale", view.warning)] if view.warning else []
    warnings += [] if view.ranked else [(title, notes)]
    warnings += [(_title(doubt), doubt.reason) for doubt in doubted]
    notices = [(title, f"{summary} (exit code {view.exit_code})")]
    notices += [("gpuscale: notes", notes)] if view.ranked and notes else []
    kinds = {"error": errors, "warning": warnings, "notice": notices}
    return "\n".join(chain.from_iterable(starmap(_annotations, kinds.items())))


def _title(explanation: Explanation) -> str:
    row = explanation.rows[0]
    why = row.short_reason or finding_of(row.entry)
    return f"{explanation.subject}: {row.verdict} {why}".rstrip()


def _size(row: Row) -> float:
    return 0.0 if row.change is None else abs(row.change.value)


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
