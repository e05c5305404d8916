"""Judge a nightly run against earlier ones, to find lasting losses that one comparison misses."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from msgspec.structs import replace as with_fields

from gpuscale.analysis.history import (
    History,
    date_texts,
    environment_at,
    history_of,
    nights_before,
    nights_of,
)
from gpuscale.base.errors import UsageError
from gpuscale.records import (
    Comparison,
    EntryVerdict,
    Facts,
    Finding,
    PointKey,
    QuantityName,
    Results,
    Run,
    Statement,
    Verdict,
)


class EarlierNights(NamedTuple):
    """Results of nightly runs other than the current one."""

    all: list[Results]
    """Results of all earlier nights, plus those of excluded nights, which a history still lists."""
    last: list[Results]
    """Results of each row in those of its last 15 nights that are at its current level."""
    later: int
    """Number of nightly runs that began after the current one; they are ignored."""


def earlier_nights(history: Sequence[Results], tonight: Sequence[Results]) -> EarlierNights:
    """Return the nightly runs before the current one (`tonight`).

    Raises UsageError if there are none.
    """
    present = {night.allocation: night.began_at for night in nights_of(tonight)}
    first = min(present.values(), default=None)
    others = [night for night in nights_of(history) if night.allocation not in present]
    before = {n.allocation for n in others if first is None or n.began_at < first}
    later = len(others) - len(before)
    if not before:
        remedy = f"; {later} began later: was a clock wrong?" if later else ""
        problem = "no night with a valid run began before these results"
        raise UsageError(f"--history: {problem}{remedy}")
    earlier = _chosen(history, lambda run, result: result.allocation_of(run) in before)
    named = [result for result in history if result.left_out]
    return EarlierNights(all=[*earlier, *named], last=_on_present_levels(earlier), later=later)


def _on_present_levels(earlier: Sequence[Results]) -> list[Results]:
    """Return the valid runs of recent nights at which their row was at its current level.

    Nights at other levels would widen the spread so much that a new loss might be missed; changes
    to a slower level are reported separately.
    """
    history = history_of(earlier)
    tonight = len(history.nights)
    taken = {
        (row.point, history.nights[night].allocation)
        for row in history.rows
        for night in nights_before(tonight, row.point, history.nights, row.changes)
    }
    return _chosen(
        earlier, lambda run, result: (PointKey.of(run), result.allocation_of(run)) in taken
    )


def last_night(history: Sequence[Results]) -> list[Results]:
    """Return the results of the latest nightly run; raise UsageError if no run is valid."""
    nights = nights_of(history)
    if not nights:
        raise UsageError("the results hold no valid run")
    last = nights[-1].allocation
    return _chosen(history, lambda run, result: result.allocation_of(run) == last)


def _chosen(history: Sequence[Results], keeps: Callable[[Run, Results], bool]) -> list[Results]:
    return [
        with_fields(result, runs=runs)
        for result in history
        if not result.left_out and (runs := tuple(run for run in result.runs if keeps(run, result)))
    ]


def with_levels(comparison: Comparison, history: History) -> Comparison:
    """Mark rows as regressed if they dropped to a slower level in recent nights.

    The comparison alone would miss a slow drift or a loss that was never repaired, since the nights
    it compares with may be slow already.
    """
    losses = {(row.point.configuration, row.point.gpus): row.recent_loss for row in history.rows}
    names = date_texts([night.began_at for night in history.nights])

    def judged(entry: EntryVerdict) -> EntryVerdict:
        entry = _beside_nights(entry)
        lost = None
        if entry.configuration is not None and entry.verdict.is_judged:
            lost = losses.get((entry.configuration, entry.key.gpus))
        if lost is None:
            return entry
        onset = names[lost.onset]
        # A drift has no first night.
        since = None if lost.kind == "drift" else onset
        if entry.verdict.is_loss:
            # Compared with nights that are already on the lost level, the loss is tonight's own.
            return replace(entry, since=since) if lost.is_new else entry
        loss = -lost.throughput.value
        facts: Facts = {"loss": loss, "since": onset}
        if since is not None:
            facts["changed"] = environment_at(history.nights, lost.onset)
        reason = Statement.of("drifted" if since is None else "level_lost", **facts)
        on_1 = entry.key.gpus == 1
        return replace(
            entry,
            verdict=Verdict.REGRESSED,
            finding=Finding.SLOWER_TRAINING,
            reason=reason,
            baseline=lost.before,
            since=since,
            further_runs=None,
            change=lost.throughput,
            changed_quantity=QuantityName.THROUGHPUT_ON_1 if on_1 else QuantityName.THROUGHPUT,
        )

    tonight, notes = len(names) - 1, [*comparison.notes]
    for effect in history.nodes:
        if tonight in effect.slow and effect.speed:
            loss = -effect.speed.value
            facts: Facts = {"name": effect.node, "loss": loss, "since": names[tonight]}
            notes.append(Statement.of("slow_node", **facts))
    if history.left_out:
        notes.append(Statement.of("nights_left_out", nights=history.left_out))
    return replace(comparison, entries=tuple(map(judged, comparison.entries)), notes=tuple(notes))


def _beside_nights(entry: EntryVerdict) -> EntryVerdict:
    """Change the reason for a missing row: earlier nightly runs lack it, not a baseline."""
    reason = entry.reason
    if reason.code == "no_entry":
        reason = Statement.of("no_earlier_night")
    elif reason.code == "no_entry_alike":
        reason = Statement.of("no_earlier_night_alike", **reason.facts)
    return replace(entry, reason=reason)
