"""Divide a step into parts: data, computing, exposed communication, skew and a rest.

The pace of a rank is its step time without gradient synchronisation. The step time is the sum of
the communication time, the slowest rank's pace and a remainder; that pace is the sum of the median
rank's data and computing times and the skew. Communication is measured as the difference between
steps with and without synchronisation, since slow ranks make the others wait in their all-reduce.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gpuscale.analysis.scaling import known_mean, valid_by_point
from gpuscale.base.strategies import is_pipeline
from gpuscale.records import Phases, PointKey, Run


class Part(StrEnum):
    """Parts of a step's time; `SKEW` is the slowest rank's lag, `REST` the remainder."""

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
        """Time the rank computes, in seconds per step: its pace minus its wait for data."""
        return self.pace_s - self.data_s

    @property
    def backward_s(self) -> float:
        """Computing time outside the forward pass and the optimizer, in seconds per step."""
        return self.computing_s - self.phases.forward_s - self.phases.optimizer_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An average step of one run, divided into parts that add up to the step time."""

    time_s: float
    communication_s: float | None
    """Communication time that does not overlap with computing; None for a single rank."""
    ranks: tuple[Rank, ...]
    """All ranks, fastest first."""
    run: Run

    @property
    def median(self) -> Rank:
        """The rank of median pace; with an even number of ranks, the faster of the middle two."""
        return self.ranks[(len(self.ranks) - 1) // 2]

    @property
    def slowest(self) -> Rank:
        """The rank that the others wait for."""
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


def steps_of(runs: Iterable[Run]) -> tuple[Step, ...]:
    """Divide the average step of each valid run into parts; leave out runs without the evidence."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalStep:
    """The average step of one scaling point, divided into phases."""

    time_s: float
    """Arithmetic mean of the runs' step times; tables and verdicts use the geometric mean."""
    phases_s: Mapping[str, float | None]
    """Seconds in each phase, means over the runs, at least 0; None if unknown. They are those of
    the median rank, or of a pipeline's slowest stage; `skew` is the slowest rank's lag."""

    @property
    def total_s(self) -> float:
        """Sum of all phases, in seconds."""
        return sum(time_s or 0.0 for time_s in self.phases_s.values())


def typical_steps(runs: Sequence[Run]) -> dict[PointKey, TypicalStep]:
    """Return the average step of each point with measured phases, by configuration, then GPUs."""
    found = {}
    for point, valid in valid_by_point(runs).items():
        if steps := steps_of(valid):
            phases = [_phases_s(step) for step in steps]
            means_s = {name: known_mean(each[name] for each in phases) for name in phases[0]}
            found[point] = TypicalStep(
                # Phases add up to the arithmetic mean; verdicts use the geometric one.
                time_s=statistics.fmean(step.time_s for step in steps),
                phases_s={n: None if s is None else max(0.0, s) for n, s in means_s.items()},
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


def data_waits(runs: Sequence[Run]) -> dict[PointKey, float]:
    """Return the fraction of each point's step time that the longest-waiting rank waits for data.

    The fractions are means over runs. Points without measured phases are left out.
    """
    return {
        point: statistics.fmean(
            max(rank.phases.data_s for rank in step.ranks) / step.time_s for step in steps
        )
        for point, valid in valid_by_point(runs).items()
        if (steps := steps_of(valid))
    }
