"""Nightly runs on one machine as time series: the level of each row, and when it changed."""

import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec

from gpuscale.analysis.estimates import exponential
from gpuscale.analysis.nights import (
    Night,
    changes_on_night,
    lasting_changes,
    left_out_of,
    machine_of,
    night_names,
    nights_of,
)
from gpuscale.analysis.node_effects import NodeEffect, node_effects, without_slow_nodes
from gpuscale.analysis.scaling import level_at, throughput_change
from gpuscale.analysis.shifts_and_drifts import (
    FEWEST_NIGHTS,
    REMEMBERED,
    Kind,
    LevelChange,
    departure,
    is_far,
    level_changes,
    levels_beside,
    outlying,
    stands_out,
    step_size,
    suspect_nights,
    unrecovered_loss,
)
from gpuscale.base.grouping import by_key
from gpuscale.base.text import counted
from gpuscale.records import EnvironmentChange, Estimate, PointKey, Results, Scaling
from gpuscale.records.configuration import ALL_ROWS, Choice


class RowChange(msgspec.Struct, frozen=True, kw_only=True):
    """A lasting change in the step time of a row."""

    point: PointKey
    onset: int
    """Index of the first night on the new level; for a drift, of the night that revealed it."""
    kind: Kind
    before: Scaling
    after: Scaling
    """Levels before and after: means of at most 15 nights (a drift: of weeks), without outliers."""
    throughput: Estimate
    """Relative change of throughput between these levels; −0.03 means 3% less."""

    @property
    def is_loss(self) -> bool:
        """True if the row became slower."""
        return self.throughput.value < 0


class LostLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A lasting slowdown of a row; successive ones in the same environment are combined."""

    kind: Kind
    """Kind of the change; several changes combined count as a drift."""
    since: int
    """Onset of the first of the combined changes, as the index of a night."""
    onset: int
    """Onset of the last of the combined changes, as the index of a night."""
    is_new: bool
    """True if the loss became apparent only on the latest night."""
    before: Scaling
    throughput: Estimate
    """Relative change from `before` to the present level; no interval if a drift is involved."""


class RowHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The history of one row over the nights on which it was measured."""

    point: PointKey
    nights: tuple[int, ...]
    """Indices of the nights on which the row was measured."""
    changes: tuple[RowChange, ...]
    level_nights: int
    """Number of nights on the present level, including the latest night."""
    outlying: tuple[int, ...]
    """Indices of nights that are far from the other nights on the same level."""
    level: Scaling | None
    """Level that `departure` refers to; None if there are too few nights."""
    last: Scaling
    """Mean step time and throughput, or the metric judged instead, on the latest night."""
    departure: float | None
    """Relative change of throughput from earlier nights to the latest; None with too few nights."""
    stands_out: bool
    """True if a second night like the latest one would prove a change of level."""
    smallest_loss: float | None
    """Smallest loss of throughput that two more nights would prove; None with too few nights."""
    is_unclear: bool
    """True if the latest night may differ but cannot be judged yet: it is far from earlier nights
    that are too few to prove a change, or several of the latest nights may be slower."""
    lost: LostLevel | None
    """The most recent loss of speed; None if there was none, if most of it was recovered, or if the
    latest night is at least as near to the level before the loss as to that after it."""

    @property
    def recent_loss(self) -> LostLevel | None:
        """The unrecovered slowdown, if any; None if the present level is over 15 nights old."""
        return self.lost if self.level_nights <= REMEMBERED else None

    @property
    def nights_missing(self) -> int:
        """Number of nights still needed to detect an outlier; detecting a level takes one more."""
        return max(0, FEWEST_NIGHTS + 1 - len(self.nights))


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that all became faster or all slower on one night, and any environment changes."""

    night: int
    changes: tuple[RowChange, ...]
    environment: tuple[EnvironmentChange, ...]
    """Environment changes since the previous night; empty for a drift, which starts gradually."""


class History(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The nights of one machine, in chronological order, and the changes of its rows over time."""

    machine: str
    nights: tuple[Night, ...]
    rows: tuple[RowHistory, ...]
    events: tuple[HistoryEvent, ...]
    left_out: tuple[str, ...] = ()
    """Nights excluded on purpose, each with a reason, such as `2026-03-13 (cooling failure)`."""
    nodes: tuple[NodeEffect, ...] = ()
    """Speed of each node, the slowest first; empty if all nights ran on the same nodes. In `rows`,
    nights on a slow node count as if that node were as fast as the others."""

    @cached_property
    def names(self) -> Sequence[str]:
        """Each night's name: its date or, if several nights share it, its folder or else time."""
        return night_names([(night.began_at, night.folder) for night in self.nights])

    @property
    def recent_change(self) -> tuple[int, tuple[EnvironmentChange, ...]]:
        """Index of the night of the latest environment change that still holds, and what changed.

        If there is none in the last four nights, return the index of the last night and ().
        """
        last = len(self.nights) - 1
        for night in range(last, max(0, last - FEWEST_NIGHTS), -1):
            if changes := lasting_changes(self.nights, night):
                return night, changes
        return last, ()

    @property
    def label(self) -> str:
        """Number of nights, and their machine if it is known: `24 nights of Tesla V100`."""
        of_machine = f" of {self.machine}" if self.machine else ""
        return f"{counted(len(self.nights), 'night')}{of_machine}"


