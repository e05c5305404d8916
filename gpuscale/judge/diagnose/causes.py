"""Find the causes of a regression: `diagnose`, and the functions in `CAUSES` that it calls."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec import structs
from msgspec.structs import replace

from gpuscale.analysis.estimates import difference
from gpuscale.analysis.step_parts import Part, lag_of
from gpuscale.base.host import is_gpu
from gpuscale.base.strategies import STRATEGIES
from gpuscale.judge.diagnose.row_evidence import RowEvidence, confirmed, onset_of, points_of
from gpuscale.judge.diagnose.step_parts import PartChange, most_slowed_phase, stragglers_of
from gpuscale.judge.diagnose.symptoms import explaining_clocks, port_symptoms
from gpuscale.judge.sides import Sides
from gpuscale.records import (
    Comparison,
    EntryVerdict,
    Estimate,
    Finding,
    MetricSpec,
    QuantityName,
    Statement,
    Verdict,
)
from gpuscale.records.cause import (
    LINKS,
    Cause,
    CauseKind,
    DeviceSymptom,
    PhaseChange,
    PortSymptom,
    Remedy,
)
from gpuscale.records.environment import gpu_places
from gpuscale.records.environment_diff import environment_changes, new_values
from gpuscale.records.verdict import SLOWDOWNS

_ENOUGH_RUNS = 3
_LEAST_LAG, _CHANCE, _PERHAPS = 0.02, 0.01, 0.05
"""Smallest additional lag of a rank, as a fraction of a step, that an inconclusive row reports, and
the largest probability of it by chance: if it is a finding, and if it may be one."""


def communication(row: RowEvidence, change: PartChange) -> Cause:
    """Return the cause of time lost in communication that the backward pass does not hide."""
    links = [symptom for symptom in row.symptoms if symptom.kind in LINKS]
    point, ports = row.point, tuple[PortSymptom, ...]()
    if point.nodes > 1:
        ports = tuple(port_symptoms(*point.evidence_of_nodes))
    kind = CauseKind.FABRIC if ports else CauseKind.COMMUNICATION
    kind = min((symptom.kind for symptom in links), key=LINKS.index, default=kind)
    hosts = tuple(dict.fromkeys(port.host for port in ports))
    demands = STRATEGIES.get(point.key.configuration.strategy)
    return Cause(
        kind=kind,
        code="communication",
        includes=demands.paused if demands else None,
        evidence=(*links, *ports, *row.point.connection_changes),
        remedy=Remedy("ports", hosts) if kind is CauseKind.FABRIC else _look_at_links(row),
    )


def data(row: RowEvidence, change: PartChange) -> Cause:
    """Return the cause of time lost in data loading: late batches or slow copies."""
    waiting = row.point.phase("waiting", lambda step: step.median.phases.data_s)
    copying = row.point.phase("copying", lambda step: step.median.phases.h2d_s)
    is_copy = copying.after_s - copying.before_s > waiting.after_s - waiting.before_s
    links = [s for s in row.symptoms if is_copy and s.kind is CauseKind.PCIE]
    return Cause(
        kind=CauseKind.PCIE if links else CauseKind.DATA,
        code="late_copies" if is_copy else "late_batches",
        evidence=(waiting, copying, *links),
        remedy=Remedy("copies") if is_copy else _look_at_loaders(row),
    )


def computing(row: RowEvidence, change: PartChange) -> Cause:
    """Return the cause of time lost in computing, which excludes waiting for other ranks."""
    ranks = [rank for step in row.point.after for rank in step.ranks]
    uuids = {uuid for rank in ranks for uuid in rank.device_uuids}
    clocks = explaining_clocks(row.symptoms, uuids, lost_s=change.lost_s, of_s=change.before_s)
    demands = STRATEGIES.get(row.point.key.configuration.strategy)
    phases = row.point.computing_phases
    inside = demands.inside_computing if demands and row.point.key.gpus > 1 else None
    phase, is_uneven = (None, False) if clocks or inside else most_slowed_phase(phases, change)
    return Cause(
        kind=CauseKind.CLOCKS if clocks else CauseKind.COMPUTE,
        code="computing",
        includes=inside,
        phase=phase,
        evidence=(*phases, *clocks),
        remedy=Remedy("script") if is_uneven else _look_at_devices(row, row.hosts),
    )


def stragglers(row: RowEvidence, change: PartChange) -> Cause:
    """Return the cause of a larger skew between ranks: slow ranks, low clocks or late batches."""
    found = stragglers_of(row.point.after, change.before_s)
    in_data = row.point.phase("skew", lambda step: step.slowest.data_s - step.median.data_s)
    if in_data.after_s - in_data.before_s > change.lost_s / 2:
        kind, remedy = CauseKind.DATA, _look_at_loaders(row)
    else:
        computing_s = row.point.changes[Part.COMPUTING].after_s
        clocks = explaining_clocks(
            row.symptoms, found.device_uuids, lost_s=change.lost_s, of_s=computing_s
        )
        kind = CauseKind.CLOCKS if clocks else CauseKind.SLOW_RANK
        remedy = Remedy("jobs_on_hosts", row.hosts)
        if found.hosts:
            remedy = _look_at_devices(row, found.hosts)
    symptoms = tuple(each for each in row.symptoms if each.uuid in found.device_uuids)
    is_own = len(found.ranks) == 1 and any(s.not_median is not None for s in row.point.before)
    return structs.replace(found, kind=kind, evidence=symptoms, remedy=remedy, is_own_lag=is_own)


def certain_straggler(row: RowEvidence, named: Sequence[Cause]) -> Iterator[Cause]:
    """Yield a cause if ranks lag behind the others by more than in the baseline, beyond chance.

    In inconclusive rows, this is the only cause sought: runs in which everything takes longer, or
    sessions that differ, can hide the loss, but not that one rank lags in each of them.
    """
    before, after, change = row.point.before, row.point.after, row.point.changes.get(Part.SKEW)
    if change is None or any(c.ranks for c in named) or min(len(before), len(after)) < _ENOUGH_RUNS:
        return
    found = stragglers(row, change)
    then, now = lag_of(found.ranks, before), lag_of(found.ranks, after)
    gain = difference(then.mean - now.mean, [then.term(), now.term()])
    p = 1.0 if gain.value >= -_LEAST_LAG else gain.p_below_zero()
    # Any rank might have been the slowest, so there are as many tests.
    chance = 1.0 if p is None else p * len(after[0].ranks)
    is_sure, is_in_all = chance < _CHANCE, found.seen_in == 2 * (len(after),)
    if found.ranks and (is_sure or (chance < _PERHAPS and is_in_all)):
        times_s = {"lost_s": change.lost_s, "before_s": change.before_s, "after_s": change.after_s}
        found = structs.replace(found, remedy=found.remedy if is_sure else None, **times_s)
        yield structs.replace(found, code="stragglers" if is_sure else "perhaps_stragglers")


def device_faults(row: RowEvidence, named: Sequence[Cause]) -> Iterator[Cause]:
    """Yield a cause for each kind of device fault that no cause in `named` cites as evidence."""
    named_already = {found for cause in named for found in cause.evidence}
    # Clocks also fall while a device waits, as a consequence rather than a cause of the loss.
    faults = [s for s in row.symptoms if s.kind is not CauseKind.CLOCKS]
    for kind in dict.fromkeys(symptom.kind for symptom in faults):
        if found := [s for s in faults if s.kind is kind and s not in named_already]:
            yield Cause(
                kind=kind,
                code="device_fault",
                hosts=tuple(dict.fromkeys(s.host for s in found if s.host is not None)),
                device_uuids=tuple(dict.fromkeys(s.uuid for s in found)),
                evidence=tuple(found),
                remedy=Remedy("faults"),
            )


def clocks_without_phases(row: RowEvidence, named: Sequence[Cause]) -> Iterator[Cause]:
    """Yield a cause if step phases are unknown and GPU clocks fell enough to explain a slowdown."""
    then, now = row.entry.baseline.step_time_s, row.entry.current.step_time_s
    # If only the scaling got worse, devices wait for others, and clocks fall as a consequence.
    of_time = row.entry.finding in SLOWDOWNS
    if row.point.changes or not of_time or then is None or now is None:
        return
    uuids = {summary.uuid for run in row.point.runs_after for summary in run.gpu_summaries}
    lost_s = now.value - then.value
    if clocks := explaining_clocks(row.symptoms, uuids, lost_s=lost_s, of_s=then.value):
        hosts = tuple(dict.fromkeys(s.host for s in clocks if s.host is not None))
        yield Cause(
            kind=CauseKind.CLOCKS,
            code="clocks_without_phases",
            evidence=clocks,
            remedy=_look_at_devices(row, hosts),
        )


def not_established(row: RowEvidence, named: Sequence[Cause]) -> Iterator[Cause]:
    """Yield a cause "not established", with a remedy, if none of `named` explains lost time."""
    if any(cause.lost_s is not None or cause.kind is CauseKind.CLOCKS for cause in named):
        return
    entry, point = row.entry, row.point
    lost = [metric.metric for metric in entry.metrics if metric.verdict.is_loss]
    if isinstance(entry.finding, MetricSpec):
        yield _open("other_metrics", Remedy("case_and_libraries"), lost)
    elif not point.before or not point.after:
        # Recording a new baseline is no remedy: it would contain the loss.
        if point.key.configuration.command:
            yield _open("no_phases_of_commands", Remedy("command_or_hosts", row.hosts))
        else:
            of_speedup = entry.changed_quantity is QuantityName.EFFICIENCY
            remedy = _look_at_links(row) if of_speedup else _look_at_devices(row, row.hosts)
            yield _open("no_phases", remedy)
    else:
        parts = [
            PhaseChange(name=change.part, before_s=change.before_s, after_s=change.after_s)
            for change in point.changes.values()
        ]
        yield _open("within_noise", Remedy("more_runs", runs=2 * len(point.after)), parts)


def environment(row: RowEvidence, named: Sequence[Cause]) -> Iterator[Cause]:
    """Yield a possible cause, unproven, if the environments differ from the baseline's."""
    point = row.point
    environments = point.environments_before, point.environments_after
    # If the parts of a step are unknown, as for commands, communication may have taken longer.
    connections = () if point.changes else point.connection_changes
    changes = environment_changes(*environments, *point.evidence_of_nodes)
    if found := (*changes, *new_values("host", *map(sorted, point.hosts)), *connections):
        kind, remedy = CauseKind.ENVIRONMENT, Remedy("environment_as_it_was")
        yield Cause(kind=kind, code="environment_changed", evidence=found, remedy=remedy)


