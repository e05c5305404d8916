"""Explanations that several rows share: one sentence with its causes."""

from collections.abc import Sequence
from typing import NamedTuple

from gpuscale.records import (
    Cause,
    EntryVerdict,
    Estimate,
    Finding,
    QuantityName,
    Statement,
    Verdict,
)
from gpuscale.records.cause import DeviceSymptom, EfficiencyLoss, PhaseChange
from gpuscale.reports.comparison.rows import Row, ShownCause, subject_of
from gpuscale.reports.reason_words import WORDS


class Explanation(NamedTuple):
    """An explanation of one or more rows."""

    subject: str
    """`mnist_cnn/ddp on 1, 2 and 4 GPUs`; `all 3 rows (numbers of 4 GPUs)`."""
    reason: str
    lost_metrics: tuple[str, ...]
    causes: tuple[ShownCause, ...]
    rows: tuple[Row, ...]


def explanations(rows: Sequence[Row]) -> list[Explanation]:
    """The explanations of the verdicts; a row whose numbers say everything needs none.

    Rows with the same finding, causes and lost metrics share an explanation, with the numbers of
    the row on the most GPUs.
    """
    alike: dict[object, list[Row]] = {}
    for row in rows:
        if row.reason and not _is_said_by_its_numbers(row.entry):
            alike.setdefault(_likeness(row), []).append(row)
    said_by: dict[str, str] = {}
    found = []
    for group in alike.values():
        subject = subject_of(group, rows)
        shown = max(group, key=lambda row: row.entry.key.gpus)
        causes = []
        for cause in shown.causes:
            step = cause.next_step
            if step in said_by:
                said = said_by[step]
                step = "as above" if said == subject else f"as for {said}"
            elif step:
                said_by[step] = subject
            causes.append(cause._replace(next_step=step))
        if len({row.reason for row in group}) > 1:
            one_name = len({row.name for row in group}) == 1
            subject += f" (numbers of {shown.gpus if one_name else shown.label})"
        reason, metrics = shown.reason, shown.lost_metrics
        found.append(Explanation(subject, reason, metrics, tuple(causes), tuple(group)))
    return found


def _is_said_by_its_numbers(entry: EntryVerdict) -> bool:
    """True for a pass without anything to add, such as an unknown speedup."""
    if any(each.verdict.is_loss for each in entry.metrics):
        return False
    if entry.verdict is Verdict.OK:
        return entry.finding is None and entry.changed_quantity is not QuantityName.THROUGHPUT
    return entry.verdict.is_pass and WORDS[entry.reason.code].is_in_table


def _likeness(row: Row) -> object:
    """A value that is equal for rows that differ only in their numbers."""
    entry = row.entry
    # The reason names other numbers of GPUs, which a slower single GPU makes irrelevant.
    code = None if entry.finding is Finding.SINGLE_GPU_SLOWDOWN else _kind(entry.reason)
    metrics = tuple(each.metric.name for each in entry.metrics if each.verdict.is_loss)
    causes = tuple(map(likeness_of_cause, entry.causes))
    return entry.verdict, entry.finding, entry.since, code, metrics, causes


def _kind(statement: Statement) -> object:
    """The statement without its numbers; a quantity only counts as efficiency or not.

    On one GPU there is no efficiency, so its sentence must not stand for the throughput there.
    """
    facts = []
    for name, value in statement.facts.items():
        if isinstance(value, Statement):
            facts.append((name, _kind(value)))
        elif name in ("quantity", "published"):
            facts.append((name, value == QuantityName.EFFICIENCY))
        elif not isinstance(value, int | float | Estimate | None):
            facts.append((name, repr(value)))
    code = "bounded_loss" if statement.code == "no_loss" else statement.code
    return code, tuple(facts)


def likeness_of_cause(cause: Cause) -> object:
    """A value that is equal for causes that differ only in the devices of a host."""
    seen = {
        (each.counter, each.reason, each.host) if isinstance(each, DeviceSymptom) else each
        for each in cause.evidence
        if not isinstance(each, PhaseChange | EfficiencyLoss)
    }
    alone = () if cause.ranks or cause.code == "device_fault" else cause.device_uuids
    return cause.kind, cause.code, cause.ranks, cause.hosts, alone, cause.remedy, frozenset(seen)
