"""Find the causes of a loss, without reading or writing files."""

from dataclasses import replace

from gpuscale.judge.diagnose.causes import CAUSES, published_figures, straggler_in_all_runs
from gpuscale.judge.diagnose.evidence import RowEvidence, confirmed, points_of
from gpuscale.judge.sides import Sides
from gpuscale.records import Cause, Comparison, EntryVerdict, Statement, Verdict
from gpuscale.records.cause import DeviceSymptom
from gpuscale.records.environment import gpu_places


def diagnose(sides: Sides, comparison: Comparison) -> Comparison:
    """Add the causes of losses, and of stragglers in inconclusive rows, to a comparison."""
    configurations = {entry.configuration for entry in comparison.entries if _is_diagnosed(entry)}
    places = gpu_places((*sides.before.environments, *sides.after.environments))
    points = points_of(sides, configurations)

    def causes_of(entry: EntryVerdict) -> tuple[Cause, ...]:
        assert entry.configuration is not None, "a row without one is not diagnosed"
        of_configuration = points.get(entry.configuration, {})
        if entry.key.gpus in of_configuration:
            row = RowEvidence(entry=entry, points=of_configuration)
            named: tuple[Cause, ...] = ()
            if entry.verdict.is_loss:
                for find in CAUSES:
                    named += tuple(find(row, named))
            else:
                named = tuple(straggler_in_all_runs(row))
            probes = sides.before.probes, sides.after.probes
            return tuple(confirmed(row.informed(cause), *probes) for cause in named)
        return (published_figures(),) if entry.verdict.is_loss else ()

    entries = tuple(
        replace(entry, causes=causes_of(entry)) if _is_diagnosed(entry) else entry
        for entry in comparison.entries
    )
    found = [cause for entry in entries for cause in entry.causes]
    symptoms = (each for cause in found for each in cause.evidence)
    named = {uuid for cause in found for uuid in cause.device_uuids}
    named.update(each.uuid for each in symptoms if isinstance(each, DeviceSymptom))
    notes = comparison.notes
    if shown := {uuid: at for uuid, at in places.items() if uuid in named}:
        notes += (Statement.of("gpu_places", places=shown),)
    return replace(comparison, entries=entries, notes=notes)


def _is_diagnosed(entry: EntryVerdict) -> bool:
    is_open = entry.verdict is Verdict.INCONCLUSIVE
    return entry.configuration is not None and (entry.verdict.is_loss or is_open)
