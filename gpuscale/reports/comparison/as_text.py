"""A comparison for the terminal: the headline, the rows, and the explanations below them."""

from collections.abc import Iterator, Sequence

from gpuscale.reports.comparison import View
from gpuscale.reports.comparison.rows import Row, detail_lines, losses_found
from gpuscale.reports.phrases import UNKNOWN
from gpuscale.reports.screen import Screen, padded, width_of, wrapped

_GAP = "  "
_INDENT = "    "
_WITHOUT_COLUMN = {
    "value": "{}",
    "step time": "{} a step",
    "samples/s": "{} samples/s",
    "E": "E {}",
}
"""Templates for numbers whose columns do not fit on the screen, keyed by header."""


def render(view: View) -> str:
    """Return the comparison as text, without a final line break; losses come first."""
    return "\n".join(_lines(view))


def _lines(view: View) -> Iterator[str]:
    columns, rows = view.screen.columns, view.ranked
    if view.warning:
        yield view.screen.bold(view.warning)
    yield from _headline(view)
    if rows:
        yield ""
        yield from _table(rows, view.screen)
        yield ""
        yield from wrapped(_legend(rows), columns)
    for number, each in enumerate(view.unsaid):
        yield from [""] if number == 0 else []
        yield from wrapped(f"{each.subject}: {each.reason}", columns)
        for line in detail_lines(each.lost_metrics, each.causes):
            yield from wrapped(f"{_INDENT}{line}", columns)
    if view.notes:
        yield ""
    for note in view.notes:
        yield from wrapped(f"note: {note}", columns, hanging=6)
    yield ""
    yield f"{view.summary} (exit code {view.exit_code})"


def _headline(view: View) -> Iterator[str]:
    width = max(len(label) for label, _ in view.headline) + len(_GAP)
    for number, (label, text) in enumerate(view.headline):
        first, *rest = wrapped(f"{label:<{width}}{text}", view.screen.columns)
        if number == 0 and view.ranked:
            word = view.screen.of_verdict(view.ranked[0].entry.verdict, label)
            first = word + first[len(label) :]
        yield from (first, *rest)


def _table(rows: Sequence[Row], screen: Screen) -> Iterator[str]:
    """Yield a line for each row, or two if the change and the reason do not fit on the first.

    Numbers whose columns do not fit on the screen are shown with the change and the reason.
    """
    shown = [*rows[0].numbers]
    cells = [
        {
            "case": row.name,
            "GPUs": str(row.entry.key.gpus),
            **{name: pair.line for name, pair in row.numbers.items()},
            "verdict": row.verdict,
        }
        for row in rows
    ]
    widths = {
        name: max(width_of(text) for text in (name, *(texts[name] for texts in cells)))
        for name in cells[0]
    }
    while shown and sum(widths.values()) + len(_GAP) * (len(widths) - 1) > screen.columns:
        del widths[shown.pop()]
    yield _GAP.join(f"{name:<{width}}" for name, width in widths.items()).rstrip()
    for row, texts in zip(rows, cells, strict=True):
        line = _GAP.join(padded(texts[name], width) for name, width in widths.items())
        spare = (
            _WITHOUT_COLUMN[name].format(texts[name]) for name in row.numbers if name not in shown
        )
        left = (text for text in spare if text != f"E {UNKNOWN}")
        behind = "; ".join(filter(None, (*left, row.moved.line, row.short_reason)))
        fits = width_of(line) + len(_GAP) + len(behind) <= screen.columns
        start = line.rstrip()[: -len(row.verdict)]
        line = start + screen.of_verdict(row.entry.verdict, row.verdict)
        if behind and fits:
            line += " " * (widths["verdict"] - len(row.verdict)) + _GAP + behind
        yield line
        if behind and not fits:
            yield from wrapped(_INDENT + behind, screen.columns)


def _legend(rows: Sequence[Row]) -> str:
    """Explain the table, and state the smallest losses that passing rows would have shown."""
    parts = ["before → now"]
    if any(row.change is not None and row.change.has_interval for row in rows):
        parts.append("brackets: 95 % interval of the change")
    parts.append(losses_found(row for row in rows if row.entry.verdict.is_pass))
    return "; ".join(filter(None, parts))
