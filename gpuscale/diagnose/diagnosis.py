"""The causes of every loss in a comparison, the heaviest first."""

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from gpuscale.diagnose.changes import changes_of
from gpuscale.diagnose.computing import computing_cause
from gpuscale.diagnose.devices import devices_of
from gpuscale.diagnose.lagging import skew_cause
from gpuscale.diagnose.one_device import slow_device_cause
from gpuscale.diagnose.perfect import causes_against_perfect_scaling
from gpuscale.diagnose.reach import Point
from gpuscale.diagnose.row import Row
from gpuscale.diagnose.sides import Sides, runs_by_point, sides_of
from gpuscale.diagnose.steps import Part
from gpuscale.diagnose.surroundings import surroundings_cause
from gpuscale.diagnose.symptoms import symptoms_of
from gpuscale.diagnose.unexplained import fault_causes, rest_cause, unexplained_cause
from gpuscale.diagnose.waiting import communication_cause, data_cause
from gpuscale.records import (
    Baseline,
    Cause,
    Comparison,
    Configuration,
    EntryVerdict,
    Results,
    Verdict,
)
from gpuscale.scaling import PointKey

_CAUSES = {
    Part.COMMUNICATION: communication_cause,
    Part.DATA: data_cause,
    Part.COMPUTING: computing_cause,
    Part.SKEW: skew_cause,
}


def diagnose(baseline: Baseline, results: Sequence[Results], comparison: Comparison) -> Comparison:
    """The comparison with the causes of each row that says that something got worse.

    A row on one GPU that is inconclusive is given the device that makes it so, if one does.

    Args:
        baseline: What was compared with.
        results: What was compared.
        comparison: The verdicts on them.
    """
    diagnosed = [entry for entry in comparison.entries if _is_diagnosed(entry)]
    configurations = dict.fromkeys(entry.configuration for entry in diagnosed)
    before = runs_by_point(baseline.runs) if diagnosed else {}
    after = runs_by_point(run for result in results for run in result.runs) if diagnosed else {}
    sides = {
        configuration: sides_of(before, after, configuration)
        for configuration in configurations
        if configuration is not None
    }
    return replace(
        comparison,
        entries=tuple(
            replace(entry, causes=_causes(entry, baseline, results, sides, before))
            if _is_diagnosed(entry)
            else entry
            for entry in comparison.entries
        ),
    )


def _is_diagnosed(entry: EntryVerdict) -> bool:
    alone = entry.verdict is Verdict.INCONCLUSIVE and entry.key.gpus == 1
    return entry.verdict.is_loss or alone


def _causes(
    entry: EntryVerdict,
    baseline: Baseline,
    results: Sequence[Results],
    sides: Mapping[Configuration, Mapping[int, Sides]],
    before: Collection[PointKey],
) -> tuple[Cause, ...]:
    configuration = entry.configuration
    if configuration is None:
        return ()
    reference = next(
        (key for key in before if (key.configuration, key.gpus) == (configuration, entry.key.gpus)),
        None,
    )
    if reference is None:
        if not entry.verdict.is_loss:
            return ()
        return causes_against_perfect_scaling(entry, configuration, results)
    row = _row(reference, baseline, sides[configuration])
    device = slow_device_cause(row)
    first = () if device is None else (device,)
    if not entry.verdict.is_loss:
        return first
    changed = surroundings_cause(reference, baseline, results, row.sides)
    last = () if changed is None else (changed,)
    return (*first, *_established(row, entry, first), *last)


def _row(reference: PointKey, baseline: Baseline, sides: Mapping[int, Sides]) -> Row:
    own = sides[reference.gpus]
    deviation = baseline.tolerances.allocation_deviation_time
    return Row(
        configuration=reference.configuration,
        sides=own,
        points={
            gpus: Point(
                changes=changes_of(each, deviation),
                step_time_s=statistics.fmean(step.time_s for step in each.then),
                nodes=each.nodes,
            )
            for gpus, each in sides.items()
            if each.then
        },
        symptoms=symptoms_of(devices_of(own.then), devices_of(own.now)),
    )


def _established(row: Row, entry: EntryVerdict, known: Sequence[Cause]) -> Iterator[Cause]:
    """By lost time; then the faults of devices that no lost time shows."""
    timed = sorted(_timed(row), key=lambda cause: -(cause.lost_s or 0.0))
    yield from timed
    yield from fault_causes(row, (*known, *timed))
    if not timed and not known:
        yield unexplained_cause(row, entry)


def _timed(row: Row) -> Iterator[Cause]:
    """One cause for each part of the step that stands out, and one for what none of them has."""
    named = [row.changes[part] for part in _CAUSES if part in row.changes]
    named = [change for change in named if change.stands_out]
    for change in named:
        yield _CAUSES[change.part](change, row)
    rest = row.changes.get(Part.REST)
    if rest is not None and rest.stands_out:
        yield rest_cause(rest, row)
