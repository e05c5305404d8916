"""Two baselines side by side: each entry that differs, as both have it and as it is judged."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuscale.compare.matching import Entry, side_of_baseline
from gpuscale.compare.published import Figures, published_speedup
from gpuscale.records import (
    Baseline,
    Comparison,
    Configuration,
    EntryKey,
    EntryVerdict,
    Estimate,
    PublishedFigure,
)
from gpuscale.report.comparison_words import gpus_text, verdict_word
from gpuscale.report.configurations import set_apart
from gpuscale.report.entry_text import published_text, runs_text, timed_text
from gpuscale.report.table import interval_text, time_text


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """One row on both sides; None on a side that lacks it, but never on both."""

    old: Entry | PublishedFigure | None
    new: Entry | PublishedFigure | None
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
    names = set_apart([run.configuration for run in (*before.runs, *after.runs)])
    verdicts = _verdicts(before, comparison)
    figures = tuple({f.key: f for f in baseline.published} for baseline in (before, after))
    return "\n\n".join("\n".join(_block(change, figures, names, verdicts)) for change in changes)


def _block(
    change: EntryChange,
    figures: tuple[Figures, ...],
    names: Mapping[Configuration, str],
    verdicts: Mapping[tuple[Configuration, int], EntryVerdict],
) -> Iterator[str]:
    old, new = _values(change.old, figures[0]), _values(change.new, figures[1])
    entry = change.new if change.old is None else change.old
    remark = f": {change.remark}" if change.remark else ""
    yield f"{_name(entry, names)}{remark}"
    for what in dict.fromkeys((*old, *new)):
        sides = [side[what] for side in (old, new) if what in side]
        if len(sides) == 1 or sides[0] != sides[1]:
            yield f"  {what:<11} {' → '.join(sides)}"
    if isinstance(change.old, Entry) and isinstance(change.new, Entry):
        verdict = verdicts.get((change.old.point.configuration, change.old.point.key.gpus))
        if verdict is not None:
            yield f"  {'judged':<11} {verdict_word(verdict.verdict)}: {verdict.reason}"


def _name(entry: Entry | PublishedFigure | None, names: Mapping[Configuration, str]) -> str:
    if isinstance(entry, Entry):
        point = entry.point
        return f"{names[point.configuration]} on {gpus_text(str(point.key.gpus))}"
    return "" if entry is None else f"{entry.key.label}, published"


def _values(entry: Entry | PublishedFigure | None, figures: Figures) -> dict[str, str]:
    """The values of one side, by the words for them."""
    if entry is None:
        return {}
    if isinstance(entry, Entry):
        point = entry.point
        gpus, speedup, efficiency = point.key.gpus, point.speedup, point.efficiency
        values = {"step time": time_text(point.step_time_s)}
        counted = {"measured": runs_text(entry), "batch/gpu": str(point.batch_per_gpu)}
    else:
        values = {"figure": f"{published_text(entry)} ({timed_text(entry)})"}
        gpus, published = entry.gpus, published_speedup(entry, figures)
        speedup = None if published is None else Estimate(value=published)
        efficiency = None if speedup is None else speedup.scaled(1 / gpus)
        counted = {"runs": str(entry.runs), "batch/gpu": str(entry.batch_per_gpu)}
    if gpus > 1:
        values["speedup"] = interval_text(speedup)
        values["efficiency"] = interval_text(efficiency)
    return {**values, **counted}


def _verdicts(
    before: Baseline, comparison: Comparison
) -> dict[tuple[Configuration, int], EntryVerdict]:
    """The verdict on each measured entry; those of one name come in the baseline's order."""
    by_key: dict[EntryKey, list[EntryVerdict]] = {}
    for verdict in comparison.entries:
        by_key.setdefault(verdict.key, []).append(verdict)
    return {
        (entry.point.configuration, entry.point.key.gpus): by_key[entry.point.key].pop(0)
        for entry in side_of_baseline(before).entries
        if by_key.get(entry.point.key)
    }
