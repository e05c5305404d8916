"""Nightly runs on one machine as time series: the level of each row, and what changed when."""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpuscale.analysis.history.device_paces import DeviceChange, devices_that_changed
from gpuscale.analysis.history.node_effects import (
    Costs,
    NodeEffect,
    node_effects,
    without_slow_nodes,
)
from gpuscale.analysis.scaling import level_of
from gpuscale.analysis.statistics.estimates import Sample, difference, exponential, log_sample
from gpuscale.analysis.statistics.levels import (
    FEWEST_NIGHTS,
    REMEMBERED,
    Kind,
    LevelChange,
    departure,
    is_far,
    level_changes,
    outlying,
    stands_out,
    suspect_nights,
)
from gpuscale.base.errors import UsageError
from gpuscale.base.units import counted
from gpuscale.records import (
    Environment,
    EnvironmentChange,
    Estimate,
    PointKey,
    Results,
    Run,
    Scaling,
)
from gpuscale.records.environment import UNRECORDED
from gpuscale.records.environment_diff import environment_changes, host_changes
from gpuscale.records.run import nodes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """One night: the runs made in one allocation, and the mean step time of each row."""

    allocation: str
    began_at: datetime
    environment: Environment
    runs: tuple[Run, ...]
    """Valid runs of the selected rows."""
    log_costs: Mapping[PointKey, float]
    """Mean logarithm of the step time of each row."""
    nodes: Mapping[PointKey, frozenset[str]]
    """Nodes that each row ran on, as far as known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """A lasting change in the step time of a row."""

    point: PointKey
    onset: int
    """Index of the first night on the new level; for a drift, of the night that revealed it."""
    kind: Kind
    throughput: Estimate
    """Relative change of throughput between the two levels; −0.03 means 3% less."""

    @property
    def is_loss(self) -> bool:
        """True if the row became slower."""
        return self.throughput.value < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LostLevel:
    """A lasting loss of throughput in a row: one change, or several in succession.

    Successive losses are combined, as in a slow drift, unless the environment changed with them.
    """

    kind: Kind
    """Kind of the change; several changes combined count as a drift."""
    since: int
    """Onset of the first of the combined changes, as the index of a night."""
    onset: int
    """Onset of the last of the combined changes, as the index of a night."""
    is_new: bool
    """True if the loss became apparent only on the latest night."""
    before: Scaling
    """Level before the loss."""
    throughput: Estimate
    """Relative change of throughput from the level before the loss to the present level; it has no
    confidence interval if a drift is involved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowHistory:
    """The history of one row over the nights in which it was measured."""

    point: PointKey
    nights: tuple[int, ...]
    """Indices of the nights in which the row was measured."""
    changes: tuple[RowChange, ...]
    level_nights: int
    """Number of nights on the present level, including the latest night."""
    outlying: tuple[int, ...]
    """Indices of the outliers: nights that are far from the other nights on the same level."""
    last: Scaling
    """Mean step time and throughput, or the metric judged instead, on the latest night."""
    departure: float | None
    """Relative change of throughput from earlier nights to the latest night; None if there are too
    few nights."""
    stands_out: bool
    """True if a second night like the latest one would prove a change of level."""
    is_unclear: bool
    """True if the latest night may differ but cannot be judged yet: it is far from earlier nights
    that are too few to prove a change, or several of the latest nights may be slower."""
    lost: LostLevel | None
    """The most recent loss; None without a loss, if later changes recovered most of it, or if the
    latest night is at least as near to the level before the loss as to the level after it."""

    @property
    def recent_loss(self) -> LostLevel | None:
        """The loss in `lost`; None if the present level is over 15 nights old and so expected."""
        return self.lost if self.level_nights <= REMEMBERED else None

    @property
    def nights_missing(self) -> int:
        """Number of nights until an outlier can be detected; a change of level needs one more."""
        return max(0, FEWEST_NIGHTS + 1 - len(self.nights))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """Rows that changed in the same direction on the same night, with other changes that night."""

    night: int
    changes: tuple[RowChange, ...]
    environment: tuple[EnvironmentChange, ...]
    """Environment changes since the previous night; empty for a drift, which starts gradually."""
    devices: tuple[DeviceChange, ...]
    """Devices that changed in the same direction more than other devices; empty for a drift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The nights of one machine, in chronological order, and the changes of its rows over time."""

    machine: str
    nights: tuple[Night, ...]
    rows: tuple[RowHistory, ...]
    events: tuple[HistoryEvent, ...]
    left_out: tuple[str, ...] = ()
    """Nights excluded on purpose, each with a reason, such as `2026-03-13 (cooling failure)`."""
    nodes: tuple[NodeEffect, ...] = ()
    """Effect of each node, the slowest first; empty if all nights ran on the same one."""
    as_measured: "History | None" = None
    """The history with nights on slow nodes counted as measured; None if no node is slow. In this
    history, such nights count as if the node were as fast as the others."""

    @property
    def label(self) -> str:
        """Number of nights, and their machine if it is known: `24 nights of Tesla V100`."""
        of_machine = f" of {self.machine}" if self.machine else ""
        return f"{counted(len(self.nights), 'night')}{of_machine}"

    def slower_devices(self, night: int) -> tuple[DeviceChange, ...]:
        """Return the devices that were slower, relative to others, than on the previous night."""
        return _changed_devices(self.nights, night, slower=True)


