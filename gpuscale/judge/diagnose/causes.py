"""Functions that find causes: longer parts of a step, device faults, busy hosts and others."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from gpuscale.analysis.budget import EfficiencyBudget
from gpuscale.base.devices import is_gpu
from gpuscale.base.strategies import STRATEGIES
from gpuscale.judge.diagnose.attribution import NAMED_SHARE, Change, Rank
from gpuscale.judge.diagnose.devices import explaining_clocks
from gpuscale.judge.diagnose.evidence import RowEvidence
from gpuscale.judge.diagnose.ports import port_symptoms
from gpuscale.records import EnvironmentChange, MetricSpec, QuantityName
from gpuscale.records.cause import (
    LINKS,
    Cause,
    CauseKind,
    EfficiencyLoss,
    LostMetric,
    PhaseChange,
    Remedy,
)
from gpuscale.records.environment_diff import (
    environment_changes,
    host_changes,
    node_changes,
    package_changes,
)

_MOST = 0.9
"""Fraction of the additional computing time that one phase must explain to be named."""


def communication(row: RowEvidence, change: Change) -> Cause:
    """Return the cause if gradient synchronisation not hidden by the backward pass got longer."""
    links = [symptom for symptom in row.symptoms if symptom.kind in LINKS]
    kinds = {symptom.kind for symptom in links}
    found = (kind for kind in LINKS if kind in kinds)
    ports = tuple(port_symptoms(row))
    kind = next(found, CauseKind.FABRIC if ports else CauseKind.COMMUNICATION)
    hosts = tuple(dict.fromkeys(port.host for port in ports))
    demands = STRATEGIES.get(row.point.key.configuration.strategy)
    return Cause(
        kind=kind,
        code="communication",
        includes=demands.paused if demands else None,
        evidence=(
            *links,
            *ports,
            *_connection_changes(row),
        ),
        remedy=Remedy("ports", hosts) if kind is CauseKind.FABRIC else _look_at_links(row),
    )


def data(row: RowEvidence, change: Change) -> Cause:
    """Return the cause if batches arrive later or are copied more slowly."""
    waiting = _phase("waiting", row, lambda rank: rank.phases.data_s)
    copying = _phase("copying", row, lambda rank: rank.phases.h2d_s)
    is_copy = copying.after_s - copying.before_s > waiting.after_s - waiting.before_s
    links = [s for s in row.symptoms if is_copy and s.kind is CauseKind.PCIE]
    return Cause(
        kind=CauseKind.PCIE if links else CauseKind.DATA,
        code="late_copies" if is_copy else "late_batches",
        shared_by=row.shared_by(lambda rank: rank.data_s),
        evidence=(waiting, copying, *links),
        remedy=Remedy("copies") if is_copy else look_at_loaders(row),
    )


def computing(row: RowEvidence, change: Change) -> Cause:
    """Return the cause if ranks compute for longer, not counting waits for each other."""
    ranks = [rank for step in row.point.after for rank in step.ranks]
    uuids = {uuid for rank in ranks for uuid in rank.device_uuids}
    clocks = explaining_clocks(row.symptoms, uuids, lost_s=change.lost_s, of_s=change.before_s)
    demands = STRATEGIES.get(row.point.key.configuration.strategy)
    phases = (
        _phase("forward", row, lambda rank: rank.phases.forward_s),
        _phase("backward", row, lambda rank: rank.backward_s),
        _phase("optimizer", row, lambda rank: rank.phases.optimizer_s),
    )
    phase = None if row.symptoms else _longer_alone(phases)
    sides = row.point.environments_before, row.point.environments_after
    known = (*environment(row, ()), *busy_host(row, ()), *package_changes(*sides))
    return Cause(
        kind=CauseKind.CLOCKS if clocks else CauseKind.COMPUTE,
        code="computing",
        shared_by=row.shared_by(lambda rank: rank.computing_s),
        includes=demands.inside_computing if demands and row.point.key.gpus > 1 else None,
        phase=phase,
        evidence=(*phases, *clocks),
        remedy=Remedy("case_code") if phase and not known else look_at_devices(row, row.hosts),
    )


def _longer_alone(phases: Sequence[PhaseChange]) -> str | None:
    """Return the phase that explains most of the growth, if no other phase grew in proportion.

    A slower device or host makes all phases longer.
    """
    changes_s = {each.name: each.after_s - each.before_s for each in phases}
    longest = max(phases, key=lambda each: changes_s[each.name])
    grown_s, others = changes_s[longest.name], [each for each in phases if each is not longest]
    is_most = grown_s > 0 and grown_s >= _MOST * sum(max(0.0, c) for c in changes_s.values())
    pace = grown_s / longest.before_s if longest.before_s > 0 else math.inf
    is_alone = all(changes_s[each.name] <= pace / 2 * each.before_s for each in others)
    return longest.name if is_most and is_alone and any(o.before_s > 0 for o in others) else None


def time_in_no_part(row: RowEvidence, change: Change) -> Cause:
    """Return the cause of lost time that is neither in the ranks' pace nor in communication."""
    return _open("time_in_no_part", Remedy("jobs_on_hosts", row.hosts))


