"""Divide the average step into phases, and lost efficiency into parts.

E(n) = 1 - communication - data - skew - rest.

The step time T(n) exceeds the ideal step time by the exposed communication, the additional wait for
data, the lag of the slowest rank behind the median rank, and an unmeasured rest. Divided by T(n),
these parts add up to 1 - E(n), since the efficiency E(n) is the ideal step time over T(n).

The stages of a pipeline do different work, so a pipeline's parts are means over all stages: E(n) =
1 - micro-batching - bubble - imbalance - data - optimizer - rest.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuscale.analysis.scaling import Entry, References, grouped, known_mean, valid_by_point
from gpuscale.base.strategies import STRATEGIES
from gpuscale.records import Configuration, EntryKey, Estimate, Phases, PointKey, RankReport, Run

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
        names = PIPELINE_PARTS if _is_pipeline(self.configuration) else PARTS
        return tuple(name for name in names if name not in self.parts)

    @property
    def hundredths(self) -> Mapping[str, int]:
        """The efficiency, each part and the rest as whole percentages that add up to 100.

        The efficiency is rounded; every part is within one percentage point of the exact value.
        """
        efficiency = round(self.efficiency.value * 100)
        exact = {name: part * 100 for name, part in {**self.parts, "rest": self.rest}.items()}
        whole = {name: math.floor(part) for name, part in exact.items()}
        largest_fraction_first = sorted(whole, key=lambda name: whole[name] - exact[name])
        for name in largest_fraction_first[: 100 - efficiency - sum(whole.values())]:
            whole[name] += 1
        return {"efficiency": efficiency, **whole}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSkew:
    """The slowest rank of a run, compared with the median rank of the same run."""

    run: Run
    slowest: RankReport
    skew_s: float
    """Seconds per step by which the slowest rank lags behind the median rank."""
    median_pace_s: float
    """Seconds per step of the median rank, excluding time spent waiting for other ranks; with an
    even number of ranks, of the faster of the middle two."""


def efficiency_budgets(runs: Sequence[Run]) -> tuple[EfficiencyBudget, ...]:
    """Return the budget of every entry on several GPUs for which a reference on one GPU exists.

    Entries judged by a metric instead of the step time have no budget. Times are means over the
    valid runs. The parts and the rest add up to the efficiency loss of the entry's scaling point.
    """
    valid = {entry.key: entry for entry in grouped(runs) if entry.point.step_time_s is not None}
    references = References(valid)
    return tuple(
        _budget(entry, valid[reference])
        for key, entry in valid.items()
        if key.gpus > 1 and (reference := references.of(key)) is not None
    )


def _budget(entry: Entry, reference: Entry) -> EfficiencyBudget:
    point = entry.point
    assert point.efficiency is not None, "a valid entry with a reference has an efficiency"
    assert point.step_time_s is not None, "a point with an efficiency has a step time"
    step_time_s = point.step_time_s.value
    # If the batch is divided among the GPUs, an ideal step takes a fraction of the reference time.
    ideal = entry.key.global_batch / (entry.key.gpus * reference.key.global_batch)
    parts_s = _pipeline_parts_s if _is_pipeline(point.configuration) else _parts_s
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


def _is_pipeline(configuration: Configuration) -> bool:
    demands = STRATEGIES.get(configuration.strategy)
    return demands is not None and demands.micro_batches


def _parts_s(
    runs: Sequence[Run], reference: Sequence[Run], ideal: float
) -> Mapping[str, float | None]:
    """Return the seconds that each of `PARTS` adds to the ideal step time; None if unknown."""
    # A single rank handles gradients too, so the ideal step time includes that work.
    alone_s = known_mean(run.synchronization_s for run in reference) or 0.0
    exposed_s = known_mean(run.measured.get("exposed_communication_s") for run in runs)
    return {
        "communication": None if exposed_s is None else exposed_s - ideal * alone_s,
        "data": _beyond(_data_s, runs, reference, ideal),
        "skew": known_mean(skew.skew_s for skew in rank_skews(runs)),
    }


def _pipeline_parts_s(
    runs: Sequence[Run], reference: Sequence[Run], ideal: float
) -> Mapping[str, float | None]:
    """Return the seconds that each of `PIPELINE_PARTS` adds to the ideal step; None if unknown."""

    def beyond(phase: Callable[[Phases], float]) -> float | None:
        def of_run(run: Run) -> float | None:
            return known_mean(phase(rank.phases) for rank in run.ranks if rank.phases)

        return _beyond(of_run, runs, reference, ideal)

    whole_s = known_mean(run.synchronization_s for run in reference)
    paces_s = [[pace_s for pace_s, _ in _by_pace(run.ranks)] for run in runs]
    return {
        "micro-batching": None if whole_s is None else -ideal * whole_s,
        "bubble": known_mean(run.measured.get("exposed_communication_s") for run in runs),
        "imbalance": known_mean(paces[-1] - statistics.fmean(paces) for paces in paces_s if paces),
        "data": beyond(lambda phases: phases.data_s + phases.h2d_s),
        "optimizer": beyond(lambda phases: phases.optimizer_s),
    }


def _beyond(
    seconds_of: Callable[[Run], float | None],
    runs: Sequence[Run],
    reference: Sequence[Run],
    ideal: float,
) -> float | None:
    ours_s, alone_s = (known_mean(map(seconds_of, side)) for side in (runs, reference))
    return None if ours_s is None or alone_s is None else ours_s - ideal * alone_s


def rank_skews(runs: Iterable[Run]) -> tuple[RankSkew, ...]:
    """Return the rank skew of each valid run with several ranks, if all paces are known."""
    skews = []
    for run in runs:
        paced = _by_pace(run.ranks)
        if run.is_valid and len(paced) > 1:
            (median_s, _), (pace_s, slowest) = paced[(len(paced) - 1) // 2], paced[-1]
            skew_s = pace_s - median_s
            skews.append(RankSkew(run=run, slowest=slowest, skew_s=skew_s, median_pace_s=median_s))
    return tuple(skews)


def _by_pace(ranks: Iterable[RankReport]) -> list[tuple[float, RankReport]]:
    """Return pairs of pace and rank, fastest rank first; empty if any rank's pace is unknown."""
    paced = [(rank.pace_s, rank) for rank in ranks]
    known = [(pace_s, rank) for pace_s, rank in paced if pace_s is not None]
    return sorted(known, key=lambda pair: pair[0]) if len(known) == len(paced) else []


