"""Changes of a baseline: what new results would make of it, and the baseline that was approved."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gpuscale.errors import UsageError
from gpuscale.recording.entries import Entry, entry_label, measured_entry, runs_by_entry
from gpuscale.recording.measured import (
    MINIMUM_RUNS,
    environments_of,
    measured_at,
    refuse_injections,
    versions_of,
)
from gpuscale.records import Baseline, BaselineChange, MeasuredEntry, Results

EVERYTHING = "all"
"""The selector of every proposal that can be accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What the results would put in the place of one entry."""

    label: str
    """Of the row, with what tells it from others of the same name."""
    old: MeasuredEntry | None
    """None where the baseline has no such entry."""
    new: MeasuredEntry
    obstacle: str = ""
    """Why it cannot be accepted; empty where it can."""

    @property
    def selectors(self) -> tuple[str, ...]:
        """What a user may call it, the shortest that names its row first."""
        case, label, gpus = self.new.key.case, self.new.configuration.label, self.new.gpus
        return (f"{label}@{gpus}", f"{case}@{gpus}", label, case)


def proposals(
    baseline: Baseline, results: Sequence[Results], *, minimum_runs: int = MINIMUM_RUNS
) -> tuple[Proposal, ...]:
    """What would change: those entries of the results that the baseline has not just like that.

    The order is that of the baseline, with new entries behind.

    Raises:
        UsageError: faults made on purpose, or runs of one entry that differ in batch or shape.
    """
    refuse_injections(results)
    entries = runs_by_entry(results)
    known = {_entry_of(entry): entry for entry in baseline.measured}
    ordered = [*(e for e in known if e in entries), *(e for e in entries if e not in known)]
    found = []
    for entry in ordered:
        if not entries[entry]:
            continue
        old, new = known.get(entry), measured_entry(entry, entries[entry], entries)
        if old is None or not _same_runs(old, new):
            obstacle = _obstacle(len(new.runs), minimum_runs)
            label = entry_label(entry, {*entries, *known})
            found.append(Proposal(label=label, old=old, new=new, obstacle=obstacle))
    return tuple(found)


def accepted(found: Sequence[Proposal], selectors: Collection[str]) -> tuple[Proposal, ...]:
    """The proposals that the selectors name: `all`, or each `CASE[/STRATEGY][@GPUS]`.

    `all` takes what can be accepted; a selector that names a row asks for just that.

    Raises:
        UsageError: a selector names nothing, or something that cannot be accepted.
    """
    chosen = []
    for selector in selectors:
        named = [p for p in found if selector == EVERYTHING or selector in p.selectors]
        if not named and selector != EVERYTHING:
            choice = ", ".join(dict.fromkeys(p.selectors[0] for p in found)) or "nothing"
            raise UsageError(f"--accept {selector}: no such change; there is {choice}")
        refused = [proposal for proposal in named if proposal.obstacle]
        if refused and selector != EVERYTHING:
            why = f"{refused[0].label} {refused[0].obstacle}"
            raise UsageError(f"--accept {selector}: {why}; nothing was written")
        chosen += [proposal for proposal in named if not proposal.obstacle]
    return tuple(proposal for proposal in found if proposal in chosen)


def revised(
    baseline: Baseline,
    changes: Sequence[Proposal],
    results: Sequence[Results],
    *,
    reason: str,
    at: str,
    by: str | None = None,
    expires_on: str | None = None,
) -> Baseline:
    """The baseline with the changes made, and its history with what was there before.

    Args:
        baseline: As it is.
        changes: Proposals that were approved, at least one.
        results: What the proposals were made of.
        reason: Why, in the words of whoever approved it.
        at: Now: ISO 8601 with offset.
        by: Login name.
        expires_on: A new last day of validity; None keeps the one that there is.
    """
    new = {_entry_of(change.old): change.new for change in changes if change.old is not None}
    measured = (
        *(new.get(_entry_of(entry), entry) for entry in baseline.measured),
        *(change.new for change in changes if change.old is None),
    )
    replaced = tuple(change.old for change in changes if change.old is not None)
    used, gone = _allocations(measured), _allocations(replaced)
    fresh = {name: its for name, its in environments_of(results).items() if name in used}
    change = BaselineChange(
        at=at,
        reason=reason,
        by=by,
        replaced=tuple(_without_evidence(entry) for entry in replaced),
        added=tuple(change.label for change in changes if change.old is None),
        environments={
            name: its for name, its in baseline.environments.items() if name in gone - used
        },
    )
    kept = {name: its for name, its in baseline.environments.items() if name not in gone - used}
    versions = (baseline.gpuscale_version or "").split(", ")
    return replace(
        baseline,
        measured=measured,
        environments={**kept, **fresh},
        gpuscale_version=", ".join(dict.fromkeys(filter(None, [*versions, versions_of(results)]))),
        recorded_at=max(
            filter(None, [baseline.recorded_at, measured_at(results)]), key=datetime.fromisoformat
        ),
        expires_on=expires_on or baseline.expires_on,
        history=(*baseline.history, change),
    )


def _entry_of(measured: MeasuredEntry) -> Entry:
    return Entry(measured.configuration, measured.gpus)


def _obstacle(runs: int, minimum_runs: int) -> str:
    if runs >= minimum_runs:
        return ""
    return f"has {runs} valid run{'' if runs == 1 else 's'}, and an entry needs {minimum_runs}"


def _same_runs(one: MeasuredEntry, other: MeasuredEntry) -> bool:
    sides = (Counter((r.step_time_s, r.allocation) for r in entry.runs) for entry in (one, other))
    workloads = ((e.batch_per_gpu, e.sample_shape) for e in (one, other))
    return len(set(workloads)) == 1 and next(sides) == next(sides)


def _allocations(entries: Sequence[MeasuredEntry]) -> set[str]:
    return {run.allocation for entry in entries for run in entry.runs}


def _without_evidence(entry: MeasuredEntry) -> MeasuredEntry:
    return replace(entry, runs=tuple(replace(run, evidence=None) for run in entry.runs))
