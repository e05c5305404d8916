"""A comparison for the terminal: a row each, what is behind the rows, one line of summary."""

from collections.abc import Iterator, Sequence

from gpuscale.reports.screen import Screen, wrapped
from gpuscale.reports.view import DETECTABLE, Row, View, explanations

_GAP = "  "
_INDENT = "    "


def render(view: View) -> str:
    """The comparison as text, without a line break at its end; what got worse comes first."""
    return "\n".join(_lines(view))


def _lines(view: View) -> Iterator[str]:
    columns, rows = view.screen.columns, view.ranked
    if view.warning:
        yield view.screen.bold(view.warning)
    yield from wrapped(f"baseline  {view.baseline}", columns, hanging=10)
    yield from wrapped(f"current   {view.comparison.current_machine}", columns, hanging=10)
    if rows:
        yield ""
        yield from _table(rows, view.screen)
    if legend := _legend(rows):
        yield ""
        yield from wrapped(legend, columns)
    found = explanations(rows)
    if found:
        yield ""
    for explanation in found:
        yield from wrapped(f"{explanation.subject}: {explanation.reason}", columns)
        for row in explanation.rows:
            for line in row.details(once=True):
                yield from wrapped(f"  {line}", columns)
    if view.all_notes:
        yield ""
    for note in view.all_notes:
        yield from wrapped(f"note: {note}", columns, hanging=6)
    yield ""
    yield f"{view.summary} (exit code {view.exit_code})"


def _table(rows: Sequence[Row], screen: Screen) -> Iterator[str]:
    """Such as `mnist_cnn/ddp  4 GPUs  E 0.91 → 0.84  [−9.1 %, −6.2 %]  REGRESSED  scaling loss`."""
    cells = [(row.name, row.gpus, row.judged, row.interval) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row, texts in zip(rows, cells, strict=True):
        start = "".join(f"{text:<{size}}{_GAP}" for text, size in zip(texts, widths, strict=True))
        line = f"{start}{screen.of_verdict(row.entry.verdict, row.verdict)}"
        if row.short_reason:
            fits = len(f"{start}{row.verdict}{_GAP}{row.short_reason}") <= screen.columns
            line += (_GAP if fits else f"\n{_INDENT}") + row.short_reason
        yield line


def _legend(rows: Sequence[Row]) -> str:
    """The meaning of the brackets and of `finds`, where there are any."""
    of_changes = any(row.change is not None for row in rows)
    of_efficiency = any(row.change is None and row.interval for row in rows)
    other = ", or of E now where nothing was judged" if of_efficiency else ""
    brackets = f"the change{other}" if of_changes else "E now" if of_efficiency else ""
    parts = [f"brackets: 95 % interval of {brackets}"] if brackets else []
    if any(row.short_reason.startswith("finds ") for row in rows):
        parts.append(f"finds: {DETECTABLE}")
    return "; ".join(parts)
