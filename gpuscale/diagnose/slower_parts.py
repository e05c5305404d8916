"""Parts of a step that take longer on all ranks, or on most of them."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gpuscale.diagnose.attribution import Part, Rank
from gpuscale.diagnose.devices import explaining_clocks
from gpuscale.diagnose.row import Row
from gpuscale.records.cause import Cause, CauseCode, CauseKind, PhaseChange, Remedy, RemedyCode
from gpuscale.strategies import STRATEGIES


def communication(row: Row, named: Sequence[Cause]) -> Iterator[Cause]:
    """Gradient synchronisation that is not hidden behind the backward pass takes longer."""
    change = row.standing_out(Part.COMMUNICATION)
    if change is None:
        return
    links = [s for s in row.symptoms if s.kind in (CauseKind.NVLINK, CauseKind.PCIE)]
    kinds = {symptom.kind for symptom in links}
    kind = next((k for k in (CauseKind.NVLINK, CauseKind.PCIE) if k in kinds), None)
    yield replace(
        row.cause(change, kind or CauseKind.COMMUNICATION, CauseCode.COMMUNICATION),
        evidence=tuple(links),
        remedy=_look_at_links(row),
    )


def data(row: Row, named: Sequence[Cause]) -> Iterator[Cause]:
    """Batches come later, or are copied later."""
    change = row.standing_out(Part.DATA)
    if change is None:
        return
    waiting = _phase("waiting", row, lambda rank: rank.phases.data_s)
    copying = _phase("copying", row, lambda rank: rank.phases.h2d_s)
    is_copy = copying.after_s - copying.before_s > waiting.after_s - waiting.before_s
    links = [s for s in row.symptoms if is_copy and s.kind is CauseKind.PCIE]
    yield replace(
        row.cause(
            change,
            CauseKind.PCIE if links else CauseKind.DATA,
            CauseCode.LATE_COPIES if is_copy else CauseCode.LATE_BATCHES,
        ),
        shared_by=row.shared_by(lambda rank: rank.data_s),
        evidence=(waiting, copying, *links),
        remedy=Remedy(code=RemedyCode.COPIES) if is_copy else look_at_loaders(row),
    )


def computing(row: Row, named: Sequence[Cause]) -> Iterator[Cause]:
    """Ranks take longer on their own, without waits for others."""
    change = row.standing_out(Part.COMPUTING)
    if change is None:
        return
    ranks = [rank for step in row.point.after for rank in step.ranks]
    uuids = frozenset(uuid for rank in ranks for uuid in rank.device_uuids)
    clocks = explaining_clocks(row.symptoms, uuids, change.growth)
    kind = CauseKind.CLOCKS if clocks else CauseKind.COMPUTE
    demands = STRATEGIES.get(row.point.key.configuration.strategy)
    yield replace(
        row.cause(change, kind, CauseCode.COMPUTING),
        shared_by=row.shared_by(lambda rank: rank.computing_s),
        includes=demands.inside_computing if demands and row.point.key.gpus > 1 else None,
        evidence=(
            _phase("forward", row, lambda rank: rank.phases.forward_s),
            _phase("backward", row, lambda rank: rank.backward_s),
            _phase("optimizer", row, lambda rank: rank.phases.optimizer_s),
            *clocks,
        ),
        remedy=look_at_devices(row, row.hosts),
    )


def time_in_no_part(row: Row, named: Sequence[Cause]) -> Iterator[Cause]:
    """Time that neither a rank's own pace nor gradient synchronisation holds."""
    if change := row.standing_out(Part.REST):
        yield replace(
            row.cause(change, CauseKind.NOT_ESTABLISHED, CauseCode.TIME_IN_NO_PART),
            remedy=Remedy(code=RemedyCode.JOBS_ON_HOSTS, hosts=row.hosts),
        )


def look_at_devices(row: Row, hosts: tuple[str, ...]) -> Remedy:
    """What tells more about ranks that compute slowly there."""
    on_cpu = row.point.key.configuration.device == "cpu"
    code = RemedyCode.PROCESSES_ON_HOSTS if on_cpu else RemedyCode.DOCTOR_ON_HOSTS
    return Remedy(code=code, hosts=hosts)


def look_at_loaders(row: Row) -> Remedy:
    """What tells more about late batches."""
    is_real = row.point.key.configuration.data == "real"
    return Remedy(code=RemedyCode.STORAGE if is_real else RemedyCode.CPU_LOAD)


def _look_at_links(row: Row) -> Remedy:
    if row.point.key.configuration.device == "cuda":
        return Remedy(code=RemedyCode.GPU_LINKS)
    across = row.point.nodes > 1
    return Remedy(code=RemedyCode.NETWORK if across else RemedyCode.PROCESSES_ON_HOST)


def _phase(name: str, row: Row, seconds: Callable[[Rank], float]) -> PhaseChange:
    """Of the median rank, as means over runs."""
    before_s, after_s = (
        statistics.fmean(seconds(step.median) for step in steps)
        for steps in (row.point.before, row.point.after)
    )
    return PhaseChange(name=name, before_s=before_s, after_s=after_s)
