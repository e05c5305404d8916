"""Effects of single nodes on the nights that ran on them.

A night that ran on a slow node is slower than the nights before *and after* it on other nodes; a
change of the machine affects all following nights, whichever nodes they ran on.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from gpuscale.analysis.estimates import Term, difference
from gpuscale.analysis.nights import Night
from gpuscale.analysis.shifts_and_drifts import night_deviation
from gpuscale.base.grouping import by_key
from gpuscale.records import Estimate

FEWEST_VISITS = 3
"""Minimum number of nights on a node required to judge the node."""
_NEAR = 7
"""Maximum number of nights without the node, before and after a night, to compare it with."""
_FEWEST_NEAR = 2
"""Minimum number of nights without the node, before or after a night, to compare with that one."""
_EACH, _EACH_DEVIATIONS = 0.01, 1.5
"""Minimum slowdown of each slow night: as a fraction, and in standard deviations of nights."""
_MEAN, _MEAN_DEVIATIONS = 0.015, 4.5
"""Minimum mean slowdown of the slow nights: as a fraction, and in standard errors."""


class NodeEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Relative speed of a node: nights with it compared with neighbouring nights without it."""

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
    """Return the nights, with step times as if slow nodes were as fast as the other nodes."""
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
    """Return the higher median of `others`, before or after `night`; None if both are too few."""
    before = [value for i, value in others if i < night][-_NEAR:]
    after = [value for i, value in others if i > night][:_NEAR]
    sides = (statistics.median(side) for side in (before, after) if len(side) >= _FEWEST_NEAR)
    return max(sides, default=None)


def _slow_nights(
    apart: Mapping[int, float], deviation: float, count: int, nights: Sequence[int]
) -> Iterator[int]:
    """Yield every night of each series of at least 3 successive slow nights on one node.

    `nights` are those on the node, out of `count`; `apart` has their log step times minus those of
    neighbouring nights. A series counts only if enough nights without the node follow its start and
    precede its end: otherwise the whole machine may have become slower.
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
