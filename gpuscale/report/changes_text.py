"""Two baselines side by side: each entry that differs, as both have it and as it is judged."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuscale.compare.matching import Row
from gpuscale.compare.shapes import baseline_pair
from gpuscale.records import (
    Baseline,
    Comparison,
    Configuration,
    EntryKey,
    EntryVerdict,
    MeasuredEntry,
    PublishedFigure,
)
from gpuscale.report.comparison_words import gpus_text, verdict_word
from gpuscale.report.configurations import set_apart
from gpuscale.report.entry_text import published_text, runs_text, step_time_text, timed_text
from gpuscale.report.table import interval_text


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """One row on both sides; None on a side that lacks it, but never on both."""

    old: MeasuredEntry | PublishedFigure | None
    new: MeasuredEntry | PublishedFigure | None
    remark: str = ""
    """What is said beside its name: why one side lacks it, or why it cannot be accepted."""


def changes_text(
    changes: Sequence[EntryChange], before: Baseline, after: Baseline, comparison: Comparison
) -> str:
    """The changes, a block of lines each, without a line break at the end.

    Args:
        changes: What to show, in order.
        before: The baseline of all old entries, over whose runs on 1 GPU speedups are taken.
        after: That of all new ones.
        comparison: The measured entries of `after`, judged against `before`.
    """
    measured = [*before.measured, *after.measured]
    names = set_apart([entry.configuration for entry in measured])
    verdicts = _verdicts(before, comparison)
    return "\n\n".join(
        "\n".join(_block(change, before, after, names, verdicts)) for change in changes
    )


def _block(
    change: EntryChange,
    before: Baseline,
    after: Baseline,
    names: Mapping[Configuration, str],
    verdicts: Mapping[tuple[Configuration, int], EntryVerdict],
) -> Iterator[str]:
    old, new = _values(change.old, before), _values(change.new, after)
    entry = change.new if change.old is None else change.old
    remark = f": {change.remark}" if change.remark else ""
    yield f"{_name(entry, names)}{remark}"
    for what in dict.fromkeys((*old, *new)):
        sides = [side[what] for side in (old, new) if what in side]
        if len(sides) == 1 or sides[0] != sides[1]:
            yield f"  {what:<11} {' → '.join(sides)}"
    if isinstance(change.old, MeasuredEntry) and isinstance(change.new, MeasuredEntry):
        verdict = verdicts.get((change.old.configuration, change.old.gpus))
        if verdict is not None:
            yield f"  {'judged':<11} {verdict_word(verdict.verdict)}: {verdict.reason}"


def _name(entry: MeasuredEntry | PublishedFigure | None, names: Mapping[Configuration, str]) -> str:
    if isinstance(entry, MeasuredEntry):
        return f"{names[entry.configuration]} on {gpus_text(str(entry.gpus))}"
    return "" if entry is None else f"{entry.key.label}, published"


def _values(entry: MeasuredEntry | PublishedFigure | None, baseline: Baseline) -> dict[str, str]:
    """What one side has, by the word for it."""
    if entry is None:
        return {}
    if isinstance(entry, MeasuredEntry):
        values = {"step time": step_time_text(entry)}
        pair = baseline_pair(Row(key=entry.key, entry=entry), baseline)
        counted = {"measured": runs_text(entry), "batch/gpu": str(entry.batch_per_gpu)}
    else:
        values = {"figure": f"{published_text(entry)} ({timed_text(entry)})"}
        pair = baseline_pair(Row(key=entry.key, figure=entry), baseline)
        counted = {"runs": str(entry.runs), "batch/gpu": str(entry.batch_per_gpu)}
    if entry.gpus > 1:
        values["speedup"] = interval_text(pair.speedup)
        values["efficiency"] = interval_text(pair.efficiency)
    return {**values, **counted}


def _verdicts(
    before: Baseline, comparison: Comparison
) -> dict[tuple[Configuration, int], EntryVerdict]:
    """The verdict on each measured entry; those of one name come in the baseline's order."""
    by_key: dict[EntryKey, list[EntryVerdict]] = {}
    for verdict in comparison.entries:
        by_key.setdefault(verdict.key, []).append(verdict)
    return {
        (entry.configuration, entry.gpus): by_key[entry.key].pop(0)
        for entry in before.measured
        if by_key.get(entry.key)
    }
