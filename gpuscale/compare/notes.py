"""What a reader must know beside the rows: how sure the baseline is, what was left out."""

from collections.abc import Collection, Iterable, Sequence

from gpuscale.compare.levels import MINIMUM_ALLOCATIONS
from gpuscale.compare.matching import Current, Row
from gpuscale.records import Baseline, EntryVerdict, MeasuredEntry
from gpuscale.scaling import unit_error_note
from gpuscale.units import format_percent

ENOUGH_RUNS = 6


def notes_of(
    baseline: Baseline,
    rows: Sequence[Row],
    entries: Sequence[EntryVerdict],
    currents: Sequence[Current],
    cases: Collection[str] | None,
) -> tuple[str, ...]:
    """All notes of a comparison, each one line, in order of weight."""
    judged = [entry for row in rows if row.obstacle is None and (entry := row.entry)]
    return tuple(
        dict.fromkeys(
            (
                *_emptiness(baseline, rows, currents, cases),
                *_idle_overrides(baseline),
                *_allocations(baseline, judged),
                *_few_runs(judged),
                *_same_allocation(rows),
                *_published(rows),
                *_failed_runs(rows),
                *_left_out(rows, currents),
                *_unit_errors(entries),
            )
        )
    )


def _emptiness(
    baseline: Baseline,
    rows: Sequence[Row],
    currents: Sequence[Current],
    cases: Collection[str] | None,
) -> Iterable[str]:
    if not baseline.measured and not baseline.published:
        yield "the baseline has no entries; record some with 'gpuscale baseline record'"
    if not any(current.point.valid_runs for current in currents):
        yield "the results have no valid run; nothing was judged"
    for case in cases or ():
        if not any(case in (row.key.case, f"{row.key.case}/{row.key.strategy}") for row in rows):
            yield f"no row is of the case '{case}' that was asked for"
    if not rows and (baseline.measured or baseline.published or currents):
        yield "no row is left after the choice of cases and GPUs"


def _idle_overrides(baseline: Baseline) -> Iterable[str]:
    keys = [*(entry.key for entry in baseline.measured), *(fig.key for fig in baseline.published)]
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


def _allocations(baseline: Baseline, judged: Sequence[MeasuredEntry]) -> Iterable[str]:
    counts = {len({run.allocation for run in entry.runs}) for entry in judged}
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


def _few_runs(judged: Sequence[MeasuredEntry]) -> Iterable[str]:
    few = [entry for entry in judged if len(entry.runs) < ENOUGH_RUNS]
    if few:
        others = len(few) - 1
        more = f" and {others} more" if others else ""
        yield (
            f"fewer than {ENOUGH_RUNS} runs in the baseline: {few[0].key.label} "
            f"({len(few[0].runs)}){more}; intervals are wide"
        )


def _same_allocation(rows: Sequence[Row]) -> Iterable[str]:
    shared = {
        run.allocation
        for row in rows
        if row.entry is not None and row.current is not None
        for run in row.entry.runs
        if run.allocation in row.current.logs
    }
    if shared:
        yield (
            f"the results come from an allocation that the baseline was recorded in "
            f"({min(shared)}); they cannot tell what changed since"
        )


def _published(rows: Sequence[Row]) -> Iterable[str]:
    judged = [
        row.current.point.configuration
        for row in rows
        if row.figure is not None and row.obstacle is None and row.current is not None
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
        current = row.current
        if current is None or not current.point.failed_runs:
            continue
        point = current.point
        runs = point.valid_runs + point.failed_runs
        yield (
            f"{row.key.label}: {point.failed_runs} of {runs} runs failed ({current.first_failure})"
        )


def _left_out(rows: Sequence[Row], currents: Sequence[Current]) -> Iterable[str]:
    shown = {row.current.point.point_key for row in rows if row.current is not None}
    keys = {row.key for row in rows}
    for current in currents:
        point = current.point
        if point.key in keys and point.point_key not in shown:
            configuration = point.configuration
            yield (
                f"{point.key.label} was also measured with another configuration that is not "
                f"judged ({configuration.size}, {configuration.precision}, "
                f"batch {point.batch_per_gpu} per GPU)"
            )


def _unit_errors(entries: Sequence[EntryVerdict]) -> Iterable[str]:
    for entry in entries:
        for side, pair in (("baseline", entry.baseline), ("results", entry.current)):
            note = unit_error_note(entry.key, pair.efficiency)
            if note:
                yield f"{side}: {note}"
