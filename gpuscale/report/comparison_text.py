"""A comparison for the terminal: a row each, what is behind the rows, one line of summary."""

from collections.abc import Iterator, Sequence

from gpuscale.records import Comparison
from gpuscale.report.colour import Palette
from gpuscale.report.comparison_words import (
    FINDS,
    NamedRow,
    advice_once,
    details,
    explanations,
    interval_text,
    judged_change,
    judged_text,
    named_rows,
    short_reason,
    summary_line,
    verdict_word,
)
from gpuscale.report.injection_text import injection_note, injection_warning
from gpuscale.report.wrapping import PLAIN_WIDTH, wrapped

_GAP = "  "
_INDENT = "    "


def comparison_text(
    comparison: Comparison,
    palette: Palette,
    injections: Sequence[str] = (),
    *,
    width: int = PLAIN_WIDTH,
    exit_code: int | None = None,
) -> str:
    """The comparison as text, without a line break at its end; what got worse comes first.

    Args:
        comparison: What to show.
        palette: For terminals or not.
        injections: The faults that were made on purpose in the results.
        width: Columns that lines keep to where their words let them.
        exit_code: What the process ends with; None where the verdict alone decides that.
    """
    code = comparison.exit_code if exit_code is None else exit_code
    summary = f"{summary_line(comparison)} (exit code {int(code)})"
    return "\n".join((*_lines(comparison, palette, injections, width), summary))


def _lines(
    comparison: Comparison, palette: Palette, injections: Sequence[str], width: int
) -> Iterator[str]:
    if injections:
        yield palette.bold(injection_warning(injections))
    baseline = f"baseline  {comparison.baseline_name}: {comparison.baseline_machine}"
    yield from wrapped(baseline, width, hanging=10)
    yield from wrapped(f"current   {comparison.current_machine}", width, hanging=10)
    rows = named_rows(comparison)
    if rows:
        yield ""
        yield from _table(rows, palette, width)
        yield from _legend(rows, width)
    yield from _explanations(rows, width)
    notes = (*([injection_note(injections)] if injections else []), *comparison.notes)
    if notes:
        yield ""
        for note in notes:
            yield from wrapped(f"note: {note}", width, hanging=6)
    yield ""


def _table(rows: Sequence[NamedRow], palette: Palette, width: int) -> Iterator[str]:
    """Such as `mnist_cnn/ddp  4 GPUs  E 0.91 → 0.84  [−9.1 %, −6.2 %]  REGRESSED  scaling loss`."""
    cells = [_cells(row) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row, texts in zip(rows, cells, strict=True):
        start = "".join(f"{text:<{size}}{_GAP}" for text, size in zip(texts, widths, strict=True))
        word, reason = verdict_word(row.entry.verdict), short_reason(row.entry)
        line = f"{start}{palette.verdict(row.entry.verdict, word)}"
        if not reason:
            yield line
        elif len(f"{start}{word}{_GAP}{reason}") <= width:
            yield f"{line}{_GAP}{reason}"
        else:
            yield line
            yield f"{_INDENT}{reason}"


def _cells(row: NamedRow) -> tuple[str, ...]:
    return row.name, row.gpus, judged_text(row.entry), interval_text(row.entry)


def _legend(rows: Sequence[NamedRow], width: int) -> Iterator[str]:
    """What the brackets and `finds` are, where there are any."""
    of_changes = any(judged_change(row.entry) is not None for row in rows)
    of_efficiency = any(
        judged_change(row.entry) is None and interval_text(row.entry) for row in rows
    )
    parts = []
    if of_changes:
        other = ", or of E now where nothing was judged" if of_efficiency else ""
        parts.append(f"brackets: 95 % interval of the change{other}")
    elif of_efficiency:
        parts.append("brackets: 95 % interval of E now")
    if any(short_reason(row.entry).startswith("finds ") for row in rows):
        parts.append(f"finds: {FINDS}")
    if parts:
        yield ""
        yield from wrapped("; ".join(parts), width)


def _explanations(rows: Sequence[NamedRow], width: int) -> Iterator[str]:
    found = explanations(advice_once(rows))
    if found:
        yield ""
    for explanation in found:
        yield from wrapped(f"{explanation.subject}: {explanation.reason}", width)
        for row in explanation.rows:
            for line in details(row.entry)[1:]:
                yield from wrapped(f"  {line}", width)
