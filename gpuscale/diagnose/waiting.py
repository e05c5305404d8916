"""The cause behind steps that wait longer: for other ranks' gradients, or for batches."""

import statistics
from collections.abc import Sequence

from gpuscale.diagnose.changes import Change
from gpuscale.diagnose.row import Row
from gpuscale.diagnose.steps import Step
from gpuscale.diagnose.symptoms import Symptom
from gpuscale.diagnose.wording import added, from_to, symptom_lines, then_and_now
from gpuscale.records import Cause, CauseKind


def communication_cause(change: Change, row: Row) -> Cause:
    """Gradient synchronisation that is not hidden behind the backward pass takes longer."""
    links = [s for s in row.symptoms if s.kind in (CauseKind.NVLINK, CauseKind.PCIE)]
    kinds = {symptom.kind for symptom in links}
    kind = next((k for k in (CauseKind.NVLINK, CauseKind.PCIE) if k in kinds), None)
    return Cause(
        kind=kind or CauseKind.COMMUNICATION,
        headline=f"exposed all-reduce {added(change.lost_s)}{_by(kind)}",
        statement=(
            "gradient synchronisation holds all ranks up for "
            f"{then_and_now(change.then_s, change.now_s)}"
        ),
        share=change.share,
        lost_s=change.lost_s,
        scope=row.scope(change.part),
        evidence=symptom_lines(links),
        next_step=_look_at_links(row),
    )


def _look_at_links(row: Row) -> str:
    if row.configuration.device == "cuda":
        return (
            "run 'gpuscale doctor' on each host, and measure again with NCCL_DEBUG=INFO, which "
            "logs how NCCL connects the GPUs"
        )
    if row.sides.nodes > 1:
        return "test the network between the hosts without gpuscale, and look for its other users"
    return "look for other processes on the host: on one host, ranks on CPU talk through its memory"


def data_cause(change: Change, row: Row) -> Cause:
    """All ranks, or most of them, wait longer for their batches or for the copy of them."""
    waits, copies = (
        [_mean_phases(steps)[phase] for steps in (row.sides.then, row.sides.now)]
        for phase in (0, 1)
    )
    is_copy = copies[1] - copies[0] > waits[1] - waits[0]
    links: list[Symptom] = []
    if is_copy:
        links = [symptom for symptom in row.symptoms if symptom.kind is CauseKind.PCIE]
    who = row.whose(lambda rank: rank.data_s)
    return Cause(
        kind=CauseKind.PCIE if links else CauseKind.DATA,
        headline=f"{'h2d' if is_copy else 'data'} {added(change.lost_s)}"
        f"{_by(CauseKind.PCIE if links else None)}",
        statement=f"batches take {then_and_now(change.then_s, change.now_s, on=who)}",
        share=change.share,
        lost_s=change.lost_s,
        scope=row.scope(change.part),
        evidence=(f"waiting {from_to(*waits)}, copying {from_to(*copies)}", *symptom_lines(links)),
        next_step=_look_at_copies() if is_copy else look_at_loaders(row),
    )


def look_at_loaders(row: Row) -> str:
    """What tells more about late batches."""
    if row.configuration.data == "real":
        return (
            "measure again without --data-root: where synthetic data are in time, look at storage"
        )
    return (
        "look for other load on the hosts' CPUs, since synthetic data come from no storage, and "
        "measure with more --data-workers"
    )


def _look_at_copies() -> str:
    return "run 'gpuscale doctor' while a training runs: it tells the PCIe link of each GPU"


def _mean_phases(steps: Sequence[Step]) -> tuple[float, float]:
    """Waiting for and copying batches, of the median rank."""
    phases = [step.median.phases for step in steps]
    return statistics.fmean(p.data_s for p in phases), statistics.fmean(p.h2d_s for p in phases)


def _by(kind: CauseKind | None) -> str:
    return "" if kind is None else f" ({kind.value})"