def history_of(
    results: Iterable[Results],
    *,
    cases: Collection[str] | None = None,
    gpus: Collection[int] | None = None,
) -> History:
    """Return the history of one machine's results, for the selected cases and numbers of GPUs.

    Raise UsageError if the results come from several kinds of machines or have no valid run of the
    selected cases.
    """
    results = list(results)
    nights, left_out = nights_of(results, cases=cases, gpus=gpus), left_out_of(results)
    machines: dict[str, list[Night]] = {}
    for night in nights:
        machine = night.environment
        of_cpu = "" if machine.device == UNRECORDED else "CPU"
        name = ", ".join(machine.gpu_names) or machine.cpu_model or machine.system or of_cpu
        machines.setdefault(name, []).append(night)
    if len(machines) > 1:
        found = "; ".join(
            f"{name} ({len(own)} of {len(nights)}, the first {own[0].allocation} of "
            f"{own[0].began_at:%Y-%m-%d})"
            for name, own in machines.items()
        )
        raise UsageError(f"the nights are of several machines: {found}; give those of one")
    if not machines:
        beside = f"; left out: {', '.join(left_out)}" if left_out else ""
        raise UsageError(f"the results hold no valid run of what was asked for{beside}")
    measured = History(
        machine=next(iter(machines)), nights=nights, rows=(), events=(), left_out=left_out
    )
    costs, places = [night.log_costs for night in nights], [night.nodes for night in nights]
    effects = node_effects(costs, places)
    if not any(effect.slow for effect in effects):
        return replace(_judged(measured, costs), nodes=effects)
    corrected = without_slow_nodes(costs, places, effects)
    return replace(
        _judged(measured, corrected), nodes=effects, as_measured=_judged(measured, costs)
    )


def _judged(history: History, costs: Costs) -> History:
    """Return the history with its rows and events, judged by these logarithms of step times."""
    nights = [
        replace(night, log_costs=cost) for night, cost in zip(history.nights, costs, strict=True)
    ]
    points = dict.fromkeys(point for night in nights for point in night.log_costs)
    rows = tuple(
        replace(row, last=_level(history.nights[row.nights[-1]], row.point))
        for row in (_row(point, nights) for point in points)
    )
    return replace(history, rows=rows, events=tuple(_events(rows, nights)))


def _level(night: Night, point: PointKey) -> Scaling:
    return level_of(point, Estimate(value=exponential(night.log_costs[point])))


def left_out_of(results: Iterable[Results]) -> tuple[str, ...]:
    """Return nights excluded on purpose, such as `2026-03-13 (cooling failure)`, earliest first."""
    found = sorted(
        (min((_began(run, result) for run in result.runs), default=_created(result)), reason)
        for result in results
        if (reason := result.left_out)
    )
    names = date_texts([began for began, _ in found])
    return tuple(f"{name} ({reason})" for name, (_, reason) in zip(names, found, strict=True))


