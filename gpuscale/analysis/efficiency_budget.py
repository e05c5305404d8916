"""Divide lost efficiency into parts: E(n) = 1 - communication - data - skew - rest.

The step time T(n) exceeds the ideal step time by these parts. Divided by T(n), they add up to
1 - E(n), since the efficiency E(n) is the ideal step time over T(n). The stages of a pipeline do
different work, so a pipeline's parts are means over all stages: E(n) = 1 - micro-batching - bubble
- imbalance - data - optimizer - rest.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpuscale.analysis.scaling import Entry, grouped, known_mean, references_of
from gpuscale.analysis.steps import Rank, Step, steps_of
from gpuscale.base.strategies import is_pipeline
from gpuscale.records import Configuration, EntryKey, Estimate, Run

PARTS = ("communication", "data", "skew")
PIPELINE_PARTS = ("micro-batching", "bubble", "imbalance", "data", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficiencyBudget:
    """The efficiency that a configuration loses on n GPUs, divided into parts (fractions of T(n)).

    A negative part is a gain, such as a shorter wait for data on more ranks.
    """

    key: EntryKey
    configuration: Configuration
    efficiency: Estimate
    parts: Mapping[str, float]
    """Measured parts by name, as fractions of T(n).

    `communication` is the exposed communication, minus the time that a single rank needs to handle
    its gradients. `data` is the time spent waiting for and copying batches beyond that of an ideal
    step; in a pipeline, the mean over the stages. `skew` is the lag of the slowest rank. A pipeline
    has, besides `data`: `micro-batching`, the cost of dividing a batch, as measured on one GPU;
    `bubble`, the wait of the slowest stage; `imbalance`, how much longer the slowest stage takes
    than the mean stage; and `optimizer`, the optimizer time beyond that of an ideal step."""
    rest: float
    """Lost efficiency that the measured parts do not account for."""

    @property
    def absent(self) -> tuple[str, ...]:
        """Names of the parts that were not measured."""
        names = PIPELINE_PARTS if is_pipeline(self.configuration.strategy) else PARTS
        return tuple(name for name in names if name not in self.parts)

    @property
    def hundredths(self) -> Mapping[str, int]:
        """The efficiency, each part and the rest as whole percentages that add up to 100."""
        efficiency = round(self.efficiency.value * 100)
        exact = {name: part * 100 for name, part in {**self.parts, "rest": self.rest}.items()}
        whole = {name: math.floor(part) for name, part in exact.items()}
        largest_fraction_first = sorted(whole, key=lambda name: whole[name] - exact[name])
        for name in largest_fraction_first[: 100 - efficiency - sum(whole.values())]:
            whole[name] += 1
        return {"efficiency": efficiency, **whole}


def efficiency_budgets(runs: Sequence[Run]) -> tuple[EfficiencyBudget, ...]:
    """Return the budget of every entry on several GPUs for which a reference on one GPU exists.

    Entries judged by a metric instead of the step time have no budget.
    """
    valid = {entry.key: entry for entry in grouped(runs) if entry.point.step_time_s is not None}
    return tuple(
        _budget(valid[key], valid[reference])
        for key, reference in references_of(valid).items()
        if key.gpus > 1
    )


def _budget(entry: Entry, reference: Entry) -> EfficiencyBudget:
    point = entry.point
    assert point.efficiency is not None, "a valid entry with a reference has an efficiency"
    assert point.step_time_s is not None, "a point with an efficiency has a step time"
    step_time_s = point.step_time_s.value
    # If the batch is divided among the GPUs, an ideal step takes a fraction of the reference time.
    ideal = entry.key.global_batch / (entry.key.gpus * reference.key.global_batch)
    parts_s = _pipeline_parts_s if is_pipeline(point.configuration.strategy) else _parts_s
    parts = {
        name: seconds / step_time_s
        for name, seconds in parts_s(entry.valid, reference.valid, ideal).items()
        if seconds is not None
    }
    return EfficiencyBudget(
        key=point.key,
        configuration=point.configuration,
        efficiency=point.efficiency,
        parts=parts,
        rest=1 - point.efficiency.value - sum(parts.values()),
    )


def _parts_s(
    runs: Sequence[Run], reference: Sequence[Run], ideal: float
) -> Mapping[str, float | None]:
    """Return the seconds that each of `PARTS` adds to the ideal step time; None if unknown."""
    # A single rank handles gradients too, so the ideal step time includes that work.
    alone_s = known_mean(run.synchronization_s for run in reference) or 0.0
    exposed_s = known_mean(run.measured.get("exposed_communication_s") for run in runs)
    steps = steps_of(runs)
    return {
        "communication": None if exposed_s is None else exposed_s - ideal * alone_s,
        "data": _beyond(lambda step: step.median.data_s, steps, steps_of(reference), ideal),
        "skew": known_mean(step.skew_s for step in steps if len(step.ranks) > 1),
    }


def _pipeline_parts_s(
    runs: Sequence[Run], reference: Sequence[Run], ideal: float
) -> Mapping[str, float | None]:
    """Return the seconds that each of `PIPELINE_PARTS` adds to the ideal step; None if unknown."""
    steps, alone = steps_of(runs), steps_of(reference)

    def mean(step: Step, seconds: Callable[[Rank], float]) -> float:
        return statistics.fmean(map(seconds, step.ranks))

    def beyond(seconds: Callable[[Rank], float]) -> float | None:
        return _beyond(lambda step: mean(step, seconds), steps, alone, ideal)

    whole_s = known_mean(run.synchronization_s for run in reference)
    return {
        "micro-batching": None if whole_s is None else -ideal * whole_s,
        "bubble": known_mean(run.measured.get("exposed_communication_s") for run in runs),
        "imbalance": known_mean(
            step.slowest.pace_s - mean(step, lambda rank: rank.pace_s) for step in steps
        ),
        "data": beyond(lambda rank: rank.data_s),
        "optimizer": beyond(lambda rank: rank.phases.optimizer_s),
    }


def _beyond(
    seconds_of: Callable[[Step], float],
    steps: Sequence[Step],
    alone: Sequence[Step],
    ideal: float,
) -> float | None:
    """Return the mean seconds beyond those of an ideal step; None if unknown."""
    ours_s, alone_s = (known_mean(map(seconds_of, side)) for side in (steps, alone))
    return None if ours_s is None or alone_s is None else ours_s - ideal * alone_s
