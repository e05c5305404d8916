"""Formats of `gpuscale show`: results and baselines as text, CSV, JSON and LaTeX."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

import msgspec

from gpuscale import __version__
from gpuscale.analysis.estimates import log_sample
from gpuscale.analysis.scaling import Entry, geometric_mean, level_of, published_points
from gpuscale.analysis.step_parts import PHASES, typical_steps
from gpuscale.base.errors import FileError
from gpuscale.base.grouping import by_key
from gpuscale.base.host import UNRECORDED
from gpuscale.base.text import format_seconds, significant, visible
from gpuscale.judge.baseline import entries_of
from gpuscale.judge.compare.notes import outlying_nights
from gpuscale.judge.sides import machine_label, side_of_baseline
from gpuscale.records import Baseline, Configuration, PointKey, Results, Run, ScalingPoint
from gpuscale.records.baseline import BaselineChange, Tolerances
from gpuscale.records.configuration import commands_text
from gpuscale.records.record import document_text
from gpuscale.reports import phrases, show
from gpuscale.reports.columns import (
    Cell,
    Column,
    Format,
    csv_text,
    fields_of,
    level_text,
    text_table,
)
from gpuscale.reports.reason_words import statement_text
from gpuscale.reports.screen import fitted
from gpuscale.reports.show.step_parts import phase_lines

_NAMES = ("case", "strategy", "device")
_OTHERS = tuple(name for name in Configuration.__struct_fields__ if name not in _NAMES)


def text(shown: show.Shown) -> str:
    """Return a results or baseline file as text."""
    content, columns = shown.content, shown.columns
    if isinstance(content, Results):
        heading = _heading(content, shown)
        table = show.scaling_lines(content, columns, shown.steps)
        rows = table if content.runs else ["no run was recorded"]
        lines: Iterator[str] = chain(rows, fitted(show.failures(content.runs), columns))
    else:
        heading = _origin_of_baseline(content)
        lines = _baseline_lines(content, columns, shown.steps)
    if shown.phases:
        lines = phase_lines(content.runs, columns)
    return "\n".join((*fitted(heading, columns), *lines))


def _heading(results: Results, shown: show.Shown) -> Iterator[str]:
    """Yield the file, time, machine and software of the results, then an empty line."""
    environment = results.environment
    if results.injections:
        yield phrases.injection_warning(results.injections)
    yield f"results   {visible(str(shown.path))}"
    is_imported = environment.device == UNRECORDED
    by = f"{', imported' if is_imported else ''} by gpuscale {results.gpuscale_version}"
    yield f"measured  {phrases.times_text(results.runs, results.created_at)} UTC{by}"
    if machine := ": ".join(filter(None, (environment.host, environment.hardware_label))):
        yield f"machine   {machine}{'' if is_imported else f' (device: {environment.device})'}"
    if software := phrases.software_text(environment):
        yield f"software  {software}"
    if command := commands_text(run.configuration for run in results.runs):
        yield f"command   {command}"
    if environment.job_id is not None:
        yield f"job       {environment.scheduler} {environment.job_id}"
    if busy := phrases.busy_text(results.runs):
        yield f"beware    {busy}"
    yield ""


def _baseline_lines(baseline: Baseline, columns: int, steps: int | None) -> Iterator[str]:
    measured = side_of_baseline(baseline).entries
    blocks = (
        [_published_table(baseline, columns, steps)] if baseline.published else (),
        *(_measured_blocks(measured, columns, steps) if measured else ()),
        () if baseline.published or measured else ["no entry"],
        chain.from_iterable(map(_history_lines, baseline.history)),
    )
    texts = ("\n".join(fitted(block, columns)) for block in blocks)
    yield "\n\n".join(text for text in texts if text)


def _origin_of_baseline(baseline: Baseline) -> Iterator[str]:
    """Yield the machine, source, time and software of the baseline, then an empty line."""
    yield f"baseline  {baseline.name}: {machine_label(baseline)}"
    if baseline.source is not None:
        source = baseline.source
        parts = (source.title, source.published, source.url, source.note)
        yield f"source    {', '.join(filter(None, parts))}"
    if baseline.recorded_at is not None:
        version = baseline.gpuscale_version
        tool = f", with gpuscale {version}" if version else ""
        yield f"measured  {phrases.times_text(baseline.runs, baseline.recorded_at)} UTC{tool}"
    if baseline.recorded_by is not None:
        yield f"recorded  by {baseline.recorded_by}"
    places = (
        # Without a scheduler, the allocation's name already contains the host.
        (phrases.software_text(e), name if (e.host or "") in name else f"{name} on {e.host}")
        for name, e in baseline.environments.items()
    )
    for software, named in by_key(places).items():
        yield f"software  {software or phrases.UNKNOWN}"
        yield phrases.to_minutes(f"          in {', '.join(named)}")
    usual = msgspec.to_builtins(Tolerances())
    limits = msgspec.to_builtins(baseline.tolerances).items()
    if own := {name: value for name, value in limits if value != usual[name]}:
        yield f"limits    {msgspec.json.format(msgspec.json.encode(own), indent=0).decode()}"
    if busy := phrases.busy_text(baseline.runs):
        yield f"beware    {busy}"
    yield ""


def _history_lines(change: BaselineChange) -> Iterator[str]:
    by = f" by {change.by}" if change.by else ""
    yield f"changed   {phrases.to_minutes(change.at)} UTC{by}: {change.reason}"
    for entry, runs in entries_of(change.replaced).items():
        yield f"          {entry.label} was {step_time_text(runs)} ({phrases.runs_text(runs)})"
    if change.added:
        yield f"          new: {', '.join(change.added)}"


def _published_table(baseline: Baseline, columns: int, steps: int | None) -> str:
    headers = ["case", "GPUs", "nodes", "batch/GPU", "runs", "reference", "of", *show.PAIR_HEADERS]
    headers += ["GPU-hours"] if steps else []
    points = [*published_points(baseline).values()]
    further = [{"case": Cell(point.configuration.label), **_published(point)} for point in points]
    cells = show.cells_under(headers, points, further, steps)
    return text_table(cells, columns, first=("reference", "of"))


def _measured_blocks(
    entries: Sequence[Entry], columns: int, steps: int | None
) -> Iterator[list[str]]:
    points, counts = [entry.point for entry in entries], [len(entry.runs) for entry in entries]
    yield [show.scaling_table(points, columns=columns, steps=steps, allocations=counts)]
    device = points[0].configuration.device
    left_out = outlying_nights((entry, None) for entry in entries)
    notes = (f"in comparisons, {statement_text(note, device)}" for note in left_out)
    yield [*show.table_notes(points), "runs: in brackets the number of their sessions", *notes]


def step_time_text(runs: Sequence[Run]) -> str:
    """Return the mean step time (or metric) of a row's runs with its interval: `4.12 ms ±0.3 %`."""
    mean = geometric_mean(log_sample([run.log_cost for run in runs]))
    return level_text(level_of(PointKey.of(runs[0]), mean))


