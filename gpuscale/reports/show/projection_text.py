"""Projections as text: what was not measured, and how wrong the same method is where it was."""

from collections.abc import Iterator, Sequence

from gpuscale.projection import Projection
from gpuscale.reports import phrases
from gpuscale.reports.screen import fitted, table
from gpuscale.reports.show.scaling_rows import projected_row
from gpuscale.reports.show.scaling_table import cells_under, hours_header
from gpuscale.units import format_percent

_HEADERS = ("case", "gpus", "batch/gpu", "step time", "samples/s", "speedup", "efficiency")
_FIRST = ("step time", "speedup", "efficiency")


def projection_lines(
    projections: Sequence[Projection], columns: int | None, steps: int | None
) -> Iterator[str]:
    """A row for each number of GPUs that was not measured, and what is known of its error."""
    title = "further than measured: a projection, which no verdict rests on; bands: 95 %"
    yield from fitted([title], columns)
    yield ""
    names = phrases.set_apart([each.configuration for each in projections])
    headers = [*_HEADERS, *hours_header(steps)]
    rows = [
        projected_row(projection.configuration, point, steps)
        for projection in projections
        for point in projection.points
    ]
    yield table(headers, cells_under(headers, rows), columns, first=_FIRST)
    yield ""
    for projection in projections:
        name = names[projection.configuration]
        yield from fitted((f"{name}: {each}" for each in projection_notes(projection)), columns)


def projection_notes(projection: Projection) -> Iterator[str]:
    """What a projection rests on, and by how much it errs where its end is known."""
    measured = phrases.gpus_text(*projection.measured)
    yield f"from {measured}, {projection.scaling} scaling"
    for each in projection.left_out:
        off = f"{format_percent(abs(each.error))} too {'long' if each.error > 0 else 'short'}"
        fitted_to = phrases.numbers_text(each.fitted)
        yield (
            f"the same from {fitted_to} gives a step time on {phrases.gpus_text(each.gpus)} that "
            f"is {off}"
        )
    if projection.on_one_node:
        yield "measured on one node: links between nodes are in neither the numbers nor the bands"
