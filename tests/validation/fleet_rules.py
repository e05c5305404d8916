"""How often gpuscale's judge and the usual rules err on sweeps of simulated fleets."""

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from simulated_fleet import DRIFTS, Fleet, Sweep

from gpuscale.records.cause import NodeState, NodeVisit


def by_median(rows: Mapping[str, Sequence[float]]) -> set[str]:
    own = {name: statistics.median(times) for name, times in rows.items()}
    limit = 1.05 * statistics.median(own.values())
    return {name for name, time_s in own.items() if time_s > limit}


def by_three_sigma(rows: Mapping[str, Sequence[float]]) -> set[str]:
    own = {name: statistics.fmean(times) for name, times in rows.items()}
    limit = statistics.fmean(own.values()) + 3 * statistics.stdev(own.values())
    return {name for name, time_s in own.items() if time_s > limit}


def by_cleaned_mean(rows: Mapping[str, Sequence[float]]) -> set[str]:
    """SuperBench's rule: slower by more than 5 % than the mean of all that are within 5 % of it.

    As superbench/analyzer/baseline_generation.py computes the mean: nodes outside are taken out,
    and the mean is computed again, until none is outside.
    """
    own = {name: statistics.fmean(times) for name, times in rows.items()}
    kept = [*own.values()]
    while True:
        mean = statistics.fmean(kept)
        inside = [time_s for time_s in kept if abs(time_s / mean - 1) <= 0.05]
        if len(inside) in (0, len(kept)):
            return {name for name, time_s in own.items() if time_s > 1.05 * mean}
        kept = inside


RULES: Mapping[str, Callable[[Mapping[str, Sequence[float]]], set[str]]] = {
    "±5 % of the median": by_median,
    "mean ± 3 sigma": by_three_sigma,
    "SuperBench's 5 % of a cleaned mean": by_cleaned_mean,
}


def called_by(rule: str, sweep: Sweep) -> set[str]:
    if rule == "gpuscale":
        return sweep.in_state(NodeState.SICK)
    values: dict[bool, dict[str, list[float]]] = {True: {}, False: {}}
    for visit in sweep.visits:
        for row, times in visit.step_times_s:
            name = f"{visit.node} {row.device}"
            values[row.device is None].setdefault(name, []).extend(times)
    return {name.split()[0] for rows in values.values() for name in RULES[rule](rows)}


def tallied(
    seeds: range,
    *,
    spread: float,
    noise: float,
    drift: str = "none",
    past: int = 0,
    nodes: int = 500,
    slow: int = 5,
    heavy: bool = False,
) -> Counter[str]:
    """Simulate sweeps with some slow nodes (5 %) and GPUs (8 %), and count what is found."""
    tally: Counter[str] = Counter()
    for seed in seeds:
        rng = random.Random(f"{seed} {spread} {noise} {drift} {past} {nodes}")
        fleet = Fleet(
            rng=rng,
            nodes=nodes,
            spread=spread,
            noise=noise,
            drift=DRIFTS[drift],
            draw=_heavy if heavy else _normal,
        )
        before: list[Sequence[NodeVisit]] = [fleet.sweep().visits for _ in range(past)]
        chosen = rng.sample(range(nodes), 2 * slow)
        sick_nodes = {fleet.slow_node(node, 0.05) for node in chosen[:slow]}
        sick_gpus = {fleet.slow_gpu(node, rng.randrange(8), 0.08) for node in chosen[slow:]}
        sweep = fleet.sweep(before)
        tally["sweeps"] += 1
        tally["slow"] += slow
        tally["asked"] += len(sweep.asked)
        tally["unclear"] += len(sweep.in_state(NodeState.UNCLEAR))
        for rule in ("gpuscale", *RULES):
            called = called_by(rule, sweep)
            tally[f"{rule}: nodes"] += len(sick_nodes & called)
            tally[f"{rule}: GPUs"] += len(sick_gpus & called)
            tally[f"{rule}: wrong"] += bool(called - sick_nodes - sick_gpus)
            tally[f"{rule}: wrong nodes"] += len(called - sick_nodes - sick_gpus)
    return tally


def _normal(rng: random.Random) -> float:
    return rng.gauss(0, 1)


def _heavy(rng: random.Random) -> float:
    """Student's t with 5 degrees of freedom, scaled to a standard deviation of 1."""
    squares = math.fsum(rng.gauss(0, 1) ** 2 for _ in range(5))
    return rng.gauss(0, 1) / math.sqrt(squares / 5) * math.sqrt(3 / 5)
