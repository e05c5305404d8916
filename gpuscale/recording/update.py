"""Changes of a baseline: what new results would make of it, and the baseline that was approved."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from gpuscale.errors import UsageError
from gpuscale.recording.from_results import (
    MINIMUM_RUNS,
    Entry,
    entries_of,
    entry_label,
    environments_of,
    measured_at,
    refuse_injections,
    refuse_mixed_workloads,
    valid_runs,
    versions_of,
)
from gpuscale.records import Baseline, BaselineChange, Results, Run

EVERYTHING = "all"
"""The selector of every proposal that can be accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The runs that would take the place of those of one entry."""

    label: str
    """Of the row, with what tells it from others of the same name."""
    entry: Entry
    old: tuple[Run, ...]
    """Empty where the baseline has no such entry."""
    new: tuple[Run, ...]
    obstacle: str = ""
    """Why it cannot be accepted; empty where it can."""

    @property
    def selectors(self) -> tuple[str, ...]:
        """The names that a user may give it, the shortest that names its row first."""
        (configuration, gpus), case = self.entry, self.entry.configuration.case
        label = configuration.label
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
    entries, known = entries_of(valid_runs(results)), entries_of(baseline.runs)
    ordered = [*(e for e in known if e in entries), *(e for e in entries if e not in known)]
    found = []
    for entry in ordered:
        old, new = tuple(known.get(entry, ())), tuple(entries[entry])
        refuse_mixed_workloads(entry, new, entries)
        if not _same_runs(old, new):
            label = entry_label(entry, {**entries, **known})
            obstacle = _obstacle(len(new), minimum_runs)
            found.append(Proposal(label=label, entry=entry, old=old, new=new, obstacle=obstacle))
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
    new = {change.entry: change.new for change in changes}
    kept = entries_of(baseline.runs)
    runs = tuple(run for entry in {**kept, **new} for run in new.get(entry) or kept[entry])
    replaced = tuple(run for change in changes for run in change.old)
    used, gone = _allocations(runs), _allocations(replaced)
    fresh = {name: its for name, its in environments_of(results).items() if name in used}
    change = BaselineChange(
        at=at,
        reason=reason,
        by=by,
        replaced=tuple(_without_evidence(run) for run in replaced),
        added=tuple(change.label for change in changes if not change.old),
        environments={
            name: its for name, its in baseline.environments.items() if name in gone - used
        },
    )
    environments = {
        name: its for name, its in baseline.environments.items() if name not in gone - used
    }
    versions = (baseline.gpuscale_version or "").split(", ")
    return replace(
        baseline,
        runs=runs,
        environments={**environments, **fresh},
        gpuscale_version=", ".join(dict.fromkeys(filter(None, [*versions, versions_of(results)]))),
        recorded_at=max(
            filter(None, [baseline.recorded_at, measured_at(results)]), key=datetime.fromisoformat
        ),
        expires_on=expires_on or baseline.expires_on,
        history=(*baseline.history, change),
    )


def _obstacle(runs: int, minimum_runs: int) -> str:
    if runs >= minimum_runs:
        return ""
    return f"has {runs} valid run{'' if runs == 1 else 's'}, and an entry needs {minimum_runs}"


def _same_runs(one: Sequence[Run], other: Sequence[Run]) -> bool:
    sides = (
        Counter((r.step_time_s, r.allocation, r.batch_per_gpu, r.sample_shape) for r in runs)
        for runs in (one, other)
    )
    return next(sides) == next(sides)


def _allocations(runs: Sequence[Run]) -> set[str]:
    return {run.allocation for run in runs if run.allocation is not None}


def _without_evidence(run: Run) -> Run:
    return Run(
        configuration=run.configuration,
        gpus=run.gpus,
        index=run.index,
        batch_per_gpu=run.batch_per_gpu,
        sample_shape=run.sample_shape,
        allocation=run.allocation,
        measured=run.measured,
    )
