"""What is said where no part of a step, or not enough of them, carries the loss."""

from collections.abc import Iterator, Sequence

from gpuscale.diagnose.changes import Change
from gpuscale.diagnose.row import Row
from gpuscale.diagnose.wording import added, device_name, from_to, symptom_lines, then_and_now
from gpuscale.records import Cause, CauseKind, EntryVerdict

NOT_ESTABLISHED = CauseKind.NOT_ESTABLISHED.value


def rest_cause(change: Change, row: Row) -> Cause:
    """Time that neither a rank's own pace nor gradient synchronisation holds."""
    return Cause(
        kind=CauseKind.NOT_ESTABLISHED,
        headline=f"{NOT_ESTABLISHED} {added(change.lost_s)}",
        statement=(
            f"training takes {then_and_now(change.then_s, change.now_s)} beyond the slowest rank's "
            "own pace and the communication, as where ranks are slow in turn within a run"
        ),
        share=change.share,
        lost_s=change.lost_s,
        scope=row.scope(change.part),
        next_step=f"look for other jobs and daemons on {', '.join(row.hosts)}",
    )


def fault_causes(row: Row, named: Sequence[Cause]) -> Iterator[Cause]:
    """Faults of devices that no lost time was seen to come from, one cause for each kind."""
    told = {line for cause in named for line in cause.evidence}
    faults = [symptom for symptom in row.symptoms if symptom.is_fault]
    for kind in dict.fromkeys(symptom.kind for symptom in faults):
        found = [s for s in faults if s.kind is kind]
        untold = [s for s in found if not any(s.uuid in line and s.text in line for line in told)]
        if untold:
            first = untold[0]
            more = f" and {len(untold) - 1} more" if len(untold) > 1 else ""
            yield Cause(
                kind=kind,
                headline=f"{first.text} on {device_name(first.uuid, first.host)}{more}",
                statement="it was not so in the baseline, and how much time it costs is not known",
                hosts=tuple(dict.fromkeys(s.host for s in untold if s.host is not None)),
                device_uuids=tuple(dict.fromkeys(s.uuid for s in untold)),
                evidence=symptom_lines(untold) if len(untold) > 1 else (),
                next_step="run 'gpuscale doctor' there: it names each fault with its remedy",
            )


def unexplained_cause(row: Row, entry: EntryVerdict) -> Cause:
    """No part of the step carries the loss: why it cannot be told, and what would tell it."""
    other = [m.metric.words for m in entry.metrics if m.verdict.is_loss]
    if other and (entry.change is None or entry.change.value >= 0):
        return _without_evidence(
            f"{' and '.join(other)} got worse and the step did not get longer",
            "look at what changed in the case, the library and the environment",
        )
    if not row.sides.then:
        return _without_evidence(
            "the baseline keeps no phases and paces of these runs",
            "record the baseline again: 'gpuscale baseline record' keeps them",
        )
    if not row.sides.now:
        return _without_evidence(
            "the results hold no phases and paces of these runs",
            "measure again with this gpuscale",
        )
    runs = 2 * len(row.sides.now)
    return Cause(
        kind=CauseKind.NOT_ESTABLISHED,
        headline=NOT_ESTABLISHED,
        statement="no part of the step got longer by more than its own noise",
        evidence=(
            ", ".join(
                f"{change.part.value} {from_to(change.then_s, change.now_s)}"
                for change in row.changes.values()
            ),
        ),
        next_step=f"measure more runs, with --runs {runs}",
    )


def _without_evidence(why: str, remedy: str) -> Cause:
    return Cause(
        kind=CauseKind.NOT_ESTABLISHED,
        headline=NOT_ESTABLISHED,
        statement=why,
        next_step=remedy,
    )
