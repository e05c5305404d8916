"""Plan which pairs of a job's nodes exchange messages, and find slow nodes, links and switches.

All links of a faulty node are slow; a faulty link is slow while other links of its nodes are not;
nodes behind a faulty switch are slow towards all others, and fast among themselves.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal

import msgspec

from gpuscale.records import NodeProbe
from gpuscale.records.probes import MATRIX, SEND, Pairs

SLOW_LINK = 1.5
"""Slowdown above which a link is called slow; links of one network differ by a few percent."""
SLOW_COMPUTATION = 1.2
"""Slowdown above which a GPU is called slow; GPUs of one model differ by 8% (arXiv 2208.11035)."""
_NEAR = 3.0
"""Two slow nodes share a fault if their link is this many times faster than their other links."""
_MOST_NODES_FOR_ALL_PAIRS = 8
_PARTNERS = 3
"""Number of healthy nodes with which a suspected node is tested again."""

Pair = tuple[int, int]


class NodeFinding(msgspec.Struct, frozen=True):
    """A fault: a slow node, switch, link or port, a port that is down, or CPUs far from GPUs."""

    kind: Literal["computation", "node links", "switch", "link", "direction", "port", "binding"]
    hosts: tuple[str, ...]
    """The faulty nodes; for a link, the two nodes that it connects."""
    slower: float
    """Ratio of the time taken to the typical time; 1 if nothing was timed."""
    text: str


def round_robin(nodes: int) -> tuple[Pairs, ...]:
    """Return rounds of node pairs; no node occurs twice in a round (the circle method).

    With up to 8 nodes, all pairs occur; with N > 8, each node is paired with about log₂ N others.
    """
    places = [*range(nodes), *([-1] if nodes % 2 else [])]
    table = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        table.append(tuple((min(pair), max(pair)) for pair in pairs if min(pair) >= 0))
        places = [places[0], places[-1], *places[1:-1]]
    count = len(table) if nodes <= _MOST_NODES_FOR_ALL_PAIRS else math.ceil(math.log2(nodes))
    return tuple(table[n * len(table) // count] for n in range(count))


def retest_rounds(nodes: Sequence[NodeProbe]) -> tuple[Pairs, ...]:
    """Return rounds of node pairs to retest: slow links, and suspects paired with other nodes."""
    seen = _slowness(nodes)
    slow = {pair for pair, slower in seen.items() if slower > SLOW_LINK}
    sick = _nodes_of_slow_links(slow, seen)
    links = [pair for pair in slow if not sick.intersection(pair)]
    suspects = sorted(sick.union(*links))
    healthy = [node for node in range(len(nodes)) if node not in suspects]
    starts = range(0, len(healthy), max(1, len(healthy) // _PARTNERS))
    with_healthy = (zip(suspects, healthy[n:] + healthy[:n], strict=False) for n in starts)
    mapped = (
        [(suspects[one], suspects[other]) for one, other in pairs]
        for pairs in round_robin(len(suspects))
        if pairs
    )
    found = [*with_healthy, *mapped, *([link] for link in links)] if suspects else []
    return tuple(tuple((min(pair), max(pair)) for pair in pairs) for pairs in found)


def find_slow(
    probes: Sequence[NodeProbe], switches: Mapping[str, str] | None = None
) -> tuple[NodeFinding, ...]:
    """Return findings of slow nodes, switches and links, slowest first; empty for a single node.

    `switches` maps nodes to their leaf switches, as far as the scheduler knows them.
    """
    if len(probes) < 2:
        return ()
    found = [*_slow_computation(probes), *_slow_links(probes, switches or {})]
    return tuple(sorted(found, key=lambda finding: finding.slower, reverse=True))


def _slow_computation(probes: Sequence[NodeProbe]) -> Iterator[NodeFinding]:
    """Yield a finding for each device that is slower than the median device of the other nodes."""
    for place, probe in enumerate(probes):
        others = (*probes[:place], *probes[place + 1 :])
        usual_s = [time_s for other in others for _, time_s in _compute_s(other)]
        typical_s = statistics.median(usual_s) if usual_s else math.inf
        devices = _compute_s(probe)
        for device, time_s in devices:
            if (slower := time_s / typical_s) > SLOW_COMPUTATION:
                where = f" on {device}" if len(devices) > 1 else ""
                text = (
                    f"{probe.host} takes {slower:.3g}× as long to compute{where} as the other "
                    "nodes: check its clocks and temperature, and look for other processes"
                )
                yield NodeFinding("computation", (probe.host,), slower, text)


def _compute_s(node: NodeProbe) -> list[tuple[str | None, float]]:
    """Return (device or None for a whole node, median seconds per FLOP) of each matrix probe."""
    matrices = (probe for probe in node.probes if probe.name == MATRIX)
    return [(probe.device, 1 / statistics.median(probe.rates)) for probe in matrices]


def _slow_links(nodes: Sequence[NodeProbe], switches: Mapping[str, str]) -> Iterator[NodeFinding]:
    """Yield slow nodes, switches and links; with just two nodes, a slow direction of their link."""
    if len(nodes) == 2:
        yield from _slow_direction(nodes)
        return
    seen = _slowness(nodes)
    slow = {pair: slower for pair, slower in seen.items() if slower > SLOW_LINK}
    sick = _nodes_of_slow_links(slow, seen)
    near = _near(sick, seen)
    while sick:
        group = {min(sick)}
        while more := {*chain(*(pair for pair in near if group.intersection(pair)))} - group:
            group |= more
        sick -= group
        out = [slower for pair, slower in slow.items() if len(group.intersection(pair)) == 1]
        slower, hosts = statistics.median(out), tuple(nodes[place].host for place in sorted(group))
        text = (
            f"{', '.join(hosts)}: {'its' if len(hosts) == 1 else 'their'} links take "
            f"{slower:.3g}× as long as those between the other nodes"
        )
        remedy = "; check its network adapter, cable and port, and use other nodes meanwhile"
        if len(hosts) > 1:
            shared = _shared_switch(hosts, nodes, switches) or "switch"
            remedy = f", and those among themselves do not: see the {shared} or uplink they share"
        kind: Literal["switch", "node links"] = "switch" if len(hosts) > 1 else "node links"
        yield NodeFinding(kind, hosts, slower, text + remedy)
    sick = _nodes_of_slow_links(slow, seen)
    for pair, slower in slow.items():
        if not sick.intersection(pair):
            one, other = (nodes[place].host for place in pair)
            text = (
                f"{one} – {other} takes {slower:.3g}× as long as other links, and their links to "
                "other nodes do not: see the route between the two"
            )
            yield NodeFinding("link", (one, other), slower, text)


def _near(sick: Collection[int], seen: Mapping[Pair, float]) -> list[Pair]:
    """Return pairs of sick (slow) nodes whose link is far faster than those to healthy nodes."""
    out: dict[int, list[float]] = {place: [] for place in sick}
    for pair, slower in seen.items():
        ends = out.keys() & pair
        if len(ends) == 1:
            out[ends.pop()].append(slower)
    usual = {place: statistics.median(found or [1.0]) for place, found in out.items()}
    return [
        (one, other)
        for (one, other), slower in seen.items()
        if {one, other} <= usual.keys()
        and slower <= max(SLOW_LINK, min(usual[one], usual[other]) / _NEAR)
    ]


def _shared_switch(
    hosts: Collection[str], nodes: Sequence[NodeProbe], switches: Mapping[str, str]
) -> str | None:
    """Return the leaf switch, if known, that connects these hosts and no other hosts of the job."""
    leaf_of = {node.host: switches.get(node.host.partition(".")[0]) for node in nodes}
    leaves = {leaf_of[host] for host in hosts}
    others = {leaf for host, leaf in leaf_of.items() if host not in hosts}
    return None if len(leaves) > 1 or leaves & {None, *others} else f"leaf switch {leaves.pop()}"


def _slowness(nodes: Sequence[NodeProbe]) -> dict[Pair, float]:
    """Return each pair's slowdown relative to typical pairs (worst message size and direction).

    The slowest third of the repetitions is ignored, because a busy node delays some. Of the rest,
    both the fastest and the slowest count, because a flapping link is fast at times.
    """
    places = {node.host: place for place, node in enumerate(nodes)}
    times_s: dict[object, dict[Pair, float]] = defaultdict(dict)
    for probe in (probe for node in nodes for probe in node.probes if probe.peer is not None):
        ends = places[probe.host], places[probe.peer or ""]
        pair, rates = (min(ends), max(ends)), sorted(probe.rates)
        for which, rate in (("low", rates[len(rates) // 3]), ("best", rates[-1])):
            times = times_s[probe.comparison_key, which]
            times[pair] = max(times.get(pair, 0.0), 1 / rate)
    slowness: dict[Pair, float] = defaultdict(float)
    for times in times_s.values():
        # The lower quartile: if one node of three is faulty, two links in three are slow.
        typical_s = sorted(times.values())[(len(times) - 1) // 4]
        for pair, time_s in times.items():
            slowness[pair] = max(slowness[pair], time_s / typical_s)
    return slowness


def _nodes_of_slow_links(slow: Collection[Pair], seen: Collection[Pair]) -> set[int]:
    """Find nodes whose links are mostly slow, as few as needed to explain the slow links."""
    sick: set[int] = set()
    while True:
        # A link to a faulty node shows nothing about the node at its other end.
        left, known = (
            Counter(chain(*(pair for pair in pairs if not sick.intersection(pair))))
            for pairs in (slow, seen)
        )
        likely = [node for node, count in left.items() if count > max(1, known[node] / 2)]
        if not likely:
            return sick
        sick.add(max(likely, key=left.__getitem__))


def _slow_direction(nodes: Sequence[NodeProbe]) -> Iterator[NodeFinding]:
    """Yield a finding if one direction of the link between two nodes is slower than the other."""
    sends = [[probe for probe in node.probes if probe.name == SEND] for node in nodes]
    if not all(sends):
        return
    # Seconds per byte, for the largest message and the slowest GPU.
    times = [max((p.message_bytes or 0, 1 / max(p.rates)) for p in each)[1] for each in sends]
    for sender, receiver in ((0, 1), (1, 0)):
        if (slower := times[sender] / times[receiver]) > SLOW_LINK:
            one, other = nodes[sender].host, nodes[receiver].host
            text = (
                f"{one} → {other} takes {slower:.3g}× as long as {other} → {one}: {one}'s "
                f"sending or {other}'s receiving is slow; two nodes cannot show which, so try "
                "each with a third"
            )
            yield NodeFinding("direction", (one, other), slower, text)