def device_faults(row: RowEvidence, named: Sequence[Cause]) -> Iterator[Cause]:
    """Yield a cause for each kind of device fault that is not yet evidence for another cause."""
    named_already = {found for cause in named for found in cause.evidence}
    # Clocks also fall on a device that waits: then they are a consequence, not a cause.
    faults = [s for s in row.symptoms if s.kind is not CauseKind.CLOCKS]
    for kind in dict.fromkeys(symptom.kind for symptom in faults):
        found = [s for s in faults if s.kind is kind and s not in named_already]
        if found:
            yield Cause(
                kind=kind,
                code="device_fault",
                hosts=tuple(dict.fromkeys(s.host for s in found if s.host is not None)),
                device_uuids=tuple(dict.fromkeys(s.uuid for s in found)),
                evidence=tuple(found),
                remedy=Remedy("faults"),
            )


def not_established(row: RowEvidence, named: Sequence[Cause]) -> Iterator[Cause]:
    """State why no part of the step explains the loss, and what would help to find the cause."""
    if any(cause.lost_s is not None for cause in named):
        return
    entry, point = row.entry, row.point
    lost = [LostMetric(metric.metric.name) for metric in entry.metrics if metric.verdict.is_loss]
    if isinstance(entry.finding, MetricSpec):
        yield _open("other_metrics", Remedy("case_and_libraries"), lost)
    elif not point.before:
        # A baseline recorded now would contain the loss.
        hosts = row.hosts or tuple(sorted({where.host or "" for where in point.environments_after}))
        is_scaling = entry.changed_quantity is QuantityName.EFFICIENCY
        remedy = _look_at_links(row) if is_scaling else look_at_devices(row, hosts)
        yield _open("no_phases_before" if point.after else "no_phases", remedy)
    elif not point.after:
        yield _open("no_phases_after", Remedy("measure_again"))
    else:
        parts = [
            PhaseChange(name=change.part, before_s=change.before_s, after_s=change.after_s)
            for change in point.changes.values()
        ]
        yield _open("within_noise", Remedy("more_runs", runs=2 * len(point.after)), parts)


def environment(row: RowEvidence, named: Sequence[Cause]) -> Iterator[Cause]:
    """Report differences between both sides' environments; they alone do not prove a cause."""
    before, after = row.point.environments_before, row.point.environments_after
    hosts = (
        {rank.host for step in steps for rank in step.ranks}
        or {where.host for where in environments if where.host is not None}
        for steps, environments in ((row.point.before, before), (row.point.after, after))
    )
    nodes = row.point.nodes_before, row.point.nodes_after
    # If the parts of a step are unknown, as those of a command, communication may have lost time.
    connections = () if row.point.changes else _connection_changes(row)
    found = (*environment_changes(before, after, *nodes), *host_changes(*hosts), *connections)
    if found:
        kind, remedy = CauseKind.ENVIRONMENT, Remedy("environment_as_it_was")
        yield Cause(kind=kind, code="environment_changed", evidence=found, remedy=remedy)


