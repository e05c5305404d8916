"""A simulated fleet: nodes and GPUs that differ persistently, runs that scatter, hours that drift.

A plan of the whole sweep is simulated: first jobs, controls in between, and second jobs of those
that the judge asks for. What is true is known, so that errors can be counted.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuscale.judge.fleet import judge
from gpuscale.records.cause import FleetRow, NodeState, NodeVerdict, NodeVisit
from gpuscale.store.campaign_folders import SweepRecord

Drift = Callable[[float], float]
"""Log step time of the machine over the sweep, from 0 to 1."""


DRIFTS: Mapping[str, Drift] = {
    "none": lambda _: 0.0,
    "rising": lambda at: 0.03 * at,
    "daily": lambda at: 0.015 * math.sin(2 * math.pi * at),
    "stepping": lambda at: 0.03 if 0.4 < at < 0.6 else 0.0,
}


@dataclass(slots=True, kw_only=True)
class Fleet:
    """Nodes with known truth; all effects are on logarithms of step times."""

    rng: random.Random
    nodes: int = 500
    gpus: int = 8
    spread: float = 0.01
    """Standard deviation between healthy nodes, and between healthy GPUs."""
    noise: float = 0.005
    """Standard deviation between runs."""
    drift: Drift = DRIFTS["none"]
    runs: int = 3
    shared: float = 0.0
    """Part of the variance between GPUs that those of a node share."""
    at_once: int = 20
    draw: Callable[[random.Random], float] = field(default=lambda rng: rng.gauss(0, 1))
    """How healthy ones are distributed, with a standard deviation of 1."""
    effects: list[dict[FleetRow, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for _ in range(self.nodes):
            common = self.draw(self.rng) * math.sqrt(self.shared)
            effects = {FleetRow(gpus=self.gpus): self.spread * self.draw(self.rng)}
            for device in range(self.gpus):
                own = self.draw(self.rng) * math.sqrt(1 - self.shared)
                effects[FleetRow(gpus=1, device=device)] = self.spread * (common + own)
            self.effects.append(effects)

    def slow_node(self, node: int, loss: float) -> str:
        """Make the node as a whole slower; its GPUs by themselves are as before."""
        self.effects[node][FleetRow(gpus=self.gpus)] -= math.log1p(-loss)
        return self.name(node)

    def slow_gpu(self, node: int, device: int, loss: float) -> str:
        """Make one GPU slower by itself; the node as a whole hides it."""
        self.effects[node][FleetRow(gpus=1, device=device)] -= math.log1p(-loss)
        return self.name(node)

    def name(self, node: int) -> str:
        return f"nid{node:04}"

    def visit(self, node: int, job: int, at: float, *, is_control: bool = False) -> NodeVisit:
        level = math.log(0.2) + self.drift(min(at, 1.0))

        def times_s(effect: float) -> tuple[float, ...]:
            logs_s = (level + effect + self.rng.gauss(0, self.noise) for _ in range(self.runs))
            return tuple(map(math.exp, logs_s))

        times = tuple((row, times_s(effect)) for row, effect in self.effects[node].items())
        return NodeVisit(
            node=self.name(node),
            kind="gpu, simulated",
            job=job,
            measured_at_s=1.8e9 + 4 * 3600 * at,
            step_times_s=times,
            is_control=is_control,
        )

    def sweep(self, past: Sequence[Sequence[NodeVisit]] = ()) -> "Sweep":
        """Visit all nodes and then the suspects, with controls in between as in a real sweep."""
        order = self.rng.sample(range(self.nodes), self.nodes)
        controls = order[: max(2, min(4, self.nodes // 3))]
        # The second jobs take the last tenth of the sweep.
        visits = [
            self.visit(node, 0, 0.9 * (place // self.at_once * self.at_once) / self.nodes)
            for place, node in enumerate(order)
        ]
        rounds = [*range(self.at_once, self.nodes, self.at_once), self.nodes]
        for number, place in enumerate(rounds):
            node = controls[number % len(controls)]
            visits.append(self.visit(node, 1 + number, 0.9 * place / self.nodes, is_control=True))
        asked: list[str] = []
        verdict = judge(visits, past)
        while now := [node.node for node in verdict if node.needs_job]:
            for number, name in enumerate(now):
                at = 0.9 + 0.1 * (len(asked) + number) / (len(asked) + len(now))
                visits.append(self.visit(int(name[3:]), 100, at))
            start = 0.9 + 0.1 * len(asked) / (len(asked) + len(now))
            count = len(now) // 2 + (0 if asked else len(controls))
            for number in range(count):
                at = start + (1 - start) * (number + 0.5) / count
                node = controls[number % len(controls)]
                visits.append(self.visit(node, 200 + number, at, is_control=True))
            asked += now
            verdict = judge(visits, past)
        return Sweep(visits=visits, asked=asked, verdict=verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The visits of a sweep, the nodes that needed another job, and what is said in the end."""

    visits: Sequence[NodeVisit]
    asked: Sequence[str]
    verdict: Sequence[NodeVerdict]

    def in_state(self, state: NodeState) -> set[str]:
        return {node.node for node in self.verdict if node.state is state}


def sweep_record(nodes: Sequence[str], **fields: Any) -> SweepRecord:
    """The record of a sweep on one GPU a node, in which no job has begun."""
    plan = {"cluster": "here", "partition": "main", "case": "case.py", "gpus": (1,)}
    plan["created_at"] = "2026-11-03T03:00:00+00:00"
    return SweepRecord(**{**plan, "nodes": tuple(nodes), **fields})
