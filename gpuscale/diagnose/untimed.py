"""What stands beside the time that parts of a step lost, or in its place."""

from collections.abc import Iterator, Sequence

from gpuscale.budget import EfficiencyBudget
from gpuscale.diagnose.attribution import NAMED_SHARE
from gpuscale.diagnose.row import Row
from gpuscale.environment_diff import changes, host_changes
from gpuscale.records.cause import (
    Cause,
    CauseCode,
    CauseKind,
    EfficiencyLoss,
    LostMetric,
    PhaseChange,
    Remedy,
    RemedyCode,
)


def device_faults(row: Row, named: Sequence[Cause]) -> Iterator[Cause]:
    """Faults of devices that no lost time was seen to come from, one cause for each kind."""
    told = {each for cause in named for each in cause.evidence}
    # Clocks also fall where a device has nothing to do, which is a consequence.
    faults = [s for s in row.symptoms if s.kind is not CauseKind.CLOCKS]
    for kind in dict.fromkeys(symptom.kind for symptom in faults):
        found = [s for s in faults if s.kind is kind and s not in told]
        if found:
            yield Cause(
                kind=kind,
                code=CauseCode.DEVICE_FAULT,
                hosts=tuple(dict.fromkeys(s.host for s in found if s.host is not None)),
                device_uuids=tuple(dict.fromkeys(s.uuid for s in found)),
                evidence=tuple(found),
                remedy=Remedy(code=RemedyCode.FAULTS),
            )


def not_established(row: Row, named: Sequence[Cause]) -> Iterator[Cause]:
    """Why no part of the step carries the loss, and what would tell it."""
    if any(cause.lost_s is not None for cause in named):
        return
    entry, point = row.entry, row.point
    lost = [LostMetric(name=m.metric.name) for m in entry.metrics if m.verdict.is_loss]
    if lost and (entry.change is None or entry.change.value >= 0):
        remedy = Remedy(code=RemedyCode.CASE_AND_LIBRARIES)
        yield _open(CauseCode.OTHER_METRICS, remedy, lost)
    elif not point.before:
        yield _open(CauseCode.NO_PHASES_BEFORE, Remedy(code=RemedyCode.RECORD_AGAIN))
    elif not point.after:
        yield _open(CauseCode.NO_PHASES_AFTER, Remedy(code=RemedyCode.MEASURE_AGAIN))
    else:
        parts = [
            PhaseChange(name=change.part.value, before_s=change.before_s, after_s=change.after_s)
            for change in point.changes.values()
        ]
        remedy = Remedy(code=RemedyCode.MORE_RUNS, runs=2 * len(point.after))
        yield _open(CauseCode.WITHIN_NOISE, remedy, parts)


def environment(row: Row, named: Sequence[Cause]) -> Iterator[Cause]:
    """What is different around a row's runs; that alone does not make it the cause."""
    before, after = row.environments_before, row.environments_after
    hosts = (
        {rank.host for step in steps for rank in step.ranks}
        or {each.host for each in environments if each.host is not None}
        for steps, environments in ((row.point.before, before), (row.point.after, after))
    )
    found = (*changes(before, after), *host_changes(*hosts))
    if found:
        yield Cause(
            kind=CauseKind.ENVIRONMENT,
            code=CauseCode.ENVIRONMENT_CHANGED,
            evidence=found,
            remedy=Remedy(code=RemedyCode.ENVIRONMENT_AS_IT_WAS),
        )


def lost_to_ideal(budget: EfficiencyBudget | None) -> Iterator[Cause]:
    """The parts of the lost efficiency, the heaviest first, and that no more can be told.

    A published figure has no phases, so what changed since it was measured stays open.
    """
    if budget is not None:
        yield from sorted(_parts(budget), key=lambda cause: -(cause.share or 0.0))
    yield _open(CauseCode.PUBLISHED_FIGURES, Remedy(code=RemedyCode.RECORD_OWN))


def _parts(budget: EfficiencyBudget) -> Iterator[Cause]:
    lost = 1 - budget.efficiency
    for kind, part in (
        (CauseKind.COMMUNICATION, budget.communication),
        (CauseKind.DATA, budget.data),
        (CauseKind.SLOW_RANK, budget.skew),
    ):
        if part is not None and lost > 0 and part >= NAMED_SHARE * lost:
            loss = EfficiencyLoss(gpus=budget.key.gpus, lost=lost, part=part)
            yield Cause(
                kind=kind,
                code=CauseCode.LOST_TO_IDEAL,
                share=min(1.0, part / lost),
                evidence=(loss,),
            )


def _open(
    code: CauseCode, remedy: Remedy, evidence: Sequence[LostMetric | PhaseChange] = ()
) -> Cause:
    return Cause(kind=CauseKind.NOT_ESTABLISHED, code=code, evidence=tuple(evidence), remedy=remedy)
