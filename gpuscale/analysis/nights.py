"""Nights: the valid runs of each allocation in results files, and the nodes that they ran on.

A night that ran on a slow node is slower than the nights before *and after* it on other nodes; a
change of the machine affects all following nights, whichever nodes they ran on.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpuscale.analysis.estimates import Term, difference
from gpuscale.analysis.level_changes import REMEMBERED, night_deviation
from gpuscale.base.errors import UsageError
from gpuscale.base.grouping import by_key
from gpuscale.base.host import UNRECORDED
from gpuscale.records import Environment, EnvironmentChange, Estimate, PointKey, Results, Run
from gpuscale.records.configuration import ALL_ROWS, Choice
from gpuscale.records.environment_diff import environment_changes, new_values
from gpuscale.records.run import nodes_of

FEWEST_VISITS = 3
"""Minimum number of nights on a node required to judge the node."""
_NEAR = 7
"""Maximum number of nights without the node, before and after a night, to compare it with."""
_FEWEST_NEAR = 2
"""Minimum number of nights without the node, on one side of a night, to compare it with."""
_EACH, _EACH_DEVIATIONS = 0.01, 1.5
"""Minimum slowdown of each slow night: as a fraction, and in standard deviations of nights."""
_MEAN, _MEAN_DEVIATIONS = 0.015, 4.5
"""Minimum mean slowdown of the slow nights: as a fraction, and in standard errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """One night: the runs executed in one allocation, and the mean step time of each row."""

    allocation: str
    began_at: datetime
    folder: str
    """Name of the folder that has the results; empty if it is not that of a night."""
    environment: Environment
    runs: tuple[Run, ...]
    """Valid runs of the selected rows."""
    log_costs: Mapping[PointKey, float]
    """Mean logarithm of the step time of each row."""
    nodes: Mapping[PointKey, frozenset[str]]
    """Nodes that each row ran on, as far as known."""


def nights_of(results: Iterable[Results], choice: Choice = ALL_ROWS) -> tuple[Night, ...]:
    """Return one night for each allocation in the results, in chronological order.

    Results with injected faults and results excluded on purpose are ignored.
    """
    made = by_key(
        (result.allocation_of(run), (run, result))
        for result in results
        if not result.why_excluded
        for run in result.runs
        if run.is_valid and choice.includes(run.key)
    )
    nights = itertools.starmap(_night, made.items())
    return tuple(sorted(nights, key=lambda night: night.began_at))


def _night(allocation: str, made: Sequence[tuple[Run, Results]]) -> Night:
    logs = by_key((PointKey.of(run), run.log_cost) for run, _ in made)
    nodes = dict.fromkeys(logs, frozenset[str]())
    for run, result in made:
        named = run.ranks or run.nodes or result.environment.nodes
        hosts = frozenset(each.host for each in named)
        nodes[PointKey.of(run)] |= hosts or frozenset(filter(None, [result.environment.host]))
    return Night(
        allocation=allocation,
        began_at=min(_run_began(run, result) for run, result in made),
        folder=made[0][1].folder,
        environment=made[0][1].environment,
        runs=tuple(run for run, _ in made),
        log_costs={point: statistics.fmean(values) for point, values in logs.items()},
        nodes=nodes,
    )


def _run_began(run: Run, result: Results) -> datetime:
    if run.started_at_s is None:
        return datetime.fromisoformat(result.created_at).astimezone(UTC)
    return datetime.fromtimestamp(run.started_at_s, UTC)


def began(result: Results) -> datetime:
    """Return the start time of a file's first run, or the file's creation time if it has no run."""
    created = datetime.fromisoformat(result.created_at).astimezone(UTC)
    return min((_run_began(run, result) for run in result.runs), default=created)


def left_out_of(results: Iterable[Results]) -> tuple[str, ...]:
    """Return nights excluded on purpose, such as `2026-03-13 (cooling failure)`, earliest first.

    Nights of `results` with the same date have longer names, as in `night_names`.
    """
    ordered = sorted(results, key=began)
    names = night_names([(began(result), result.folder) for result in ordered])
    found = [(name, each.left_out) for name, each in zip(names, ordered, strict=True)]
    return tuple(dict.fromkeys(f"{name} ({reason})" for name, reason in found if reason))


def night_names(nights: Sequence[tuple[datetime, str]]) -> list[str]:
    """Return the name of each night, given its start and the name of its folder (may be empty).

    The name is the date: of the folder, or else of the start in UTC. Nights that share a date are
    named by their folders or else by their times, to the second if some share a minute.
    """
    distinct = dict.fromkeys(nights)
    of_date = by_key((night[1][:10] or f"{night[0]:%Y-%m-%d}", night) for night in distinct)
    names: dict[tuple[datetime, str], str] = {}
    for day, same in of_date.items():
        moments = {moment for moment, _ in same}
        minutes = {f"{moment:%Y-%m-%d %H:%M}" for moment in moments}
        form = "%Y-%m-%d %H:%M" if len(minutes) == len(moments) else "%Y-%m-%d %H:%M:%S"
        for moment, folder in same:
            names[moment, folder] = day if len(same) == 1 else folder or f"{moment:{form}}"
    return [names[night] for night in nights]


def machine_of(nights: Sequence[Night], left_out: Sequence[str] = ()) -> str:
    """Return the machine's name; raise UsageError if there are no nights or several machines."""
    machines: dict[str, str] = {}
    for night in nights:
        machine = night.environment
        of_cpu = "" if machine.device == UNRECORDED else "CPU"
        name = ", ".join(machine.gpu_names) or machine.cpu_model or machine.system or of_cpu
        machines.setdefault(name, f"{night.began_at:%Y-%m-%d}")
    if len(machines) > 1:
        found = "; ".join(f"{name} since {first}" for name, first in machines.items())
        raise UsageError(f"the nights are of several machines: {found}; give those of one")
    if not machines:
        left = f"; left out: {', '.join(left_out)}" if left_out else ""
        raise UsageError(f"the results hold no valid run of the chosen rows{left}")
    return next(iter(machines))


