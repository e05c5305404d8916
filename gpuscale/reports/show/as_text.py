"""Results and baselines as text: the scaling table, phases and projections."""

from collections.abc import Iterator, Sequence

from gpuscale.analysis.projection import Projection
from gpuscale.base.devices import GPU_KINDS
from gpuscale.base.printable import visible
from gpuscale.base.units import format_percent
from gpuscale.records import Results
from gpuscale.reports import phrases
from gpuscale.reports.columns import text_table
from gpuscale.reports.screen import fitted
from gpuscale.reports.show import Shown
from gpuscale.reports.show.baseline_text import baseline_text
from gpuscale.reports.show.scaling_table import cells_under, failures, scaling_lines
from gpuscale.reports.show.step_time import connection_lines, phase_lines

_DEVICES = {
    "cpu": "cpu, over gloo",
    **{device: f"{device}, over {kind.library}" for device, kind in GPU_KINDS.items()},
}
_PROJECTED = ("case", "GPUs", "batch/GPU", "step time", "samples/s", "speedup", "efficiency")
_FIRST = ("step time", "speedup", "efficiency")


def render(shown: Shown) -> str:
    """Return a results or baseline file as text."""
    columns, steps = shown.columns, shown.steps
    if isinstance(shown.content, Results):
        lines = [*_results_lines(shown.content, shown)]
    else:
        today = shown.now.astimezone().date()
        lines = [baseline_text(shown.content, today, columns=columns, steps=steps)]
    if shown.projections:
        lines += ["", *_projections(shown.projections, columns, steps)]
    return "\n".join(lines)


def _results_lines(results: Results, shown: Shown) -> Iterator[str]:
    columns = shown.columns
    yield from fitted(_origin(results, shown), columns)
    if shown.phases:
        yield from phase_lines(results.runs, columns)
        if connections := [*connection_lines(results.runs)]:
            yield from ("", *fitted(connections, columns))
        return
    if results.runs:
        yield from scaling_lines(results, columns, shown.steps)
    else:
        yield "no run was recorded"
    yield from fitted(failures(results.runs), columns)


def _origin(results: Results, shown: Shown) -> Iterator[str]:
    """Yield the file, time, machine and software of the results, then an empty line."""
    environment = results.environment
    if results.injections:
        yield phrases.injection_warning(results.injections)
    yield f"results   {visible(str(shown.path))}"
    moment, age = phrases.to_minutes(results.created_at), phrases.age_text(results, shown.now)
    yield f"measured  {moment} UTC by gpuscale {results.gpuscale_version}{age}"
    device = _DEVICES.get(environment.device, environment.device)
    yield f"machine   {environment.host}: {environment.hardware_label} (device: {device})"
    if software := phrases.software_text(environment):
        yield f"software  {software}"
    if environment.job_id is not None:
        yield f"job       {environment.scheduler} {environment.job_id}"
    yield ""


def _projections(
    projections: Sequence[Projection], columns: int, steps: int | None
) -> Iterator[str]:
    """Yield the table of projections, then what they are based on and their known errors."""
    title = "further than measured: a projection, which no verdict rests on; bands: 95 %"
    yield from fitted([title], columns)
    yield ""
    names = phrases.set_apart([each.configuration for each in projections])
    headers = [*_PROJECTED, *(["GPU-hours"] if steps else [])]
    points = [point for projection in projections for point in projection.points]
    yield text_table(cells_under(headers, points, (), steps), columns, first=_FIRST)
    yield ""
    for projection in projections:
        name = names[projection.configuration]
        yield from fitted((f"{name}: {each}" for each in _rests_on(projection)), columns)


def _rests_on(projection: Projection) -> Iterator[str]:
    """Yield what a projection is based on, and its known errors."""
    measured = phrases.gpus_text(*projection.measured)
    yield f"from {measured}, {projection.scaling} scaling"
    for each in projection.left_out:
        off = f"{format_percent(abs(each.error))} too {'long' if each.error > 0 else 'short'}"
        fitted_to = phrases.enumerated(each.fitted)
        yield (
            f"the same from {fitted_to} gives a step time on {phrases.gpus_text(each.gpus)} that "
            f"is {off}"
        )
    if projection.on_one_node:
        yield "measured on one node: links between nodes are in neither the numbers nor the bands"
