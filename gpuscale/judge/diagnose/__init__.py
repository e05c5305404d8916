"""Find the causes of a loss, without reading or writing files.

A new cause needs a finder function in this package, an entry in `OF_PARTS` or `CAUSES`, and words
in `reports.cause_words`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from gpuscale.analysis.budget import budgets_of
from gpuscale.judge.diagnose import causes
from gpuscale.judge.diagnose.attribution import Change, Part
from gpuscale.judge.diagnose.evidence import RowEvidence, onset_of, points_of
from gpuscale.judge.diagnose.probes import confirmed
from gpuscale.judge.diagnose.stragglers import slow_device, straggler_in_all_runs, stragglers
from gpuscale.judge.sides import Sides
from gpuscale.records import (
    Cause,
    Comparison,
    EntryVerdict,
    MetricSpec,
    QuantityName,
    Statement,
    Verdict,
)
from gpuscale.records.cause import DeviceSymptom
from gpuscale.records.environment import gpu_places

OF_PARTS: Mapping[Part, Callable[[RowEvidence, Change], Cause]] = {
    Part.COMMUNICATION: causes.communication,
    Part.DATA: causes.data,
    Part.COMPUTING: causes.computing,
    Part.SKEW: stragglers,
    Part.REST: causes.time_in_no_part,
}
"""Functions that find the cause of time lost in each part of a step."""


def lost_parts(row: RowEvidence, named: Sequence[Cause]) -> Iterator[Cause]:
    """Yield a cause for each part of the step that lost enough time to be named, largest first."""
    finding = row.entry.finding
    parts: Collection[Part] = OF_PARTS
    if isinstance(finding, MetricSpec):
        # Time does not explain memory or energy; exposed communication has a part of its own.
        parts = [Part.COMMUNICATION] if finding.in_points else []
    changes = row.point.changes
    standing_out = [changes[part] for part in parts if part in changes and changes[part].stands_out]
    for change in sorted(standing_out, key=lambda change: -change.lost_s):
        yield structs.replace(
            OF_PARTS[change.part](row, change),
            share=change.share,
            lost_s=change.lost_s,
            before_s=change.before_s,
            after_s=change.after_s,
            onset=onset_of(change.part, row.point, row.points),
        )


CAUSES: tuple[Callable[[RowEvidence, Sequence[Cause]], Iterator[Cause]], ...] = (
    slow_device,
    lost_parts,
    causes.device_faults,
    causes.busy_host,
    causes.not_established,
    causes.environment,
)
"""Functions that find causes, in the order of report; each receives the causes found so far."""
_OF_OPEN_ROWS = (slow_device, straggler_in_all_runs)


def diagnose(sides: Sides, comparison: Comparison) -> Comparison:
    """Add causes to each loss, and slow devices or persistent stragglers to inconclusive rows."""
    configurations = {entry.configuration for entry in comparison.entries if _is_diagnosed(entry)}
    if not configurations:
        return comparison
    before, after = sides.environments
    all_places = gpu_places((*before, *after))
    points = points_of(sides, configurations)
    measured = budgets_of(sides.after.entries if sides.published else ())
    budgets = {(budget.configuration, budget.key): budget for budget in reversed(measured)}

    def causes_of(entry: EntryVerdict) -> tuple[Cause, ...]:
        assert entry.configuration is not None, "a row without one is not diagnosed"
        of_configuration = points.get(entry.configuration, {})
        if entry.key.gpus in of_configuration:
            row = RowEvidence(entry=entry, points=of_configuration)
            named: tuple[Cause, ...] = ()
            for find in CAUSES if entry.verdict.is_loss else _OF_OPEN_ROWS:
                named += tuple(find(row, named))
            return with_probes(named)
        if entry.verdict.is_loss:
            # A gap to a published throughput is not a gap to ideal scaling.
            is_of_speedup = entry.changed_quantity is QuantityName.EFFICIENCY
            budget = budgets.get((entry.configuration, entry.key)) if is_of_speedup else None
            return with_probes(tuple(causes.lost_to_ideal(budget)))
        return ()

    def with_probes(named: tuple[Cause, ...]) -> tuple[Cause, ...]:
        probes = sides.before.probes, sides.after.probes
        return tuple(confirmed(cause, *probes) for cause in named) if all(probes) else named

    entries = tuple(
        replace(entry, causes=causes_of(entry)) if _is_diagnosed(entry) else entry
        for entry in comparison.entries
    )
    named = _named_devices(entries)
    notes = comparison.notes
    if places := {uuid: at for uuid, at in all_places.items() if uuid in named}:
        notes += (Statement.of("gpu_places", places=places),)
    return replace(comparison, entries=entries, notes=notes)


def _named_devices(entries: Sequence[EntryVerdict]) -> set[str]:
    """Return the UUIDs of all devices named in the causes."""
    return {
        uuid
        for entry in entries
        for cause in entry.causes
        for uuid in (
            *cause.device_uuids,
            *(found.uuid for found in cause.evidence if isinstance(found, DeviceSymptom)),
        )
    }


def _is_diagnosed(entry: EntryVerdict) -> bool:
    is_open = entry.verdict is Verdict.INCONCLUSIVE
    return entry.configuration is not None and (entry.verdict.is_loss or is_open)
