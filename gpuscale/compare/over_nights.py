"""Judging tonight with the nights before it: what is slow for longer than one comparison sees."""

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from msgspec.structs import replace as with_fields

from gpuscale.errors import UsageError
from gpuscale.history import History, nights_of
from gpuscale.records import (
    Comparison,
    EntryVerdict,
    Finding,
    QuantityName,
    Results,
    Statement,
    Verdict,
)
from gpuscale.records.cause import Remedy
from gpuscale.statistics.levels import REMEMBERED


class EarlierNights(NamedTuple):
    """The results of the nights before one."""

    all: list[Results]
    last: list[Results]
    """Of the last 15, which tonight is compared with."""


def earlier_nights(history: Sequence[Results], tonight: Sequence[Results]) -> EarlierNights:
    """The nights that began before tonight; a UsageError where there is none."""
    its = {night.allocation: night.began_at for night in nights_of(tonight)}
    first = min(its.values(), default=None)
    before = [
        night.allocation
        for night in nights_of(history)
        if night.allocation not in its and (first is None or night.began_at < first)
    ]
    if not before:
        raise UsageError("--history: no night with a valid run began before these results")
    return EarlierNights(
        all=_of_allocations(history, {*before}),
        last=_of_allocations(history, {*before[-REMEMBERED:]}),
    )


def _of_allocations(history: Sequence[Results], chosen: Set[str]) -> list[Results]:
    return [
        with_fields(result, runs=runs)
        for result in history
        if (runs := tuple(run for run in result.runs if result.allocation_of(run) in chosen))
    ]


def with_levels(comparison: Comparison, history: History) -> Comparison:
    """The comparison, in which rows that went to a slower level in those nights are regressed.

    Nights that are slow already are among those that tonight is compared with, so a slow drift,
    or a loss that nobody mended, would pass. After 15 nights the level is what is expected.
    """
    lost = {
        (row.point.configuration, row.point.gpus): row.changes[-1]
        for row in history.rows
        if row.changes and row.level_nights <= REMEMBERED
        if row.changes[-1].throughput.value < 0
    }

    def judged(entry: EntryVerdict) -> EntryVerdict:
        entry = _beside_nights(entry)
        change = None
        if entry.configuration is not None and entry.verdict.is_judged:
            change = lost.get((entry.configuration, entry.key.gpus))
        if change is None:
            return entry
        is_drift = change.kind == "drift"
        onset = f"{history.nights[change.onset].began_at:%Y-%m-%d}"
        # A drift has no first night.
        since = None if is_drift else onset
        if entry.verdict.is_loss:
            return replace(entry, since=since)
        reason = Statement.of(
            "drifted" if is_drift else "level_lost",
            change=-change.throughput.value,
            since=onset,
            otherwise=entry.reason,
        )
        on_1 = entry.key.gpus == 1
        return replace(
            entry,
            verdict=Verdict.REGRESSED,
            finding=Finding.SLOWER_TRAINING,
            reason=reason,
            since=since,
            change=change.throughput,
            changed_quantity=QuantityName.THROUGHPUT_ON_1 if on_1 else QuantityName.THROUGHPUT,
        )

    return replace(comparison, entries=tuple(map(judged, comparison.entries)))


def _beside_nights(entry: EntryVerdict) -> EntryVerdict:
    """The row as it is told where there are nights and no baseline that could be recorded."""
    reason = entry.reason
    if reason.code == "no_entry":
        reason = Statement.of("no_earlier_night")
    elif reason.code == "no_entry_alike":
        reason = Statement.of("no_earlier_night_alike", **reason.facts)
    causes = tuple(
        with_fields(cause, remedy=None) if cause.remedy == Remedy("record_again") else cause
        for cause in entry.causes
    )
    return replace(entry, reason=reason, causes=causes)