def _data_s(run: Run) -> float | None:
    """Return the median rank's wait for data plus copy time, in s per step; None if unknown."""
    paced = [rank for _, rank in _by_pace(run.ranks)] or list(run.ranks)
    if not paced:
        return None
    phases = paced[(len(paced) - 1) // 2].phases
    return None if phases is None else phases.data_s + phases.h2d_s


def data_waits(runs: Sequence[Run]) -> dict[PointKey, float]:
    """Return the fraction of each point's step time that the longest-waiting rank waits for data.

    The fractions are means over runs. Points without measured phases are left out.
    """
    waits = {}
    for point, valid in valid_by_point(runs).items():
        shares = [
            max(rank.phases.data_s for rank in run.ranks if rank.phases) / run.step_time_s
            for run in valid
            if any(rank.phases for rank in run.ranks)
        ]
        if shares:
            waits[point] = statistics.fmean(shares)
    return waits


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalStep:
    """The average step of one scaling point."""

    time_s: float
    judged_s: float
    """Geometric mean of the runs' step times, on which verdicts are based."""
    phases_s: Mapping[str, float | None]
    """Seconds in each phase; None if unknown. Communication includes only exposed communication,
    averaged over the runs; it is 0 if noise makes the average negative."""
    total_s: float
    """Sum of all phases, in seconds."""


def typical_steps(runs: Sequence[Run]) -> dict[PointKey, TypicalStep]:
    """Return the average step of each point with measured phases, by configuration, then GPUs."""
    found = {point: _step(valid) for point, valid in valid_by_point(runs).items()}
    return {point: step for point, step in found.items() if step is not None}


def _step(runs: Sequence[Run]) -> TypicalStep | None:
    """Average the middle third of the windows, ranked by step time; return None without phases."""
    # Time and phases of the average step in each window.
    described = [
        (window.time_s / run.steps_per_window, window.phases.scaled(1 / run.steps_per_window))
        for run in runs
        if run.steps_per_window
        for window in run.windows
        if window.phases is not None
    ]
    if not described:
        return None
    exposed_s = known_mean(run.measured.get("exposed_communication_s") for run in runs)
    communication_s = None if exposed_s is None else max(0.0, exposed_s)
    in_forward_s = 0.0 if exposed_s is None else _communication_in_forward_s(runs)
    # Unlike medians of each phase, means over the same windows add up to the time.
    described.sort(key=lambda step: step[0])
    cut = len(described) // 3
    times_s, middle = zip(*described[cut : len(described) - cut], strict=True)
    names = Phases.__struct_fields__
    mean = Phases(
        **{name: statistics.fmean(getattr(phases, name) for phases in middle) for name in names}
    )
    if mean.wait_s:
        # In a pipeline, the `wait` phase contains the exposed communication.
        communication_s = None
    return TypicalStep(
        time_s=statistics.fmean(times_s),
        judged_s=statistics.geometric_mean(run.step_time_s for run in runs),
        phases_s={
            "data": mean.data_s,
            "h2d": mean.h2d_s,
            "forward": mean.forward_s - in_forward_s,
            "backward": mean.backward_s - (communication_s or 0.0) + in_forward_s,
            "communication": communication_s,
            "optimizer": mean.optimizer_s,
            "wait": mean.wait_s or None,
        },
        total_s=mean.total_s,
    )


def _communication_in_forward_s(runs: Iterable[Run]) -> float:
    """Return the mean seconds that synchronisation adds to a step's forward pass; at least 0.

    In the forward pass FSDP gathers parameters and DDP broadcasts buffers.
    """
    found = []
    for run in runs:
        synced, alone = (
            [window.phases.forward_s for window in windows if window.phases is not None]
            for windows in (run.windows, run.unsynced_windows)
        )
        if synced and alone and run.steps_per_window:
            wait_s = statistics.median(synced) - statistics.median(alone)
            found.append(max(0.0, wait_s) / run.steps_per_window)
    return statistics.fmean(found) if found else 0.0
