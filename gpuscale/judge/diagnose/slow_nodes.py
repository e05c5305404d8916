"""Find the slow nodes and links of a job, as measured by a rank on each node.

All links of a faulty node are slow; a faulty link is slow while other links of its nodes are not.
"""

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal

import msgspec

from gpuscale.records import NodeProbe

SLOW_LINK = 1.5
"""Slowdown above which a link is called slow; links of one network differ by a few percent."""
SLOW_COMPUTATION = 1.2
"""Slowdown above which a GPU is called slow; GPUs of one model differ by 8% (arXiv 2208.11035)."""

Pair = tuple[int, int]


class NodeFinding(msgspec.Struct, frozen=True):
    """A finding on a node: it, a link or a port is slow, or a port is down, or CPUs are far."""

    kind: Literal["computation", "node links", "link", "direction", "port", "binding"]
    hosts: tuple[str, ...]
    """The slow node, or the two nodes that the link connects."""
    slower: float
    """Ratio of the time taken to the typical time; 1 if nothing was timed."""
    text: str
    """Message for the user, with the remedy."""


def find_slow(probes: Sequence[NodeProbe]) -> tuple[NodeFinding, ...]:
    """Find slow nodes, links and directions, worst first; none if the job has a single node."""
    if len(probes) < 2:
        return ()
    found = [*_slow_computation(probes), *_slow_links(probes)]
    return tuple(sorted(found, key=lambda finding: finding.slower, reverse=True))


def _slow_computation(probes: Sequence[NodeProbe]) -> Iterator[NodeFinding]:
    """Compare every device with the median of all devices of the other nodes."""
    for place, probe in enumerate(probes):
        others = (*probes[:place], *probes[place + 1 :])
        typical_s = statistics.median(time_s for other in others for time_s in other.compute_s)
        for device, time_s in enumerate(probe.compute_s):
            slower = time_s / typical_s
            if slower > SLOW_COMPUTATION:
                what = f" on GPU {device}" if len(probe.compute_s) > 1 else ""
                text = (
                    f"{probe.host} computes {slower:.3g}× as long{what} as the other nodes: "
                    "see its clocks, temperature and what else runs there"
                )
                yield NodeFinding("computation", (probe.host,), slower, text)


def _slow_links(probes: Sequence[NodeProbe]) -> Iterator[NodeFinding]:
    times = {
        (place, send.to): send.time_s for place, probe in enumerate(probes) for send in probe.sends
    }
    if len(probes) == 2:
        yield from _slow_direction(probes, times)
        return
    pairs = {
        (one, other): max(times[one, other], times[other, one])
        for one, other in combinations(range(len(probes)), 2)
    }
    # The lower quartile: if one node of three is faulty, two links in three are slow.
    typical_s = sorted(pairs.values())[(len(pairs) - 1) // 4]
    slow = {
        pair: time_s / typical_s for pair, time_s in pairs.items() if time_s / typical_s > SLOW_LINK
    }
    sick = _nodes_of_slow_links(slow, len(probes))
    for place in sick:
        host = probes[place].host
        slower = statistics.median(slower for pair, slower in slow.items() if place in pair)
        text = (
            f"{host}: its links take {slower:.3g}× as long as those between the other nodes; "
            "see its network adapter, cable and port, and leave it out meanwhile"
        )
        yield NodeFinding("node links", (host,), slower, text)
    for pair, slower in slow.items():
        if not sick.intersection(pair):
            one, other = (probes[place].host for place in pair)
            text = (
                f"{one} – {other} takes {slower:.3g}× as long as other links, and their links to "
                "other nodes do not: see the route between the two"
            )
            yield NodeFinding("link", (one, other), slower, text)


def _nodes_of_slow_links(slow: Collection[Pair], nodes: int) -> set[int]:
    """Return the fewest faulty nodes that explain the slow links; most links of each are slow."""
    left = set(slow)
    sick: set[int] = set()
    while left:
        counts = {place: sum(place in pair for pair in left) for place in range(nodes)}
        worst = max(counts, key=counts.__getitem__)
        # Links to faulty nodes show nothing about this one.
        if counts[worst] < 2 or counts[worst] * 2 <= nodes - 1 - len(sick):
            break
        sick.add(worst)
        left = {pair for pair in left if worst not in pair}
    return sick


def _slow_direction(
    probes: Sequence[NodeProbe], times: Mapping[Pair, float]
) -> Iterator[NodeFinding]:
    """Compare the two directions of the only link between two nodes."""
    for sender, receiver in ((0, 1), (1, 0)):
        slower = times[sender, receiver] / times[receiver, sender]
        if slower > SLOW_LINK:
            one, other = probes[sender].host, probes[receiver].host
            text = (
                f"{one} → {other} takes {slower:.3g}× as long as {other} → {one}: {one}'s "
                f"sending or {other}'s receiving is slow; which of them cannot be told with "
                "two nodes, so try each with a third"
            )
            yield NodeFinding("direction", (one, other), slower, text)