def _look_at_links(row: RowEvidence) -> Remedy:
    if is_gpu(row.point.key.configuration.device):
        return Remedy("gpu_links")
    return Remedy("network" if row.point.nodes > 1 else "processes_on_host")


def _look_at_devices(row: RowEvidence, hosts: tuple[str, ...]) -> Remedy:
    on_cpu = row.point.key.configuration.device == "cpu"
    return Remedy("processes_on_hosts" if on_cpu else "doctor_on_hosts", hosts)


def _look_at_loaders(row: RowEvidence) -> Remedy:
    data = row.point.key.configuration.data
    if data == "real":
        return Remedy("storage")
    return Remedy("loaders" if data == "loader" else "cpu_load")


def _open(code: str, remedy: Remedy, evidence: Sequence[MetricSpec | PhaseChange] = ()) -> Cause:
    return Cause(kind=CauseKind.NOT_ESTABLISHED, code=code, evidence=tuple(evidence), remedy=remedy)


OF_PARTS: Mapping[Part, Callable[[RowEvidence, PartChange], Cause]] = {
    Part.COMMUNICATION: communication,
    Part.DATA: data,
    Part.COMPUTING: computing,
    Part.SKEW: stragglers,
    # Neither slower ranks nor communication explain this time.
    Part.REST: lambda row, _: _open("time_in_no_part", Remedy("jobs_on_hosts", row.hosts)),
}


