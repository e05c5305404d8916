"""The evidence for the causes of a regression, and the probe results that confirm them."""

import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
from msgspec import structs

from gpuscale.analysis.estimates import Term, difference, grouped_log_sample
from gpuscale.analysis.step_parts import Part, Step, steps_of
from gpuscale.base.grouping import by_key
from gpuscale.judge.diagnose.step_parts import PartChange, changes_of, without_turns
from gpuscale.judge.diagnose.symptoms import symptoms_of
from gpuscale.judge.sides import Sides
from gpuscale.records import (
    Cause,
    Configuration,
    EntryVerdict,
    Environment,
    EnvironmentChange,
    NodeEvidence,
    PointKey,
    Probe,
    Run,
)
from gpuscale.records.baseline import THROUGHPUT
from gpuscale.records.cause import (
    CauseKind,
    ComparedWith,
    DeviceSymptom,
    Onset,
    PhaseChange,
    ProbeChange,
)
from gpuscale.records.environment_diff import node_changes, script_changes
from gpuscale.records.probes import probes_for
from gpuscale.records.run import nodes_of

_AS_LARGE = 0.25
"""A loss on another number of GPUs counts if it is at least this fraction of the row's loss."""
_LEAST_LOSS = 0.02
"""Smallest relative loss of a probe's rate that confirms a cause."""
_SIGNIFICANCE = 0.05
"""Probability that probes of one kind show a slower device although no device is slower."""
_MOST_SHOWN = 3
_OF_SCRIPTS = (CauseKind.DATA, CauseKind.COMMUNICATION, CauseKind.SLOW_RANK, CauseKind.COMPUTE)
"""Kinds of causes for which a changed script is the first suspect."""


class PointEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence on why one configuration regressed on one number of GPUs."""

    key: PointKey
    before: tuple[Step, ...]
    after: tuple[Step, ...]
    changes: Mapping[Part, PartChange]
    """Change of each part; empty if either side has no run whose step is divided into parts."""
    environments_before: tuple[Environment, ...] = ()
    environments_after: tuple[Environment, ...] = ()
    runs_before: tuple[Run, ...] = ()
    runs_after: tuple[Run, ...] = ()
    """Valid runs of the current results, also those whose steps are not divided into parts."""

    @property
    def nodes(self) -> int:
        """Largest number of hosts in a current run that timed the parts of its steps; else 1."""
        return max((len({rank.host for rank in step.ranks}) for step in self.after), default=1)

    def phase(self, name: str, seconds: Callable[[Step], float]) -> PhaseChange:
        """Return a phase's mean time in baseline and results; `seconds` reads it from a step."""
        sides = self.before, self.after
        before_s, after_s = (statistics.fmean(map(seconds, steps)) for steps in sides)
        return PhaseChange(name=name, before_s=before_s, after_s=after_s)

    @property
    def computing_phases(self) -> tuple[PhaseChange, ...]:
        """The median rank's forward, backward and optimizer times in baseline and results."""
        return (
            self.phase("forward", lambda step: step.median.phases.forward_s),
            self.phase("backward", lambda step: step.median.backward_s),
            self.phase("optimizer", lambda step: step.median.phases.optimizer_s),
        )

    @property
    def hosts(self) -> tuple[set[str], set[str]]:
        """Hosts of the baseline and of the results; from environments if the ranks record none."""
        then = _hosts_of(self.before, self.environments_before)
        return then, _hosts_of(self.after, self.environments_after)

    @property
    def evidence_of_nodes(self) -> tuple[list[NodeEvidence], list[NodeEvidence]]:
        """Evidence collected on the nodes of the baseline and of the results."""
        return nodes_of(self.runs_before), nodes_of(self.runs_after)

    @property
    def connection_changes(self) -> Iterator[EnvironmentChange]:
        """Differences between baseline and results in the connections logged by NCCL or RCCL."""
        sides = self.evidence_of_nodes
        return node_changes(*([(node.host, node.connections) for node in side] for side in sides))


def _hosts_of(steps: Sequence[Step], environments: Sequence[Environment]) -> set[str]:
    hosts = {rank.host for step in steps for rank in step.ranks}
    return hosts or {where.host for where in environments if where.host is not None}