def _published(point: ScalingPoint) -> dict[str, Cell]:
    """Return the cells `reference` (a published value: `41.2 s`) and `of` (what it measures)."""
    if point.samples_per_s is not None:
        amount, what = f"{significant(point.samples_per_s.value)} samples/s", "throughput"
    elif point.value is not None:
        amount, what = f"{significant(point.value.value)} {point.unit}".strip(), "reference"
    else:
        assert point.figure is not None, "a published point has its figure"
        amount = phrases.known_text(point.figure.mean_time_s, format_seconds)
        what = f"wall clock of the {str(point.figure.timed).replace('_', ' ')}"
    return {"reference": Cell(amount), "of": Cell(what)}


def csv(shown: show.Shown) -> str:
    """Return the scaling points as CSV (docs/tools.md); unknown values are empty."""
    kind, *numbers = _columns(shown)
    names, others = (fields_of("configuration", *fields) for fields in (_NAMES, _OTHERS))
    injections = " ".join(shown.injections) or None
    columns = (kind, *names, *numbers, *others)
    return csv_text(columns, shown.points, steps=shown.steps, injections=injections)


def json(shown: show.Shown) -> str:
    """Return the rows as a JSON document (docs/tools.md); unknown values are null."""
    kind, *numbers = _columns(shown)
    rows = [
        {
            kind.field: kind.value_in(point),
            "configuration": msgspec.structs.asdict(point.configuration),
            **{column.field: column.value_in(point) for column in numbers},
        }
        for point in shown.points
    ]
    more = {"injections": shown.injections, "steps": shown.steps, "rows": rows}
    return document_text("gpuscale-scaling", **_origin(shown), **more)


