"""A comparison for the terminal: a row each, what is behind the rows, one line of summary."""

from collections.abc import Iterator, Sequence

from tabulate import tabulate

from gpuscale.records import Comparison, EntryVerdict, Estimate, Verdict
from gpuscale.report.colour import Palette
from gpuscale.report.injection_text import injection_note, injection_warning
from gpuscale.report.table import UNKNOWN, interval_text
from gpuscale.units import format_percent

_HEADERS = ("case", "gpus", "speedup", "E", "change", "detectable", "verdict")


def comparison_text(
    comparison: Comparison, palette: Palette, injections: Sequence[str] = ()
) -> str:
    """The comparison as text, without a line break at its end.

    Args:
        comparison: What to show.
        palette: For terminals or not.
        injections: The faults that were made on purpose in the results.
    """
    return "\n".join(_lines(comparison, palette, injections))


def summary_line(comparison: Comparison) -> str:
    """All verdicts counted: `1 regressed, 3 ok`."""
    counts = [(verdict, comparison.count(verdict)) for verdict in Verdict]
    words = [f"{count} {verdict.value}" for verdict, count in counts if count]
    return ", ".join(words) if words else "nothing to compare"


def _lines(comparison: Comparison, palette: Palette, injections: Sequence[str]) -> Iterator[str]:
    if injections:
        yield palette.bold(injection_warning(injections))
    yield f"baseline  {palette.bold(comparison.baseline_name)}: {comparison.baseline_machine}"
    yield f"current   {comparison.current_machine}"
    if comparison.entries:
        yield ""
        yield tabulate(
            [_row(entry, palette) for entry in comparison.entries],
            _HEADERS,
            disable_numparse=True,
            colalign=("left", "right", "left", "left", "left", "right", "left"),
        )
        if any(entry.minimum_detectable_loss is not None for entry in comparison.entries):
            yield ""
            yield (
                "change: with its 95% interval, less is worse; detectable: the smallest loss that "
                "is found 19 times in 20"
            )
    yield from _reasons(comparison)
    notes = (*([injection_note(injections)] if injections else []), *comparison.notes)
    if notes:
        yield ""
        yield from (f"note: {note}" for note in notes)
    yield ""
    code = comparison.exit_code
    yield f"{summary_line(comparison)} (exit code {code.value})"


def _row(entry: EntryVerdict, palette: Palette) -> list[str]:
    verdict = entry.verdict.value.upper() if not entry.verdict.is_pass else entry.verdict.value
    finding = f"  {entry.finding.value}" if entry.finding else ""
    detectable = entry.minimum_detectable_loss
    return [
        f"{entry.key.case}/{entry.key.strategy}",
        str(entry.key.gpus),
        _arrow(entry.baseline.speedup, entry.current.speedup),
        _arrow(entry.baseline.efficiency, entry.current.efficiency),
        _change(entry),
        UNKNOWN if detectable is None else format_percent(detectable),
        palette.verdict(entry.verdict, verdict) + finding,
    ]


def _arrow(before: Estimate | None, now: Estimate | None) -> str:
    old = UNKNOWN if before is None else f"{before.value:.2f}"
    return f"{old} → {interval_text(now)}"


def _change(entry: EntryVerdict) -> str:
    change = entry.change
    if change is None:
        return UNKNOWN
    text = f"{entry.changed_quantity or ''} {format_percent(change.value, signed=True)}".strip()
    if change.low is None or change.high is None:
        return text
    low, high = (format_percent(bound, signed=True) for bound in (change.low, change.high))
    return f"{text} [{low}, {high}]"


def _reasons(comparison: Comparison) -> Iterator[str]:
    """Each reason once, with the rows that it explains."""
    rows: dict[str, list[EntryVerdict]] = {}
    for entry in comparison.entries:
        if entry.reason and entry.verdict is not Verdict.OK:
            rows.setdefault(entry.reason, []).append(entry)
    if rows:
        yield ""
    for reason, entries in rows.items():
        if len(entries) == len(comparison.entries) > 1:
            subject = "all rows"
        else:
            subject = ", ".join(entry.key.label for entry in entries)
        yield f"{subject}: {reason}"