def history_of(results: Iterable[Results], choice: Choice = ALL_ROWS) -> History:
    """Return one machine's history; raise UsageError if there are no nights or several machines."""
    results = list(results)
    return history_of_nights(nights_of(results, choice), left_out_of(results))


def history_of_nights(nights: tuple[Night, ...], left_out: tuple[str, ...] = ()) -> History:
    """Return the nights' history, with `left_out` in it; raise UsageError unless of one machine."""
    machine = machine_of(nights, left_out)
    effects = node_effects(nights)
    corrected = without_slow_nodes(nights, effects)
    points = dict.fromkeys(point for night in nights for point in night.log_costs)
    rows = tuple(_row(point, corrected, nights) for point in points)
    changes = (change for row in rows for change in row.changes)
    together = by_key(((each.onset, each.kind, each.is_loss), each) for each in changes)
    events = tuple(
        HistoryEvent(
            night=night,
            changes=tuple(changed),
            environment=changes_on_night(nights, night) if kind == "step" else (),
        )
        for (night, kind, _), changed in sorted(together.items())
    )
    return History(
        machine=machine, nights=nights, rows=rows, events=events, left_out=left_out, nodes=effects
    )


def _row(point: PointKey, nights: Sequence[Night], as_measured: Sequence[Night]) -> RowHistory:
    indices = [i for i, night in enumerate(nights) if point in night.log_costs]
    values = [nights[i].log_costs[point] for i in indices]
    found = level_changes(values)
    levels = itertools.pairwise((0, *(change.onset for change in found), len(values)))
    begin = found[-1].onset if found else 0
    level = values[begin:]
    suspect = suspect_nights(level) if len(level) <= REMEMBERED else 0
    # Several last nights that may be a new level are not outliers of the old one.
    usual = len(values) - (suspect if suspect > 1 else 0)
    far = [
        first + i
        for first, end in levels
        if end - first > FEWEST_NIGHTS
        for i in outlying(values[first:end])
        if first + i < usual
    ]
    changes = tuple(
        RowChange(
            point=point,
            onset=indices[change.onset],
            kind=change.kind,
            before=level_at(point, before.mean),
            after=level_at(point, after.mean),
            throughput=throughput_change(before, after),
        )
        for number, change in enumerate(found)
        for before, after in [levels_beside(values, found, number, number)]
    )
    past = [nights[i].log_costs[point] for i in nights_before(indices[-1], point, nights, changes)]
    last = departure(past, values[-1]) if len(values) > FEWEST_NIGHTS else None
    alone = last is not None and stands_out(values[begin:-1], last)
    lost = unrecovered_loss(found, values[-1])
    return RowHistory(
        point=point,
        nights=tuple(indices),
        changes=changes,
        level_nights=len(level),
        outlying=tuple(indices[i] for i in far),
        level=None if last is None else level_at(point, values[-1] - last),
        last=level_at(point, as_measured[indices[-1]].log_costs[point]),
        departure=None if last is None else exponential(-last) - 1,
        stands_out=alone,
        smallest_loss=1 - exponential(-step_size(level)) if len(level) > FEWEST_NIGHTS else None,
        is_unclear=(
            last is not None
            and len(level) <= REMEMBERED
            and (is_far(values, last) or suspect > 1)
            # During a slow drift, which is reported anyway, the latest night is always far off.
            and not (alone or lost is not None)
        ),
        lost=None if lost is None else _lost_level(values, found, changes, nights, lost),
    )


def nights_before(
    night: int, point: PointKey, nights: Sequence[Night], changes: Iterable[RowChange]
) -> tuple[int, ...]:
    """Return the indices of the nights with which to compare `night`: at most the 15 before it.

    Omit nights before the last sudden change, and the latest ones if probably slower than the rest.
    """
    steps = (change.onset for change in changes if change.kind == "step")
    begun = max(night - REMEMBERED, *steps, 0)
    before = tuple(i for i in range(begun, night) if point in nights[i].log_costs)
    return before[: len(before) - suspect_nights([nights[i].log_costs[point] for i in before])]


def _lost_level(
    values: Sequence[float],
    found: Sequence[LevelChange],
    changes: Sequence[RowChange],
    nights: Sequence[Night],
    last: int,
) -> LostLevel:
    """Combine slowdown `found[last]` with the slowdowns just before it in the same environment."""
    first = last
    while first and found[first - 1].change > 0:
        if any(changes_on_night(nights, change.onset) for change in changes[first - 1 : first + 1]):
            break
        first -= 1
    return LostLevel(
        kind=changes[last].kind if first == last else "drift",
        since=changes[first].onset,
        onset=changes[last].onset,
        is_new=found[last].seen == len(values) - 1,
        before=changes[first].before,
        throughput=throughput_change(*levels_beside(values, found, first, len(found) - 1)),
    )