def _columns(shown: show.Shown) -> Iterator[Column[ScalingPoint]]:
    """Yield the table's columns, then a column for each phase of a step, in seconds per step."""
    yield from show.columns_with(shown.steps)
    steps = typical_steps(shown.content.runs)

    def seconds(phase: str, point: ScalingPoint) -> float | None:
        shape = point.batch_per_gpu, point.sample_shape
        step = steps.get(PointKey(point.configuration, point.gpus, *shape))
        return None if step is None else step.phases_s[phase]

    yield from (Column(f"{phase}_s", value=partial(seconds, phase)) for phase in PHASES)


def _origin(shown: show.Shown) -> dict[str, object]:
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


_LATEX_HEADERS = (
    *("case", "kind", "batch/GPU", "nodes"),
    *("GPUs", "step time", "samples/s", "speedup", "efficiency", "GPU-hours"),
)
# Characters that pdflatex does not know without a package.
_FOREIGN = re.compile("[^\n\x20-\x7eÀ-ÖØ-öø-ž±×−–µ]")


def latex(shown: show.Shown) -> str:
    """Return the rows as a LaTeX table, for a paper or a proposal for computing time."""
    from tabulate import LATEX_ESCAPE_RULES, tabulate

    headers = _LATEX_HEADERS[: None if shown.steps else -1]
    if not (cells := show.cells_under(headers, shown.points, steps=shown.steps)):
        raise FileError(shown.path, "no run was recorded, so there is no table")
    # A printed page is narrow: the caption has what all rows share, and intervals have own lines.
    shared = [name for name in [*cells[0]][:4] if len({row[name].text for row in cells}) == 1]
    narrow = [{name: row[name] for name in row if name not in shared} for row in cells]
    pairs = ([(cell.text, cell.below) for cell in row.values()] for row in narrow)
    rows = [line for pair in pairs for line in zip(*pair, strict=True) if any(line)]
    sides = ["left" if name in ("case", "kind") else "right" for name in narrow[0]]
    table = tabulate(rows, [*narrow[0]], "latex_booktabs", disable_numparse=True, colalign=sides)
    # Names of cases take the room of two columns.
    size, gap_pt = ("scriptsize", 0.75) if "case" in narrow[0] else ("footnotesize", 2)
    caption = "".join(LATEX_ESCAPE_RULES.get(sign, sign) for sign in _caption(shown))
    written = (
        f"% gpuscale {__version__}; needs \\usepackage{{booktabs}}\n"
        f"\\begin{{table}}\n\\centering\\{size}\\setlength{{\\tabcolsep}}{{{gap_pt}pt}}\n"
        f"\\caption{{{caption}}}\n{table}\n\\end{{table}}"
    )
    return _FOREIGN.sub("?", written)


def _caption(shown: show.Shown) -> str:
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
    first, *others = {point.configuration for point in shown.points}
    what = "" if others else f" of {first.label}"
    note, points = next(show.table_notes(shown.points)), shown.points
    counts = sorted({p.valid_runs for p in points if p.kind == "measured" and p.valid_runs})
    if counts[-1:] > [1]:
        note += f" ({phrases.format_range([*map(str, counts)])} of each measured row)"
    return f"{warning}Scaling{what} on {where}; {note}.{hours}"


SHOWN_FORMATS: Mapping[str, Format[show.Shown]] = {
    "text": Format("a terminal or a log; the default", text),
    "csv": Format("spreadsheets and data frames, a line for each row", csv),
    "json": Format("scripts; with machine and software", json),
    "latex": Format("a paper, or a proposal for computing time", latex),
}
