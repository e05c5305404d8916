"""What a reader must know beside the rows: how sure the baseline is, what was left out."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from gpuscale.compare.levels import MINIMUM_ALLOCATIONS
from gpuscale.compare.matching import Entry, Row, point_differences
from gpuscale.records import Baseline, EntryVerdict
from gpuscale.scaling import unit_error_note
from gpuscale.statistics.estimates import exponential
from gpuscale.units import format_percent

ENOUGH_RUNS = 6
FAR_APART = 3.0
"""Declared deviations between allocations by which one may lie beside the others of its pool."""


def notes_of(
    baseline: Baseline,
    rows: Sequence[Row],
    entries: Sequence[EntryVerdict],
    currents: Sequence[Entry],
) -> tuple[str, ...]:
    """All notes of a comparison, each one line, in order of weight."""
    judged = [entry for row in rows if row.obstacle is None and (entry := row.before)]
    return tuple(
        dict.fromkeys(
            (
                *_emptiness(baseline, rows, currents),
                *_idle_overrides(baseline),
                *_allocations(baseline, judged),
                *_few_runs(judged),
                *_same_allocation(rows),
                *_pooled_allocations(rows, baseline),
                *_published(rows),
                *_failed_runs(rows),
                *_left_out(rows, currents),
                *_unit_errors(entries),
            )
        )
    )


def _emptiness(baseline: Baseline, rows: Sequence[Row], currents: Sequence[Entry]) -> Iterable[str]:
    if not baseline.runs and not baseline.published:
        yield "the baseline has no entries; record some with 'gpuscale baseline record'"
    if not any(current.point.valid_runs for current in currents):
        yield "the results have no valid run; nothing was judged"
    if not rows and (baseline.runs or baseline.published or currents):
        yield "no row is left after the choice of cases and GPUs"


def _idle_overrides(baseline: Baseline) -> Iterable[str]:
    keys = [*(run.key for run in baseline.runs), *(fig.key for fig in baseline.published)]
    for override in baseline.tolerances.overrides:
        if not any(override.fits(key) for key in keys):
            wanted = (
                f"{name} {value}"
                for name, value in zip(
                    ("case", "strategy", "gpus"), override.conditions, strict=False
                )
                if value is not None
            )
            yield f"an override in 'tolerances' fits no entry of the baseline ({', '.join(wanted)})"


def _allocations(baseline: Baseline, judged: Sequence[Entry]) -> Iterable[str]:
    counts = {len(entry.runs) for entry in judged}
    if not counts:
        return
    tolerances = baseline.tolerances
    few = min(counts)
    if few < MINIMUM_ALLOCATIONS:
        known = (
            "one allocation"
            if few == 1
            else f"{few} allocations, fewer than the {MINIMUM_ALLOCATIONS} that tell their spread"
        )
        yield (
            f"the baseline comes from {known}: intervals are widened by a declared deviation "
            f"between allocations ({format_percent(tolerances.allocation_deviation_time)} of T, "
            f"{format_percent(tolerances.allocation_deviation_speedup)} of S and E)"
        )
    if max(counts) >= MINIMUM_ALLOCATIONS:
        scope = "" if few >= MINIMUM_ALLOCATIONS else " of the other entries"
        yield (
            f"the spread between allocations{scope} is estimated from the baseline's "
            f"{max(counts)} allocations"
        )


def _few_runs(judged: Sequence[Entry]) -> Iterable[str]:
    few = [entry for entry in judged if entry.point.valid_runs < ENOUGH_RUNS]
    if few:
        others = len(few) - 1
        more = f" and {others} more" if others else ""
        yield (
            f"fewer than {ENOUGH_RUNS} runs in the baseline: {few[0].point.key.label} "
            f"({few[0].point.valid_runs}){more}; intervals are wide"
        )


def _same_allocation(rows: Sequence[Row]) -> Iterable[str]:
    shared = {
        allocation
        for row in rows
        if row.before is not None and row.after is not None
        for allocation in row.before.runs
        if allocation in row.after.runs
    }
    if shared:
        yield (
            f"the results come from an allocation that the baseline was recorded in "
            f"({min(shared)}); they cannot tell what changed since"
        )


def _pooled_allocations(rows: Sequence[Row], baseline: Baseline) -> Iterable[str]:
    """A pool of nights hides the one that is slow."""
    found = [
        (apart, night, row)
        for row in rows
        if row.obstacle is None and row.after is not None
        for night, apart in _beside_the_others(row.after).items()
        if abs(apart)
        > FAR_APART * baseline.tolerances.limits(row.key, "throughput").allocation_deviation
    ]
    if found:
        apart, night, row = max(found, key=lambda each: abs(each[0]))
        yield (
            f"the results are of several allocations that differ: on {row.key.label} T of {night} "
            f"is {format_percent(exponential(apart) - 1, signed=True)} beside the others; judge "
            "each alone to see which is slower"
        )


def _beside_the_others(current: Entry) -> Mapping[str, float]:
    """By how much the logarithm of T of each allocation lies above the mean of the others."""
    means = {night: statistics.fmean(logs) for night, logs in current.logs.items()}
    if len(means) == 1:
        return {}
    total = math.fsum(means.values())
    return {night: mean - (total - mean) / (len(means) - 1) for night, mean in means.items()}


def _published(rows: Sequence[Row]) -> Iterable[str]:
    judged = [
        row.after.point.configuration
        for row in rows
        if row.figure is not None and row.obstacle is None and row.after is not None
    ]
    if not judged:
        return
    yield (
        "published figures have no spread: consistent or not is told with a stated tolerance, "
        "and only to the worse side"
    )
    if any(configuration.data == "synthetic" for configuration in judged):
        yield "the published figures were made on real data, these results on synthetic data"
    for configuration in judged:
        yield (
            f"the published figures do not name their precision; {configuration.label} was "
            f"measured in {configuration.precision}"
            + (", channels_last" if configuration.channels_last else "")
            + (", compiled" if configuration.compiled else "")
        )


def _failed_runs(rows: Sequence[Row]) -> Iterable[str]:
    for row in rows:
        current = row.after
        if current is None or not current.point.failed_runs:
            continue
        point = current.point
        runs = point.valid_runs + point.failed_runs
        yield (
            f"{row.key.label}: {point.failed_runs} of {runs} runs failed ({current.first_failure})"
        )


def _left_out(rows: Sequence[Row], currents: Sequence[Entry]) -> Iterable[str]:
    """A publication names no configuration, so it is held against the plainest only."""
    for row in rows:
        if row.figure is None or row.after is None:
            continue
        shown = row.after.point
        for current in currents:
            point = current.point
            if point.key != row.key or point.point_key == shown.point_key:
                continue
            found = point_differences(shown, point)
            yield (
                f"{point.key.label} was also measured with another configuration that is not "
                f"judged ({', '.join(found)})"
            )


def _unit_errors(entries: Sequence[EntryVerdict]) -> Iterable[str]:
    for entry in entries:
        for side, pair in (("baseline", entry.baseline), ("results", entry.current)):
            note = unit_error_note(entry.key, pair.efficiency)
            if note:
                yield f"{side}: {note}"