def date_texts(moments: Sequence[datetime]) -> list[str]:
    """Return the date of each moment, with its time if several moments share a date."""
    dates = [f"{moment:%Y-%m-%d}" for moment in moments]
    dated = zip(dates, moments, strict=True)
    return [day if dates.count(day) == 1 else f"{at:%Y-%m-%d %H:%M}" for day, at in dated]


def nights_of(
    results: Iterable[Results],
    *,
    cases: Collection[str] | None = None,
    gpus: Collection[int] | None = None,
) -> tuple[Night, ...]:
    """Return one night for each allocation in the results, in chronological order.

    Results with injected faults and results excluded on purpose are ignored.
    """
    placed: dict[str, list[tuple[Run, Results]]] = {}
    for result in results:
        for run in () if result.injections or result.left_out else result.runs:
            if run.is_valid and run.key.is_of(cases) and (gpus is None or run.gpus in gpus):
                placed.setdefault(result.allocation_of(run), []).append((run, result))
    nights = [
        Night(
            allocation=name,
            began_at=min(_began(run, result) for run, result in made),
            environment=made[0][1].environment,
            runs=tuple(run for run, _ in made),
            log_costs=_means(run for run, _ in made),
            nodes=_nodes(made),
        )
        for name, made in placed.items()
    ]
    return tuple(sorted(nights, key=lambda night: night.began_at))


def _began(run: Run, result: Results) -> datetime:
    if run.started_at_s is None:
        return _created(result)
    return datetime.fromtimestamp(run.started_at_s, UTC)


def _created(result: Results) -> datetime:
    return datetime.fromisoformat(result.created_at).astimezone(UTC)


def _means(runs: Iterable[Run]) -> dict[PointKey, float]:
    logs: dict[PointKey, list[float]] = {}
    for run in runs:
        logs.setdefault(PointKey.of(run), []).append(run.log_cost)
    return {point: log_sample(values).mean for point, values in logs.items()}


def _nodes(made: Iterable[tuple[Run, Results]]) -> dict[PointKey, frozenset[str]]:
    nodes: dict[PointKey, frozenset[str]] = {}
    for run, result in made:
        hosts = {report.host for report in run.ranks} or {node.host for node in run.nodes}
        hosts = hosts or {node.host for node in result.environment.nodes}
        if not hosts and result.environment.host:
            hosts = {result.environment.host}
        point = PointKey.of(run)
        nodes[point] = nodes.get(point, frozenset()) | hosts
    return nodes


def _row(point: PointKey, nights: Sequence[Night]) -> RowHistory:
    indices = [i for i, night in enumerate(nights) if point in night.log_costs]
    values = [nights[i].log_costs[point] for i in indices]
    found = level_changes(values)
    levels = itertools.pairwise((0, *(change.onset for change in found), len(values)))
    far = [
        begin + i
        for begin, end in levels
        if end - begin > FEWEST_NIGHTS
        for i in outlying(values[begin:end])
    ]
    begin = found[-1].onset if found else 0
    changes = tuple(
        RowChange(
            point=point,
            onset=indices[change.onset],
            kind=change.kind,
            throughput=_throughput_change(values, found, number, number),
        )
        for number, change in enumerate(found)
    )
    before = nights_before(indices[-1], point, nights, changes)
    last = None
    if len(values) > FEWEST_NIGHTS:
        last = departure([nights[i].log_costs[point] for i in before], values[-1])
    alone = last is not None and stands_out(values[begin:-1], last)
    lost = _unrecovered_loss(found)
    if lost is not None and found[lost].change >= 2 * (values[-1] - found[lost].before):
        lost = None
    return RowHistory(
        point=point,
        nights=tuple(indices),
        changes=changes,
        level_nights=len(values) - begin,
        outlying=tuple(indices[i] for i in far),
        last=_level(nights[indices[-1]], point),
        departure=None if last is None else exponential(-last) - 1,
        stands_out=alone,
        is_unclear=(
            last is not None
            and len(values) - begin <= REMEMBERED
            and (is_far(values, last) or suspect_nights(values[begin:]) > 1)
            # In a slow drift, which is reported, tonight is always far from the nights before.
            and not (alone or lost is not None)
        ),
        lost=None if lost is None else _lost_level(values, found, changes, nights, lost),
    )