def lost_parts(row: RowEvidence, named: Sequence[Cause]) -> Iterator[Cause]:
    """Yield a cause for each part of the step that got clearly longer, largest increase first."""
    finding = row.entry.finding
    parts: Collection[Part] = OF_PARTS
    if isinstance(finding, MetricSpec):
        # Time does not explain memory or energy; exposed communication has a part of its own.
        parts = [Part.COMMUNICATION] if finding.in_points else []
    changes = row.point.changes
    standing_out = [changes[part] for part in parts if part in changes and changes[part].stands_out]
    gained_s = math.fsum(max(0.0, -change.lost_s) for change in changes.values())
    for change in sorted(standing_out, key=lambda change: -change.lost_s):
        yield structs.replace(
            OF_PARTS[change.part](row, change),
            share=change.share,
            gained_s=gained_s,
            lost_s=change.lost_s,
            before_s=change.before_s,
            after_s=change.after_s,
            onset=onset_of(change.part, row.point, row.points),
        )


Finder = Callable[[RowEvidence, Sequence[Cause]], Iterator[Cause]]

CAUSES: tuple[Finder, ...] = (
    lost_parts,
    clocks_without_phases,
    certain_straggler,
    device_faults,
    not_established,
    environment,
)
"""Functions that find causes of losses, in reporting order; each receives the causes so far."""


