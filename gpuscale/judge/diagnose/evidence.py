"""The evidence from which the causes of a row's loss are found."""

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gpuscale.judge.diagnose.attribution import Change, Part, Rank, Step, changes_of, step_of
from gpuscale.judge.diagnose.devices import symptoms_of
from gpuscale.judge.sides import Sides
from gpuscale.records import (
    Configuration,
    EntryVerdict,
    Environment,
    PointKey,
    Run,
)
from gpuscale.records.cause import DeviceSymptom, Onset, RanksOf
from gpuscale.records.node_evidence import HostLoad, NodeEvidence
from gpuscale.records.run import nodes_of

_TAKES_PART = 0.5
"""A rank shares a change if its own change is at least this fraction of the median rank's."""
_AS_LARGE = 0.25
"""A loss at another GPU count is the same loss if it is at least this fraction of the row's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointEvidence:
    """Evidence for the causes of a loss, for one configuration on one number of GPUs."""

    key: PointKey
    before: tuple[Step, ...]
    after: tuple[Step, ...]
    changes: Mapping[Part, Change]
    """Change of each part; empty if either side has no run whose step is divided into parts."""
    environments_before: tuple[Environment, ...] = ()
    environments_after: tuple[Environment, ...] = ()
    loads_before: tuple[tuple[str, HostLoad], ...] = ()
    loads_after: tuple[tuple[str, HostLoad], ...] = ()
    """Host with the highest load in each run, and the load; without runs whose load is unknown."""
    nodes_before: tuple[NodeEvidence, ...] = ()
    nodes_after: tuple[NodeEvidence, ...] = ()
    """Evidence of every node in every run."""

    @property
    def nodes(self) -> int:
        """Largest number of hosts used by any run of the results."""
        return max((len({rank.host for rank in step.ranks}) for step in self.after), default=1)

    def relative_loss(self, part: Part) -> float:
        """Return the time lost in a part as a fraction of the baseline's step time."""
        step_time_s = statistics.fmean(step.time_s for step in self.before)
        return self.changes[part].lost_s / step_time_s


@dataclass(frozen=True, kw_only=True)
class RowEvidence:
    """One row of a comparison, with the evidence of its runs."""

    entry: EntryVerdict
    points: Mapping[int, PointEvidence]
    """Evidence on the row's configuration, for each number of GPUs in the baseline."""

    @property
    def point(self) -> PointEvidence:
        """The evidence on the row's own number of GPUs."""
        return self.points[self.entry.key.gpus]

    @cached_property
    def symptoms(self) -> tuple[DeviceSymptom, ...]:
        """Symptoms of the devices used in the results."""
        return symptoms_of(self.point.before, self.point.after)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts used in the results."""
        return tuple(sorted({rank.host for step in self.point.after for rank in step.ranks}))

    def symptoms_on(self, uuids: Collection[str]) -> tuple[DeviceSymptom, ...]:
        """The symptoms of these devices."""
        return tuple(symptom for symptom in self.symptoms if symptom.uuid in uuids)

    def shared_by(self, seconds: Callable[[Rank], float]) -> RanksOf | None:
        """Return the ranks that changed at least half as much as the median; None for one rank."""
        before, after = (
            _by_rank(steps, seconds) for steps in (self.point.before, self.point.after)
        )
        if len(after) < 2:
            return None
        change_s = statistics.median_low(after.values()) - statistics.median_low(before.values())
        ranks = [n for n in after if after[n] - before.get(n, 0.0) >= _TAKES_PART * change_s]
        return RanksOf(tuple(sorted(ranks or after)), len(after))


def points_of(
    sides: Sides, configurations: Collection[Configuration | None]
) -> Mapping[Configuration, Mapping[int, PointEvidence]]:
    """Collect the evidence on these configurations, for each number of GPUs in the baseline."""
    deviation = sides.baseline.tolerances.allocation_deviation_time
    found: dict[Configuration, dict[int, PointEvidence]] = {}
    for key, then in sides.before.by_point.items():
        if key.configuration not in configurations:
            continue
        now = sides.after.by_point.get(key)
        runs, runs_after = then.valid, now.valid if now else []
        before, after = _steps(runs), _steps(runs_after)
        found.setdefault(key.configuration, {})[key.gpus] = PointEvidence(
            key=key,
            before=before,
            after=after,
            changes=changes_of(before, after, deviation),
            environments_before=tuple(sides.before.environments_of[key]),
            environments_after=tuple(sides.after.environments_of.get(key, ())),
            loads_before=tuple(filter(None, (run.busiest_host for run in runs))),
            loads_after=tuple(filter(None, (run.busiest_host for run in runs_after))),
            nodes_before=tuple(nodes_of(runs)),
            nodes_after=tuple(nodes_of(runs_after)),
        )
    return found


def onset_of(part: Part, point: PointEvidence, points: Mapping[int, PointEvidence]) -> Onset | None:
    """Find the GPU counts at which a part got longer; None if fewer than 2 can be compared."""
    known = {gpus: there for gpus, there in points.items() if part in there.changes}
    if len(known) < 2 or point.key.gpus not in known:
        return None
    least = _AS_LARGE * point.relative_loss(part)
    lost_on = sorted(
        {point.key.gpus}.union(
            gpus
            for gpus, there in known.items()
            if there.changes[part].is_longer and there.relative_loss(part) >= least
        )
    )
    spared_on = sorted(known.keys() - lost_on)
    return Onset(
        lost_on=tuple(lost_on),
        spared_on=tuple(spared_on),
        nodes=known[lost_on[0]].nodes,
        spared_nodes=max((known[n].nodes for n in spared_on if n < lost_on[0]), default=None),
    )


def _steps(runs: Iterable[Run]) -> tuple[Step, ...]:
    return tuple(step for run in runs if (step := step_of(run)) is not None)


def _by_rank(steps: Sequence[Step], seconds: Callable[[Rank], float]) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for step in steps:
        for rank in step.ranks:
            values.setdefault(rank.rank, []).append(seconds(rank))
    return {rank: statistics.fmean(found) for rank, found in values.items()}