def environment_at(nights: Sequence[Night], night: int) -> tuple[EnvironmentChange, ...]:
    """Return the changes in the environment from the previous night to the given night."""
    before, now = nights[night - 1].environment, nights[night].environment
    nodes = (nodes_of(nights[at].runs) for at in (night - 1, night))
    hosts = new_values("host", *([where.host] if where.host else [] for where in (before, now)))
    return (*environment_changes([before], [now], *nodes), *hosts)


def lasting_changes(nights: Sequence[Night], night: int) -> tuple[EnvironmentChange, ...]:
    """Return the changes from the 15 nights before `night` to the last night.

    Hosts are not compared, since a scheduler may choose others every night.
    """
    before, now = nights[max(0, night - REMEMBERED) : night], nights[-1]
    environments = [each.environment for each in before]
    nodes = nodes_of(run for each in before for run in each.runs)
    return environment_changes(environments, [now.environment], nodes, nodes_of(now.runs))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEffect:
    """Effect of one node: nights with the node, compared with neighbouring nights without it."""

    node: str
    nights: tuple[int, ...]
    slow: tuple[int, ...]
    """Indices of nights on which the node, not the whole machine, was slow. Fewer than 3 successive
    nights on the node do not count."""
    speed: Estimate | None
    """Speed on the slow nights (or on all nights with the node, if none is slow) relative to nights
    without it; None if too few nights can be compared."""


def node_effects(nights: Sequence[Night]) -> tuple[NodeEffect, ...]:
    """Return the effect of each node, slowest first; empty if all nights ran on the same nodes."""
    sets = {nodes for night in nights for nodes in night.nodes.values()}
    names = sorted(frozenset().union(*sets)) if len(sets) > 1 else []
    effects = [_effect(name, nights) for name in names]
    return tuple(sorted(effects, key=lambda each: each.speed.value if each.speed else math.inf))


def without_slow_nodes(nights: Sequence[Night], effects: Iterable[NodeEffect]) -> list[Night]:
    """Return the nights as they would be if slow nodes were as fast as the others."""
    corrected = [*nights]
    slower = by_key(
        (at, (effect.node, -math.log1p(effect.speed.value)))
        for effect in effects
        if effect.speed is not None
        for at in effect.slow
    )
    for at, slowdowns in slower.items():
        night, slow = nights[at], dict(slowdowns)
        costs = {
            point: cost - max((slow.get(node, 0.0) for node in night.nodes[point]), default=0.0)
            for point, cost in night.log_costs.items()
        }
        corrected[at] = replace(night, log_costs=costs)
    return corrected


def _effect(node: str, nights: Sequence[Night]) -> NodeEffect:
    visits = [i for i, night in enumerate(nights) if any(node in on for on in night.nodes.values())]
    by_night: dict[int, list[float]] = {}
    deviations = []
    on_node = (point for i in visits for point, on in nights[i].nodes.items() if node in on)
    for point in dict.fromkeys(on_node):
        others = [
            (i, night.log_costs[point])
            for i, night in enumerate(nights)
            if node not in night.nodes.get(point, {node})
        ]
        deviations.append(night_deviation([value for _, value in others]))
        for i in visits:
            level = _level_around(i, others) if node in nights[i].nodes.get(point, ()) else None
            if level is not None:
                by_night.setdefault(i, []).append(nights[i].log_costs[point] - level)
    deviation = statistics.median(deviations)
    apart = {night: statistics.median(values) for night, values in sorted(by_night.items())}
    slow = [*_slow_nights(apart, deviation, len(nights), visits)]
    shown, speed = slow or [*apart], None
    if len(shown) >= FEWEST_VISITS:
        mean = statistics.fmean(apart[night] for night in shown)
        error = Term(variance=deviation**2 / len(shown), df=max(1, len(nights) - 1))
        speed = difference(-mean, [error]).relative_change()
    return NodeEffect(node=node, nights=tuple(visits), slow=tuple(slow), speed=speed)


def _level_around(night: int, others: Sequence[tuple[int, float]]) -> float | None:
    """Return the slower of the levels before and after a night; None if both are unknown."""
    before = [value for i, value in others if i < night][-_NEAR:]
    after = [value for i, value in others if i > night][:_NEAR]
    sides = (statistics.median(side) for side in (before, after) if len(side) >= _FEWEST_NEAR)
    return max(sides, default=None)


def _slow_nights(
    apart: Mapping[int, float], deviation: float, count: int, nights: Sequence[int]
) -> Iterator[int]:
    """Yield every night that belongs to a series of at least 3 slow nights on a node.

    `nights` are the nights on the node, among `count` nights; `apart` has their distances from the
    nights around them. A series counts only if there are enough nights elsewhere after its first
    and before its last night: otherwise the whole machine may have become slower.
    """
    each = max(_EACH, _EACH_DEVIATIONS * deviation)
    for is_slow, group in itertools.groupby(apart, key=lambda night: apart[night] > each):
        found = [*group]
        least = max(_MEAN, _MEAN_DEVIATIONS * deviation / math.sqrt(len(found)))
        mean = statistics.fmean(apart[night] for night in found)
        around = ({*range(found[0], count)}, {*range(found[-1])})
        others = min(len(part.difference(nights)) for part in around)
        if is_slow and len(found) >= FEWEST_VISITS and mean > least and others >= _FEWEST_NEAR:
            yield from found