def nights_before(
    night: int, point: PointKey, nights: Sequence[Night], changes: Iterable[RowChange]
) -> tuple[int, ...]:
    """Return up to 15 earlier nights, on the same level, with which a night of a row is compared.

    The latest of them are left out if they may already be slower. A drift starts no new level.
    """
    steps = (change.onset for change in changes if change.kind == "step")
    begun = max(night - REMEMBERED, *steps, 0)
    before = tuple(i for i in range(begun, night) if point in nights[i].log_costs)
    suspect = suspect_nights([nights[i].log_costs[point] for i in before])
    return before[: len(before) - suspect]


def _unrecovered_loss(found: Sequence[LevelChange]) -> int | None:
    """Index of the last loss; None without a loss or if later changes recovered most of it."""
    last = max((i for i, change in enumerate(found) if change.change > 0), default=None)
    if last is None:
        return None
    reached = found[-1].before + found[-1].change
    return last if found[last].change < 2 * (reached - found[last].before) else None


def _lost_level(
    values: Sequence[float],
    found: Sequence[LevelChange],
    changes: Sequence[RowChange],
    nights: Sequence[Night],
    last: int,
) -> LostLevel:
    """Combine a loss with the losses before it, up to the latest change of the environment."""
    first = last
    while first and found[first - 1].change > 0:
        if any(environment_at(nights, change.onset) for change in changes[first - 1 : first + 1]):
            break
        first -= 1
    return LostLevel(
        kind=changes[last].kind if first == last else "drift",
        since=changes[first].onset,
        onset=changes[last].onset,
        is_new=found[last].seen == len(values) - 1,
        before=level_of(changes[0].point, Estimate(value=exponential(found[first].before))),
        throughput=_throughput_change(values, found, first, len(found) - 1),
    )


def _throughput_change(
    values: Sequence[float], found: Sequence[LevelChange], first: int, last: int
) -> Estimate:
    """Relative change of throughput from before the change `first` to after the change `last`.

    `first` and `last` are indices of level changes. At most 15 nights on either side are used.
    """
    left, reached = found[first], found[last]
    if "drift" in (left.kind, reached.kind):
        # The levels of a drift are weeks apart, and the nights in between are samples of neither.
        change = reached.before + reached.change - left.before
        return Estimate(value=exponential(-change) - 1, low=None, high=None)
    begin = found[first - 1].onset if first else 0
    end = found[last + 1].onset if last + 1 < len(found) else len(values)
    before = _usual(values[max(begin, left.onset - REMEMBERED) : left.onset])
    after = _usual(values[reached.onset : min(end, reached.onset + REMEMBERED)])
    return difference(before.mean - after.mean, (before.term(), after.term())).relative_change()


def _usual(level: Sequence[float]) -> Sample:
    """Sample of the values on one level, without outliers."""
    far = outlying(level)
    return log_sample([value for i, value in enumerate(level) if i not in far])


def _events(rows: Iterable[RowHistory], nights: Sequence[Night]) -> Iterable[HistoryEvent]:
    """Group the changes of all rows by night, kind and direction, in chronological order."""
    together: dict[tuple[int, Kind, bool], list[RowChange]] = {}
    for row in rows:
        for change in row.changes:
            alike = (change.onset, change.kind, change.throughput.value < 0)
            together.setdefault(alike, []).append(change)
    for (night, kind, slower), changed in sorted(together.items()):
        is_step = kind == "step"
        yield HistoryEvent(
            night=night,
            changes=tuple(changed),
            environment=environment_at(nights, night) if is_step else (),
            devices=_changed_devices(nights, night, slower=slower) if is_step else (),
        )


def environment_at(nights: Sequence[Night], night: int) -> tuple[EnvironmentChange, ...]:
    """Return the changes of the environment from the previous night to the given one."""
    before, now = nights[night - 1].environment, nights[night].environment
    nodes = (nodes_of(nights[at].runs) for at in (night - 1, night))
    hosts = host_changes(*({where.host} if where.host else set() for where in (before, now)))
    return (*environment_changes([before], [now], *nodes), *hosts)


def _changed_devices(
    nights: Sequence[Night], night: int, *, slower: bool
) -> tuple[DeviceChange, ...]:
    if night == 0:
        return ()
    return devices_that_changed(nights[night - 1].runs, nights[night].runs, slower=slower)
