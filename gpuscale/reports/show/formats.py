"""Formats of `gpuscale show`: text, and for other tools CSV, JSON and a LaTeX table."""

import re
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

import msgspec

from gpuscale import __version__
from gpuscale.base.host import GPU_KINDS
from gpuscale.base.text import visible
from gpuscale.judge.sides import machine_label
from gpuscale.records import Configuration, Results, ScalingPoint
from gpuscale.records.environment import UNRECORDED
from gpuscale.records.record import document_text
from gpuscale.reports import phrases
from gpuscale.reports.columns import Column, csv_text, renamed
from gpuscale.reports.screen import fitted
from gpuscale.reports.show import (
    Shown,
    cells_under,
    columns_with,
    failures,
    headers_of,
    scaling_lines,
)
from gpuscale.reports.show.baseline_text import baseline_text
from gpuscale.reports.show.step_parts import connection_lines, phase_lines

_DEVICES = {
    "cpu": "cpu, over gloo",
    **{device: f"{device}, over {kind.library}" for device, kind in GPU_KINDS.items()},
}
_NAMES = ("case", "strategy", "device")
_OTHERS = tuple(name for name in Configuration.__struct_fields__ if name not in _NAMES)
_LATEX_HEADERS = (
    *("case", "nodes", "GPUs", "batch"),
    *("step time", "samples/s", "speedup", "efficiency", "GPU-hours"),
)
_WITH_INTERVAL = ("step time", "speedup")
"""LaTeX columns shown with intervals; others have none, since a printed page is narrow."""
# Characters that pdflatex does not know without a package.
_FOREIGN = re.compile("[^\n\x20-\x7eÀ-ÖØ-öø-ž±×−–µ]")


def text(shown: Shown) -> str:
    """Return a results or baseline file as text."""
    if isinstance(shown.content, Results):
        return "\n".join(_results_lines(shown.content, shown))
    return baseline_text(shown.content, columns=shown.columns, steps=shown.steps)


def _results_lines(results: Results, shown: Shown) -> Iterator[str]:
    columns = shown.columns
    yield from fitted(_heading(results, shown), columns)
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


def _heading(results: Results, shown: Shown) -> Iterator[str]:
    """Yield the file, time, machine and software of the results, then an empty line."""
    environment = results.environment
    if results.injections:
        yield phrases.injection_warning(results.injections)
    yield f"results   {visible(str(shown.path))}"
    is_imported = environment.device == UNRECORDED
    by = f"{', imported' if is_imported else ''} by gpuscale {results.gpuscale_version}"
    yield f"measured  {phrases.times_text(results.runs, results.created_at)} UTC{by}"
    device = _DEVICES.get(environment.device, environment.device)
    if machine := ": ".join(filter(None, (environment.host, environment.hardware_label))):
        yield f"machine   {machine}{'' if is_imported else f' (device: {device})'}"
    if software := phrases.software_text(environment):
        yield f"software  {software}"
    if environment.job_id is not None:
        yield f"job       {environment.scheduler} {environment.job_id}"
    yield ""


def csv(shown: Shown) -> str:
    """Return the points as CSV (docs/tools.md); unknown values are empty."""
    kind, *numbers = columns_with(shown.steps)
    names, others = map(_of_configuration, _NAMES), map(_of_configuration, _OTHERS)
    injections = " ".join(shown.injections) or None
    columns = (kind, *names, *numbers, *others)
    return csv_text(columns, shown.points, steps=shown.steps, injections=injections)


def _of_configuration(name: str) -> Column[ScalingPoint]:
    return Column(name, value=attrgetter(f"configuration.{name}"))


def json(shown: Shown) -> str:
    """Return the rows as a JSON document (docs/tools.md); unknown values are null."""
    return document_text(
        "gpuscale-scaling",
        **_origin(shown),
        injections=shown.injections,
        steps=shown.steps,
        rows=[_row(point, shown.steps) for point in shown.points],
    )


def _origin(shown: Shown) -> dict[str, object]:
    """Return where, when and with what software the rows were measured."""
    content = shown.content
    if isinstance(content, Results):
        what, named = "results", {"name": None, "cluster": None, "recorded_at": content.created_at}
        source, environments = None, {content.allocation: content.environment}
    else:
        what = "baseline"
        named = {name: getattr(content, name) for name in ("name", "cluster", "recorded_at")}
        source, environments = content.source, dict(content.environments)
    version = {"gpuscale_version": content.gpuscale_version}
    return {"shown": what, **named, **version, "source": source, "environments": environments}


def _row(point: ScalingPoint, steps: int | None) -> dict[str, object]:
    kind, *numbers = columns_with(steps)
    return {
        kind.field: kind.value_in(point),
        "configuration": msgspec.structs.asdict(point.configuration),
        **{column.field: column.value_in(point) for column in numbers},
    }


def latex(shown: Shown) -> str:
    """Return the rows as a LaTeX table, for a paper or a proposal for computing time."""
    from tabulate import LATEX_ESCAPE_RULES, tabulate

    headers = _LATEX_HEADERS[: None if shown.steps else -1]
    points = shown.points
    cells = renamed(cells_under(headers, points, (), shown.steps), headers_of(points))
    rows = [
        [cell.line if name in _WITH_INTERVAL else cell.text for name, cell in row.items()]
        for row in cells
    ]
    for row, point in zip(rows, points, strict=True):
        row[0] += "" if point.kind == "measured" else f", {point.kind}"
    sides = ["left", *["right"] * (len(headers) - 1)]
    table = tabulate(
        rows, [*cells[0]], tablefmt="latex_booktabs", disable_numparse=True, colalign=sides
    )
    caption = "".join(LATEX_ESCAPE_RULES.get(sign, sign) for sign in _caption(shown))
    written = (
        f"% gpuscale {__version__}; needs \\usepackage{{booktabs}}\n"
        "\\begin{table}\n\\centering\\footnotesize\\setlength{\\tabcolsep}{2pt}\n"
        f"\\caption{{{caption}}}\n"
        f"{table}\n\\end{{table}}"
    )
    return _FOREIGN.sub("?", written)


def _caption(shown: Shown) -> str:
    """Return the caption: the origin of the numbers, and the meaning of intervals and GPU-hours."""
    content = shown.content
    if isinstance(content, Results):
        where = f"{content.environment.hardware_label}, {content.created_at[:10]}"
    else:
        where = machine_label(content)
        if content.source is not None:
            where += f"; published figures from {content.source.title}"
    warning = f"{phrases.injection_warning(shown.injections)}. " if shown.injections else ""
    hours = "" if shown.steps is None else f" Hours are those of {shown.steps:,} steps."
    options = phrases.configurations_text(point.configuration for point in shown.points)
    return f"{warning}Scaling on {where}; {options}; intervals are 95 % over runs.{hours}"


class ShownFormat(NamedTuple):
    """A format of results and baselines: its purpose, and the function that renders it."""

    purpose: str
    render: Callable[[Shown], str]


SHOWN_FORMATS: Mapping[str, ShownFormat] = {
    "text": ShownFormat("a terminal or a log; the default", text),
    "csv": ShownFormat("spreadsheets and data frames, a line for each row", csv),
    "json": ShownFormat("scripts; with machine and software", json),
    "latex": ShownFormat("a paper, or a proposal for computing time", latex),
}