def busy_host(row: RowEvidence, named: Sequence[Cause]) -> Iterator[Cause]:
    """Report new load from other processes on the hosts: most baseline runs had none."""
    before, after = row.point.loads_before, row.point.loads_after
    busy = [host for host, load in after if load.is_busy]
    had = sum(load.is_busy for _, load in before)
    if before and had < len(before) / 2 and len(busy) > len(after) / 2:
        hosts = tuple(sorted({*busy}))
        then, now = (
            statistics.median(load.load_average for _, load in side) for side in (before, after)
        )
        yield Cause(
            kind="busy host",
            code="busy_host",
            hosts=hosts,
            evidence=(
                EnvironmentChange(
                    name=f"load on {after[0][1].cores} cores",
                    before=(f"{then:.1f}",),
                    after=(f"{now:.1f}",),
                ),
            ),
            remedy=Remedy("processes_on_hosts", hosts),
        )


def lost_to_ideal(budget: EfficiencyBudget | None) -> Iterator[Cause]:
    """Yield the largest losses relative to ideal scaling; published figures show nothing else.

    Shares are relative to the sum of all lost parts; gains of other parts do not count.
    """
    if budget is not None and budget.efficiency < 1:
        lost = 1 - budget.efficiency
        in_all = sum(part for part in (*budget.parts.values(), budget.rest) if part > 0)
        demands = STRATEGIES.get(budget.configuration.strategy)
        parts = {
            CauseKind.COMMUNICATION: budget.parts.get("communication", 0.0),
            CauseKind.DATA: budget.parts.get("data", 0.0),
            CauseKind.SLOW_RANK: budget.parts.get("skew", 0.0),
        }
        named = {kind: part for kind, part in parts.items() if part >= NAMED_SHARE * in_all}
        for kind, part in sorted(named.items(), key=lambda item: -item[1]):
            yield Cause(
                kind=kind,
                code="lost_to_ideal",
                share=part / in_all,
                includes=demands.paused if demands and kind is CauseKind.COMMUNICATION else None,
                evidence=(EfficiencyLoss(gpus=budget.key.gpus, lost=lost, part=part),),
            )
    yield _open("published_figures", Remedy("record_own"))


def _connection_changes(row: RowEvidence) -> Iterator[EnvironmentChange]:
    """Yield differences between the connections that NCCL or RCCL logged on both sides."""
    sides = (row.point.nodes_before, row.point.nodes_after)
    return node_changes(*([(node.host, node.connections) for node in side] for side in sides))


def _look_at_links(row: RowEvidence) -> Remedy:
    """Return the remedy if ranks wait longer for each other."""
    if is_gpu(row.point.key.configuration.device):
        is_amd = row.point.key.configuration.device == "rocm"
        return Remedy("amd_gpu_links" if is_amd else "gpu_links")
    return Remedy("network" if row.point.nodes > 1 else "processes_on_host")


def look_at_devices(row: RowEvidence, hosts: tuple[str, ...]) -> Remedy:
    """Return the remedy if ranks compute slowly on these hosts."""
    on_cpu = row.point.key.configuration.device == "cpu"
    return Remedy("processes_on_hosts" if on_cpu else "doctor_on_hosts", hosts)


def look_at_loaders(row: RowEvidence) -> Remedy:
    """Return the remedy if batches are late."""
    data = row.point.key.configuration.data
    if data == "real":
        return Remedy("storage")
    return Remedy("loaders") if data == "loader" else Remedy("cpu_load")


def _open(code: str, remedy: Remedy, evidence: Sequence[LostMetric | PhaseChange] = ()) -> Cause:
    return Cause(kind=CauseKind.NOT_ESTABLISHED, code=code, evidence=tuple(evidence), remedy=remedy)


def _phase(name: str, row: RowEvidence, seconds: Callable[[Rank], float]) -> PhaseChange:
    """Return the median rank's change in one phase, averaged over runs."""
    before_s, after_s = (
        statistics.fmean(seconds(step.median) for step in steps)
        for steps in (row.point.before, row.point.after)
    )
    return PhaseChange(name=name, before_s=before_s, after_s=after_s)
