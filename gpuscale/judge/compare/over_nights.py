"""Judge a nightly run against earlier ones, to find lasting losses that one comparison misses."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from msgspec.structs import replace as with_fields

from gpuscale.analysis.history import History, history_of_nights, nights_before
from gpuscale.analysis.nights import environment_at, left_out_of, nights_of
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
    """Nightly runs before the current one."""

    history: History
    """The history of these nights and the current one."""
    last: list[Results]
    """Results of the last 15 nights; a row's runs before its last change of level are left out."""
    later: int
    """Number of nightly runs that began after the current one; they are ignored."""


def earlier_nights(read: Sequence[Results], tonight: Sequence[Results]) -> EarlierNights:
    """Return the nightly runs in `read` that began before `tonight`, the current one.

    Raise UsageError if there are none.
    """
    present = nights_of(tonight)
    names = {night.allocation for night in present}
    others = [night for night in nights_of(read) if night.allocation not in names]
    earlier = [night for night in others if not present or night.began_at < present[0].began_at]
    later = len(others) - len(earlier)
    if not earlier:
        remedy = f"; {later} began later: was a clock wrong?" if later else ""
        problem = "no night with a valid run began before these results"
        raise UsageError(f"--history: {problem}{remedy}")
    history = history_of_nights((*earlier, *present), left_out_of([*read, *tonight]))
    on_level = _on_present_levels(history_of_nights(tuple(earlier)))
    last = _chosen(read, lambda run, at: (PointKey.of(run), at) in on_level)
    return EarlierNights(history=history, last=last, later=later)


def _on_present_levels(history: History) -> set[tuple[PointKey, str]]:
    """Return (row, allocation) pairs of the recent nights on which a row was at its current level.

    Nights at other levels would widen the spread so much that a new loss might be missed; changes
    to a slower level are reported separately.
    """
    tonight = len(history.nights)
    return {
        (row.point, history.nights[night].allocation)
        for row in history.rows
        for night in nights_before(tonight, row.point, history.nights, row.changes)
    }


def last_night(read: Sequence[Results]) -> list[Results]:
    """Return the results of the latest nightly run; raise UsageError if no run is valid."""
    nights = nights_of(read)
    if not nights:
        raise UsageError("the results hold no valid run")
    last = nights[-1].allocation
    return _chosen(read, lambda _, allocation: allocation == last)


def _chosen(read: Sequence[Results], keeps: Callable[[Run, str], bool]) -> list[Results]:
    """Return results with only the runs that `keeps` accepts; omit excluded or empty results."""
    return [
        with_fields(result, runs=runs)
        for result in read
        if not result.left_out
        and (runs := tuple(run for run in result.runs if keeps(run, result.allocation_of(run))))
    ]


def with_levels(comparison: Comparison, history: History) -> Comparison:
    """Return the comparison, with rows that recently dropped to a slower level marked `regressed`.

    The comparison alone would miss a slow drift or a loss that was never repaired, since the nights
    it compares with may be slow already.
    """
    losses = {(row.point.configuration, row.point.gpus): row.recent_loss for row in history.rows}
    names = history.names

    def judged(entry: EntryVerdict) -> EntryVerdict:
        entry = _refer_to_nights(entry)
        lost = None
        if entry.configuration is not None and entry.verdict.is_judged:
            lost = losses.get((entry.configuration, entry.key.gpus))
        if lost is None:
            return entry
        onset = names[lost.onset]
        # A drift has no first night.
        since = None if lost.kind == "drift" else onset
        if entry.verdict.is_loss:
            # Unless the level is new, the nights compared with share it, so this loss is tonight's.
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


def _refer_to_nights(entry: EntryVerdict) -> EntryVerdict:
    """Return the entry; if its reason is a missing baseline row, name earlier nights instead."""
    reason = entry.reason
    if reason.code == "no_entry":
        reason = Statement.of("no_earlier_night")
    elif reason.code == "no_entry_alike":
        reason = Statement.of("no_earlier_night_alike", **reason.facts)
    return replace(entry, reason=reason)