def diagnose(sides: Sides, comparison: Comparison) -> Comparison:
    """Add the causes of regressions, and stragglers in inconclusive rows, to a comparison."""
    sides = sides.usual
    suspects = [entry for entry in comparison.entries if _finders(entry.verdict)]
    points = points_of(sides, {entry.configuration for entry in suspects})

    def causes_of(entry: EntryVerdict) -> tuple[Cause, ...]:
        of_configuration = points.get(entry.configuration, {})
        if entry.key.gpus not in of_configuration:
            figures = _open("published_figures", Remedy("record_own"))
            return (figures,) if entry.verdict.is_loss else ()
        row = RowEvidence(entry=entry, points=of_configuration)
        named: tuple[Cause, ...] = ()
        for find in _finders(entry.verdict):
            named += tuple(find(row, named))
        probes = sides.before.probes, sides.after.probes
        return tuple(confirmed(row.informed(cause), *probes) for cause in named)

    def with_causes(entry: EntryVerdict) -> EntryVerdict:
        causes = causes_of(entry)
        # Chance alone names a rank 1 time in 100, and rarely where the row seems slower too.
        is_sure = any(cause.code == "stragglers" for cause in causes)
        if is_sure and entry.verdict is Verdict.INCONCLUSIVE and (lost := _seeming_loss(entry)):
            quantity, change = lost
            is_of_e = quantity is QuantityName.EFFICIENCY
            finding = Finding.SCALING_LOSS if is_of_e else Finding.SLOWER_TRAINING
            both = Statement.of("straggler_besides", quantity=quantity, change=change)
            entry = replace(entry, verdict=Verdict.REGRESSED, finding=finding, reason=both)
            entry = replace(entry, change=change, changed_quantity=quantity, further_runs=None)
            causes = causes_of(entry)
        return replace(entry, causes=causes) if causes else entry

    entries = tuple(map(with_causes, comparison.entries))
    found = [cause for entry in entries for cause in entry.causes]
    symptoms = (each for cause in found for each in cause.evidence)
    uuids = {uuid for cause in found for uuid in cause.device_uuids}
    uuids |= {each.uuid for each in symptoms if isinstance(each, DeviceSymptom)}
    places = gpu_places((*sides.before.environments, *sides.after.environments))
    notes = comparison.notes
    if shown := {uuid: at for uuid, at in places.items() if uuid in uuids}:
        notes += (Statement.of("gpu_places", places=shown),)
    return replace(comparison, entries=entries, notes=notes)


def _seeming_loss(entry: EntryVerdict) -> tuple[QuantityName, Estimate] | None:
    """Return the judged change, or else that of E, if it is worse by more than the margin."""
    then, now = entry.baseline.efficiency, entry.current.efficiency
    of_e = Estimate(value=now.value / then.value - 1) if then and now else None
    margin = entry.reason.facts.get("margin", math.inf)
    for name, change in ((entry.changed_quantity, entry.change), (QuantityName.EFFICIENCY, of_e)):
        if name and change and change.value < -margin:
            return name, change
    return None


def _finders(verdict: Verdict) -> Sequence[Finder]:
    if verdict.is_loss:
        return CAUSES
    return (certain_straggler,) if verdict is Verdict.INCONCLUSIVE else ()
