"""Divide a step's time, and lost efficiency, into parts: data, communication, skew and others.

The pace of a rank is its step time without gradient synchronisation. A step takes the pace of the
slowest rank plus communication and a remainder. The pace of the slowest rank is the data and
computing time of the median rank plus the skew. Communication is measured as the difference between
steps with and without synchronisation, because slow ranks make the others wait in their all-reduce.
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from gpuscale.analysis.estimates import Sample, log_sample
from gpuscale.analysis.scaling import Entry, grouped, known_mean
from gpuscale.base.strategies import is_pipeline
from gpuscale.records import Configuration, EntryKey, Estimate, PointKey, Run
from gpuscale.records.evidence import Phases


class Part(StrEnum):
    """Parts of a step's time; `SKEW` is the lag of the slowest rank behind the median rank."""

    COMMUNICATION = "communication"
    DATA = "data"
    COMPUTING = "computing"
    SKEW = "skew"
    REST = "rest"


class Rank(NamedTuple):
    """A rank's step time without synchronisation (its pace) and its phases, in seconds per step."""

    rank: int
    host: str
    device_uuids: tuple[str, ...]
    pace_s: float
    phases: Phases

    @property
    def data_s(self) -> float:
        """Seconds per step for which the rank waits for batches and copies them to the device."""
        return self.phases.data_s + self.phases.h2d_s

    @property
    def computing_s(self) -> float:
        """Computing time in seconds per step: the rank's own step time minus its wait for data."""
        return self.pace_s - self.data_s

    @property
    def backward_s(self) -> float:
        """Computing time outside the forward pass and the optimizer, in seconds per step."""
        return self.computing_s - self.phases.forward_s - self.phases.optimizer_s


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """An average step of one run, divided into parts that add up to the step time."""

    time_s: float
    communication_s: float | None
    """Communication time that does not overlap with computing; None for a single rank."""
    ranks: tuple[Rank, ...]
    """All ranks, fastest first."""
    run: Run
    not_median: int | None = None
    """Number of a rank that does not count when the median rank is chosen."""

    @property
    def median(self) -> Rank:
        """The rank of median pace; with an even number of ranks, the faster of the middle two."""
        ranks = [rank for rank in self.ranks if rank.rank != self.not_median]
        return ranks[(len(ranks) - 1) // 2]

    @property
    def slowest(self) -> Rank:
        """The slowest rank, which all other ranks wait for."""
        return self.ranks[-1]

    @property
    def skew_s(self) -> float:
        """Seconds per step by which the slowest rank lags behind the median rank."""
        return self.slowest.pace_s - self.median.pace_s

    @property
    def parts(self) -> Mapping[Part, float]:
        """Seconds spent in each part of a step; with one rank, only data loading and computing."""
        own = {Part.DATA: self.median.data_s, Part.COMPUTING: self.median.computing_s}
        if self.communication_s is None:
            return own
        return own | {
            Part.COMMUNICATION: self.communication_s,
            Part.SKEW: self.skew_s,
            Part.REST: self.time_s - self.communication_s - self.slowest.pace_s,
        }


def lag_of(ranks: Collection[int], steps: Sequence[Step]) -> Sample:
    """Return the sample of log(own pace of these ranks / pace of the others), one value per run."""
    # All ranks of a run share what disturbs it, so this varies less than the step time does.
    return log_sample([_log_lag(ranks, step) for step in steps])


def _log_lag(ranks: Collection[int], step: Step) -> float:
    own, others = ([r.pace_s for r in step.ranks if (r.rank in ranks) is t] for t in (True, False))
    return math.log(statistics.median(own or others) / statistics.median(others or own))


def steps_of(runs: Iterable[Run]) -> tuple[Step, ...]:
    """Divide the average step of each valid run into parts; skip runs that lack measurements."""
    return tuple(step for run in runs if run.is_valid and (step := _step_of(run)) is not None)


def _step_of(run: Run) -> Step | None:
    ranks = [
        Rank(report.rank, report.host, report.device_uuids, report.pace_s, report.phases)
        for report in run.ranks
        if report.pace_s is not None and report.phases is not None
    ]
    exposed_s = run.measured.get("exposed_communication_s")
    if not ranks or len(ranks) < len(run.ranks) or (len(ranks) > 1 and exposed_s is None):
        return None
    return Step(
        time_s=run.step_time_s,
        communication_s=exposed_s if len(ranks) > 1 else None,
        ranks=tuple(sorted(ranks, key=lambda rank: rank.pace_s)),
        run=run,
    )


PHASES = ("data", "h2d", "forward", "backward", "communication", "optimizer", "wait", "skew")
"""Names of the phases of a typical step; a pipeline has `wait`, all others the rest."""


class TypicalStep(msgspec.Struct, frozen=True, kw_only=True):
    """The average step of one scaling point, divided into phases."""

    time_s: float
    """Geometric mean of the runs' step times, as in tables."""
    phases_s: Mapping[str, float | None]
    """Seconds in each phase, means over the runs, at least 0; None if unknown. They are those of
    the median rank, or of a pipeline's slowest stage; `skew` is the slowest rank's lag."""
    data_wait: float
    """Fraction of the step for which the longest-waiting rank waits for data, mean over runs."""


def typical_steps(runs: Sequence[Run]) -> dict[PointKey, TypicalStep]:
    """Return the average step of each scaling point for which phases were measured."""
    found = {}
    for entry in grouped([("", run) for run in runs]):
        if steps := steps_of(entry.valid):
            phases = [_phases_s(step) for step in steps]
            means_s = {name: known_mean(each[name] for each in phases) for name in phases[0]}
            found[entry.key] = TypicalStep(
                time_s=statistics.geometric_mean(step.time_s for step in steps),
                phases_s={n: None if s is None else max(0.0, s) for n, s in means_s.items()},
                data_wait=statistics.fmean(
                    max(rank.phases.data_s for rank in step.ranks) / step.time_s for step in steps
                ),
            )
    return found


def _phases_s(step: Step) -> Mapping[str, float | None]:
    staged = is_pipeline(step.run.configuration.strategy)
    rank = step.slowest if staged else step.median
    several = step.communication_s is not None and not staged
    return {
        "data": rank.phases.data_s,
        "h2d": rank.phases.h2d_s,
        "forward": rank.phases.forward_s,
        "backward": rank.backward_s,
        "communication": step.communication_s if several else None,
        "optimizer": rank.phases.optimizer_s,
        "wait": step.communication_s if staged else None,
        "skew": step.skew_s if several else None,
    }


class EfficiencyBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The efficiency that a configuration loses on n GPUs, divided into parts (fractions of T(n)).

    T(n) is the measured step time, and E(n) the ideal step time divided by T(n). The parts and the
    rest add up to 1 − E(n). A negative part is a gain, such as a shorter wait for data.
    """

    key: EntryKey
    configuration: Configuration
    efficiency: Estimate
    parts: Mapping[str, float]
    """Measured parts by name, as fractions of T(n).

    `communication` is exposed communication, without the time that a single rank needs to handle
    its gradients. `data` is the time spent waiting for and copying batches beyond that of an ideal
    step. `skew` is the lag of the slowest rank. The stages of a pipeline do different work, so it
    has `micro-batching` (the cost of dividing a batch, as measured on one GPU), `bubble` (the wait
    of the slowest stage), `imbalance` (how much longer that stage takes than the mean stage), and
    the means over all stages of `data` and `optimizer`, beyond those of an ideal step."""
    rest: float
    """Lost efficiency that the measured parts do not account for."""
    absent: tuple[str, ...] = ()
    """Names of the parts that were not measured."""

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
    """Return the efficiency budget of each multi-GPU entry that has a single-GPU reference.

    Entries judged by a metric instead of the step time have no budget.
    """
    return tuple(
        _budget(entry, entry.reference)
        for entry in grouped([("", run) for run in runs])
        if entry.reference is not None and entry.point.step_time_s is not None
    )


def _budget(entry: Entry, reference: Entry) -> EfficiencyBudget:
    point = entry.point
    assert point.efficiency is not None, "a valid entry with a reference has an efficiency"
    assert point.step_time_s is not None, "a point with an efficiency has a step time"
    step_time_s = point.step_time_s.value
    # If the batch is divided among the GPUs, an ideal step takes a fraction of the reference time.
    ideal = entry.key.global_batch / (entry.key.gpus * reference.key.global_batch)
    staged = is_pipeline(point.configuration.strategy)
    parts_s = _parts_s(entry.valid, reference.valid, ideal, staged=staged)
    parts = {name: part_s / step_time_s for name, part_s in parts_s.items() if part_s is not None}
    return EfficiencyBudget(
        key=point.key,
        configuration=point.configuration,
        efficiency=point.efficiency,
        parts=parts,
        rest=1 - point.efficiency.value - sum(parts.values()),
        absent=tuple(name for name in parts_s if name not in parts),
    )


def _parts_s(
    runs: Sequence[Run], reference: Sequence[Run], ideal: float, *, staged: bool
) -> Mapping[str, float | None]:
    """Return each part's seconds beyond `ideal` × `reference`, if known; a pipeline is `staged`."""
    steps, alone = steps_of(runs), steps_of(reference)
    exposed_s = known_mean(run.measured.get("exposed_communication_s") for run in runs)
    synchronization_s = known_mean(run.synchronization_s for run in reference)

    def beyond(seconds_of: Callable[[Step], float]) -> float | None:
        ours_s, alone_s = (known_mean(map(seconds_of, side)) for side in (steps, alone))
        return None if ours_s is None or alone_s is None else ours_s - ideal * alone_s

    if staged:
        return {
            "micro-batching": None if synchronization_s is None else -ideal * synchronization_s,
            "bubble": exposed_s,
            "imbalance": known_mean(
                step.slowest.pace_s - statistics.fmean(rank.pace_s for rank in step.ranks)
                for step in steps
            ),
            "data": beyond(lambda step: statistics.fmean(rank.data_s for rank in step.ranks)),
            "optimizer": beyond(
                lambda step: statistics.fmean(rank.phases.optimizer_s for rank in step.ranks)
            ),
        }
    # A single rank handles gradients too, so the ideal step time includes that work.
    own_s = ideal * (synchronization_s or 0.0)
    return {
        "communication": None if exposed_s is None else exposed_s - own_s,
        "data": beyond(lambda step: step.median.data_s),
        "skew": known_mean(step.skew_s for step in steps if len(step.ranks) > 1),
    }