class RowEvidence(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One row of a comparison, with the evidence of its runs."""

    entry: EntryVerdict
    points: Mapping[int, PointEvidence]
    """Evidence on the row's configuration, for each number of GPUs in the baseline."""

    @property
    def point(self) -> PointEvidence:
        """The evidence from runs on the row's own number of GPUs."""
        return self.points[self.entry.key.gpus]

    @cached_property
    def symptoms(self) -> tuple[DeviceSymptom, ...]:
        """Abnormal counters of the devices used in the results."""
        placed = (pair for where in self.point.environments_after for pair in where.placed_gpus)
        hosts = {gpu.uuid: host for host, gpu in placed if gpu.uuid and host}
        return symptoms_of(self.point.runs_before, self.point.runs_after, hosts)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts used in the results."""
        return tuple(sorted(self.point.hosts[1]))

    @property
    def is_idle(self) -> bool:
        """True if each run of the results recorded the load of its hosts, and no host was busy."""
        runs, on_cpu = self.point.runs_after, self.point.key.configuration.device == "cpu"
        loads = [node.load for run in runs for node in run.nodes]
        return all(run.nodes for run in runs) and all(
            load is not None
            and load.other_cores is not None
            and (on_cpu or load.gpu_processes is not None)
            and not load.is_busy
            for load in loads
        )

    def informed(self, cause: Cause) -> Cause:
        """Add changed scripts, and whether the hosts were idle, to the remedy of a cause."""
        if cause.remedy is None:
            return cause
        sides = self.point.environments_before, self.point.environments_after
        changes = script_changes(*sides) if cause.kind in _OF_SCRIPTS else ()
        scripts = tuple(change.name.removeprefix("script ") for change in changes)
        remedy = structs.replace(cause.remedy, scripts=scripts, is_idle=self.is_idle)
        return structs.replace(cause, remedy=remedy)


def points_of(
    sides: Sides, configurations: Collection[Configuration | None]
) -> Mapping[Configuration | None, Mapping[int, PointEvidence]]:
    """Collect the evidence on these configurations, for each number of GPUs in the baseline."""
    tolerances = sides.baseline.tolerances
    found: dict[Configuration | None, dict[int, PointEvidence]] = {}
    for key, then in sides.before.by_point.items():
        if key.configuration not in configurations:
            continue
        now = sides.after.by_point.get(key)
        runs, runs_after = then.valid, now.valid if now else []
        after = steps_of(runs_after)
        before = without_turns(steps_of(runs), after)
        deviation = tolerances.limits(then.key.row, THROUGHPUT).allocation_deviation
        found.setdefault(key.configuration, {})[key.gpus] = PointEvidence(
            key=key,
            before=before,
            after=after,
            changes=changes_of(before, after, deviation),
            environments_before=sides.before.environments_of(then),
            environments_after=sides.after.environments_of(now) if now else (),
            runs_before=tuple(runs),
            runs_after=tuple(runs_after),
        )
    return found


def onset_of(part: Part, point: PointEvidence, points: Mapping[int, PointEvidence]) -> Onset | None:
    """Find on which GPU counts a part of a step got longer; None without two counts to compare."""
    losses = {
        gpus: there.changes[part].lost_s / statistics.fmean(step.time_s for step in there.before)
        for gpus, there in points.items()
        if part in there.changes
    }
    own = point.key.gpus
    if len(losses) < 2 or own not in losses:
        return None
    as_large = {own, *(n for n, loss in losses.items() if loss >= _AS_LARGE * losses[own])}
    # A loss as large that its runs do not prove is on neither side.
    lost_on = sorted(n for n in as_large if n == own or points[n].changes[part].is_longer)
    spared_on = sorted(losses.keys() - as_large)
    return Onset(
        lost_on=tuple(lost_on),
        spared_on=tuple(spared_on),
        nodes=points[lost_on[0]].nodes,
        spared_nodes=max((points[n].nodes for n in spared_on if n < lost_on[0]), default=None),
    )


def confirmed(cause: Cause, before: Sequence[Probe], after: Sequence[Probe]) -> Cause:
    """Return the cause with changes of related probe results, if any, added to its evidence."""
    names = probes_for(cause.code)
    changes = [*probe_changes(before, [probe for probe in after if probe.name in names])]
    if not changes:
        return cause
    slower = sorted((each for each in changes if each.is_slower), key=lambda c: c.change.value)
    # Faults that all devices share would bury the other evidence.
    shown = slower[:_MOST_SHOWN] or changes[:1]
    return structs.replace(cause, evidence=(*cause.evidence, *shown))


def probe_changes(before: Sequence[Probe], after: Sequence[Probe]) -> Iterator[ProbeChange]:
    """Yield the change in each probe's rate, relative to the same device or else to other devices.

    Both are devices of the baseline. The variance of repetitions is pooled over all devices.
    """
    old, new = (
        by_key((probe.identity, math.log(rate)) for probe in side for rate in probe.rates)
        for side in (before, after)
    )
    probes = {probe.identity: probe for probe in after}
    for shared in {probe.comparison_key: None for probe in after}:
        now, then = (
            {key: logs for key, logs in side.items() if key[: len(shared)] == shared}
            for side in (new, old)
        )
        sample = grouped_log_sample([*now.values(), *then.values()])
        if not then or sample.variance is None:
            continue
        means = [statistics.fmean(logs) for logs in then.values()]
        for key, logs in now.items():
            usual, variance, df = statistics.fmean(means), sample.variance / len(logs), sample.df
            if key in then:
                usual = statistics.fmean(then[key])
                variance += sample.variance / len(then[key])
            elif len(means) > 1:
                # Healthy devices differ more than repetitions on one device do.
                variance += statistics.variance(means) * (1 + 1 / len(means))
                df = len(means) - 1
            else:
                continue
            apart = difference(statistics.fmean(logs) - usual, [Term(variance=variance, df=df)])
            change = apart.relative_change(1 - _SIGNIFICANCE / len(now))
            is_sure = change.high is not None and change.high < 0
            yield ProbeChange(
                probe=probes[key],
                change=change,
                is_slower=is_sure and change.value < -_LEAST_LOSS,
                beside=ComparedWith.BASELINE if key in then else ComparedWith.OTHER_GPUS,
            )
