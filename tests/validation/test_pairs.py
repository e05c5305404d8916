"""A bad node, a bad link and a bad switch of 256 nodes are told apart by log₂ N pairs of each."""

import random

import pytest

from gpuscale.judge.diagnose.slow_links import NodeFinding, find_slow, retest_rounds, round_robin
from gpuscale.records import NodeProbe, Probe
from gpuscale.records.probes import PAIR, SEND, Pairs, merged_probes

NODES, LEAF, TRIALS = 256, 16, 20
SPREAD = 0.05
REPEATS = 9
BUSY = 0.02
"""Chance that a repetition takes twice as long because a node was busy with something else."""


class Network:
    """A fabric of leaf switches, of which one thing may be slow, all the time or now and then."""

    def __init__(self, chance: random.Random, fault: str, *, flaps: float) -> None:
        self.chance, self.fault, self.flaps = chance, fault, flaps
        self.node, self.leaf = chance.randrange(NODES), chance.randrange(NODES // LEAF)
        self.link = chance.choice([pair for pairs in round_robin(NODES) for pair in pairs])

    def is_slow(self, one: int, other: int) -> bool:
        if self.fault == "node":
            return self.node in (one, other)
        if self.fault == "link":
            return {one, other} == {*self.link}
        leaves = {one // LEAF, other // LEAF}
        return self.fault == "leaf" and self.leaf in leaves and len(leaves) == 2

    @property
    def truth(self) -> list[tuple[str, tuple[str, ...]]]:
        of_leaf = range(self.leaf * LEAF, (self.leaf + 1) * LEAF)
        truths: dict[str, list[tuple[str, tuple[str, ...]]]] = {
            "none": [],
            "node": [("node links", (f"n{self.node}",))],
            "link": [("link", tuple(f"n{end}" for end in self.link))],
            "leaf": [("switch", tuple(f"n{node}" for node in of_leaf))],
        }
        return truths[self.fault]

    def probed(self, rounds: tuple[Pairs, ...]) -> list[NodeProbe]:
        """Sends both ways and an all-reduce of each pair, by several repetitions."""
        probes: list[list[Probe]] = [[] for _ in range(NODES)]
        for one, other in (pair for pairs in rounds for pair in pairs):
            for name, host, peer in ((SEND, one, other), (SEND, other, one), (PAIR, one, other)):
                rates = []
                for _ in range(REPEATS):
                    rate = self.chance.lognormvariate(0, SPREAD)
                    slow = self.is_slow(one, other) and self.chance.random() < self.flaps
                    slow = slow or self.chance.random() < BUSY
                    rates.append(rate / 2 if slow else rate)
                probe = Probe(name=name, host=f"n{host}", peer=f"n{peer}", rates=tuple(rates))
                probes[host].append(probe)
        return [NodeProbe(host=f"n{n}", probes=tuple(own)) for n, own in enumerate(probes)]


def found_in(network: Network) -> tuple[NodeFinding, ...]:
    """Return the findings of a first round of probes and a second one of suspects."""
    first = network.probed(round_robin(NODES))
    again = retest_rounds(first)
    both = zip(first, network.probed(again), strict=True)
    return find_slow([merged_probes(parts) for parts in both])


def test_each_node_meets_log2_of_all_others_and_none_twice_in_a_round() -> None:
    rounds = round_robin(NODES)
    assert len(rounds) == 8
    assert all(len({node for pair in pairs for node in pair}) == NODES for pairs in rounds)
    assert len({pair for pairs in rounds for pair in pairs}) == 8 * NODES // 2


@pytest.mark.thorough
@pytest.mark.parametrize("flaps", [1.0, 0.5])
@pytest.mark.parametrize("fault", ["none", "node", "link", "leaf"])
def test_one_fault_is_told_from_the_others(fault: str, flaps: float) -> None:
    chance, right = random.Random(1), 0
    for _ in range(TRIALS):
        network = Network(chance, fault, flaps=flaps)
        right += [(found.kind, found.hosts) for found in found_in(network)] == network.truth
    assert right >= 0.95 * TRIALS


@pytest.mark.parametrize("fault", ["none", "node", "link", "leaf"])
def test_a_fault_of_a_large_network_is_named_though_its_nodes_are_busy_at_times(fault: str) -> None:
    network = Network(random.Random(2), fault, flaps=1.0)
    assert [(found.kind, found.hosts) for found in found_in(network)] == network.truth
