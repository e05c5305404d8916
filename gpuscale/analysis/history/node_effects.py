"""Distinguish nodes that are slow from changes of the whole machine.

A night that ran on a slow node is slower than the nights before *and after* it on other nodes; a
change of the machine is shared by the nights that follow it, whichever nodes they got.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuscale.analysis.statistics.estimates import Term, difference
from gpuscale.analysis.statistics.levels import night_deviation
from gpuscale.records import Estimate, PointKey

FEWEST_VISITS = 3
"""Minimum number of nights on a node that are needed to judge the node."""
_NEAR = 7
"""Maximum number of nights without the node, on either side, with which a night is compared."""
_FEWEST_NEAR = 2
"""Minimum number of nights without the node after its first slow night, and before its last."""
_EACH, _EACH_DEVIATIONS = 0.01, 1.5
"""Minimum slowdown of each slow night: as a fraction, and in deviations between nights."""
_MEAN, _MEAN_DEVIATIONS = 0.015, 4.5
"""Minimum mean slowdown of the slow nights: as a fraction, and in standard errors."""

Costs = Sequence[Mapping[PointKey, float]]
"""Log step time of each row, for each night."""
Places = Sequence[Mapping[PointKey, frozenset[str]]]
"""Nodes that each row ran on, for each night."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEffect:
    """The nights that one node took part in, compared with neighbouring nights without it."""

    node: str
    nights: tuple[int, ...]
    slow: tuple[int, ...]
    """Nights on which the node, not the machine, was slow: at least three visits in succession."""
    speed: Estimate | None
    """Speed on the slow nights (or on all nights with the node, if none is slow) relative to nights
    without it; None if too few nights can be compared."""

    @property
    def slowdown(self) -> float:
        """Logarithm of the node's step time relative to that of other nodes; 0 if unknown."""
        return -math.log1p(self.speed.value) if self.speed else 0.0


def node_effects(costs: Costs, places: Places) -> tuple[NodeEffect, ...]:
    """Return the effect of each node, slowest first; empty if all nights ran on the same nodes."""
    sets = {nodes for night in places for nodes in night.values()}
    names = sorted(frozenset().union(*sets)) if len(sets) > 1 else []
    effects = [_effect(name, costs, places) for name in names]
    return tuple(sorted(effects, key=lambda each: each.speed.value if each.speed else math.inf))


def without_slow_nodes(costs: Costs, places: Places, effects: Iterable[NodeEffect]) -> Costs:
    """Return the log step times as they would be if slow nodes were as fast as the others."""
    slower = [dict[str, float]() for _ in costs]
    for effect in effects:
        for night in effect.slow:
            slower[night][effect.node] = effect.slowdown
    return [
        {
            point: cost - max((slow.get(node, 0.0) for node in nodes[point]), default=0.0)
            for point, cost in night.items()
        }
        for night, nodes, slow in zip(costs, places, slower, strict=True)
    ]


def _effect(node: str, costs: Costs, places: Places) -> NodeEffect:
    nights = [i for i, night in enumerate(places) if any(node in on for on in night.values())]
    by_night: dict[int, list[float]] = {}
    deviations = []
    for point in dict.fromkeys(p for i in nights for p, on in places[i].items() if node in on):
        others = [
            (i, night[point])
            for i, night in enumerate(costs)
            if point in night and node not in places[i][point]
        ]
        deviations.append(night_deviation([value for _, value in others]))
        for night in nights:
            level = _level(night, others) if node in places[night].get(point, ()) else None
            if level is not None:
                by_night.setdefault(night, []).append(costs[night][point] - level)
    deviation = statistics.median(deviations)
    apart = {night: statistics.median(values) for night, values in sorted(by_night.items())}
    slow = [*_slow_nights(apart, deviation, len(costs), nights)]
    shown, speed = slow or [*apart], None
    if len(shown) >= FEWEST_VISITS:
        mean = statistics.fmean(apart[night] for night in shown)
        error = Term(variance=deviation**2 / len(shown), df=max(1, len(costs) - 1))
        speed = difference(-mean, [error]).relative_change()
    return NodeEffect(node=node, nights=tuple(nights), slow=tuple(slow), speed=speed)


def _level(night: int, others: Sequence[tuple[int, float]]) -> float | None:
    """Return the slower level of the nights before or after; None if there are too few nights."""
    before = [value for i, value in others if i < night][-_NEAR:]
    after = [value for i, value in others if i > night][:_NEAR]
    sides = (statistics.median(side) for side in (before, after) if len(side) >= _FEWEST_NEAR)
    return max(sides, default=None)


def _slow_nights(
    apart: Mapping[int, float], deviation: float, count: int, nights: Sequence[int]
) -> Iterator[int]:
    """Yield the node's successive slow nights, if nights without it show that the node is slow."""
    each = max(_EACH, _EACH_DEVIATIONS * deviation)
    for is_slow, group in itertools.groupby(apart, key=lambda night: apart[night] > each):
        found = [*group]
        least = max(_MEAN, _MEAN_DEVIATIONS * deviation / math.sqrt(len(found)))
        mean = statistics.fmean(apart[night] for night in found)
        around = ({*range(found[0], count)}, {*range(found[-1])})
        others = min(len(part.difference(nights)) for part in around)
        if is_slow and len(found) >= FEWEST_VISITS and mean > least and others >= _FEWEST_NEAR:
            yield from found
