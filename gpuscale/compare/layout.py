"""On how many nodes the ranks of a row ran, then and now."""

from collections import Counter
from collections.abc import Collection, Iterable

from gpuscale.records import MeasuredEntry, Run

_Layout = tuple[int, ...]
"""Ranks on each node, the most first."""


def layout_differences(entry: MeasuredEntry, runs: Collection[Run]) -> tuple[str, ...]:
    """`ranks per node: 4 → 2 + 2` where the runs lay differently over nodes than the entry's.

    Empty where a side does not know, and where the entry has runs of each layout.
    """
    before = {
        _layout(rank.host for rank in run.evidence.ranks)
        for run in entry.runs
        if run.evidence is not None and run.evidence.ranks
    }
    now = {_layout(rank.host for rank in run.ranks) for run in runs if run.ranks}
    if not before or now <= before:
        return ()
    return (f"ranks per node: {_text(before)} → {_text(now)}",)


def _layout(hosts: Iterable[str]) -> _Layout:
    return tuple(sorted(Counter(hosts).values(), reverse=True))


def _text(layouts: Collection[_Layout]) -> str:
    return " or ".join(" + ".join(map(str, layout)) for layout in sorted(layouts))
