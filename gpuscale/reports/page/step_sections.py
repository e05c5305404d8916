"""Sections on the time of a step: curves, efficiency budget, phases, and windows of each rank."""

import statistics
from collections.abc import Callable, Iterable, Sequence

from gpuscale.analysis.budget import EfficiencyBudget, efficiency_budgets
from gpuscale.analysis.typical_step import typical_steps
from gpuscale.base.units import format_seconds, significant, whole_percent
from gpuscale.records import GpuSummary, PointKey, RankReport, Run
from gpuscale.reports import phrases
from gpuscale.reports.columns import Cell, Tone
from gpuscale.reports.figures import FIGURES
from gpuscale.reports.figures.picture import Measurements, svg_of
from gpuscale.reports.page import Section, Subject, Table
from gpuscale.reports.show.step_time import budget_findings, budget_legend, phase_cells, phase_notes

NAMED_LOSS = 0.1
"""Smallest loss of efficiency that is shaded in the table of budgets."""
_MOST_LINES = 8


def budget(subject: Subject) -> Section | None:
    """Return the section on the efficiency budget."""
    found = [each for each in efficiency_budgets(subject.runs) if each.parts]
    if not found:
        return None
    parts = list(dict.fromkeys(name for each in found for name in (*each.parts, *each.absent)))
    names = phrases.set_apart([each.configuration for each in found])
    table = Table(
        caption="Efficiency, and the parts of a step that it lacks to 1",
        rows=[
            {
                "case": Cell(names[each.configuration]),
                "GPUs": Cell(str(each.key.gpus)),
                **_shares(each, parts),
            }
            for each in found
        ],
    )
    findings = (f"{row}: {text}" for row, text in budget_findings(subject.runs, with_budgets=False))
    notes = [*budget_legend(found, "the phases below have"), *_few([*findings])]
    figures = pictures(subject, "budget")
    return Section(title="Where the efficiency went", figures=figures, tables=[table], notes=notes)


def _few(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _MOST_LINES
    rest = [f"and {more} more: gpuscale show has all"] if more > 0 else []
    return [*lines[:_MOST_LINES], *rest]


def _shares(budget: EfficiencyBudget, parts: list[str]) -> dict[str, Cell]:
    shares = {name: hundredths / 100 for name, hundredths in budget.hundredths.items()}
    cells = {}
    for name in ("efficiency", *parts, "rest"):
        share = shares.get(name)
        text = phrases.known_text(share, "{:.2f}".format).replace("-", "−")
        is_loss = name != "efficiency" and share is not None and share >= NAMED_LOSS
        header = "E" if name == "efficiency" else name
        cells[header] = Cell(text, tone="slower" if is_loss else "")
    return cells


def phases(subject: Subject) -> Section | None:
    """Return the section on the phases of a step in each row."""
    steps = typical_steps(subject.runs)
    if not steps:
        return None
    table = Table(
        caption="The time of each phase, and in small type its share of the step",
        rows=phase_cells(steps),
    )
    notes = _few([*phase_notes(steps, "the judged step time, in the rows above,")])
    return Section(title="Phases", figures=pictures(subject, "phases"), tables=[table], notes=notes)


def pictures(subject: Subject, *names: str) -> list[str]:
    """Draw the named figures for which there is data; in each figure the worst cases come first."""
    ranked = subject.view.ranked if subject.view else ()
    cases = dict.fromkeys(row.entry.key.case for row in ranked)
    places = {case: place for place, case in enumerate(cases)}
    # A figure has room for the first few cases only.
    runs = sorted(subject.runs, key=lambda run: places.get(run.configuration.case, 0))
    drawn = Measurements(runs=runs, baseline=subject.baseline, history=subject.history)
    made = (FIGURES[name](drawn) for name in names)
    return [svg_of(picture) for picture in made if picture is not None]


def curves(subject: Subject) -> Section | None:
    """Return the section on time, throughput and speedup against GPU count."""
    found = pictures(subject, "time", "throughput", "speedup")
    return Section(title="Curves", figures=found) if found else None


_MOST_RANKS = 32
"""Maximum number of ranks in all tables together, so that a page of a hundred rows stays small."""
_TONES: tuple[tuple[float, Tone], ...] = ((0.10, "slowest"), (0.05, "slower"), (0.02, "slow"))
"""Shades of slow windows and ranks: the smallest excess over the run's median, with its shade."""
_TELEMETRY: Sequence[tuple[str, str, Callable[[float], str]]] = (
    ("sm_clock_mean_mhz", "SM clock", "{:.0f} MHz".format),
    ("power_mean_w", "power", "{:.0f} W".format),
    ("utilization_mean", "busy", whole_percent),
    ("temperature_max_c", "hottest", "{:.0f} °C".format),
)


def windows(subject: Subject) -> Section | None:
    """Return the section on the slowest run of each of the worst rows, window by window."""
    # The worst rows come last, so that the worst row of each key determines its place.
    ranked = [*enumerate(subject.view.ranked if subject.view else ())][::-1]
    order = {row.entry.key: place for place, row in ranked}
    chosen = sorted(slowest_runs(subject.runs).values(), key=lambda run: order.get(run.key, 0))
    if not chosen:
        return None
    names = phrases.set_apart([run.configuration for run in chosen])
    tables: list[Table] = []
    lines = 0
    for run in chosen:
        lines += len(run.ranks)
        if tables and lines > _MOST_RANKS:
            break
        tables.append(_table(run, names[run.configuration]))
    left = len(chosen) - len(tables)
    more = f"{phrases.counted(left, 'more row')}: see the results file" if left else ""
    return Section(
        title=f"What each {'rank' if chosen[0].configuration.device == 'cpu' else 'GPU'} did",
        intro=(
            "The slowest run of each row, the worst verdicts first: how long a step takes each "
            "rank by itself and, waiting for the others, in each window; and what its GPU "
            "reported meanwhile. Shaded: more than 2 %, 5 % and 10 % above the run's median."
        ),
        tables=tables,
        notes=[more] if more else (),
    )


def slowest_runs(runs: Iterable[Run]) -> dict[PointKey, Run]:
    """Return the slowest valid run of each row, among runs with busy times."""
    found: dict[PointKey, Run] = {}
    for run in runs:
        windows = (*run.windows, *run.unsynced_windows)
        tells = run.windows and run.ranks and all(window.busy_s for window in windows)
        if run.is_valid and run.steps_per_window and tells:
            point = PointKey.of(run)
            found[point] = max(found.get(point, run), run, key=lambda each: each.step_time_s)
    return found


def _table(run: Run, name: str) -> Table:
    assert run.steps_per_window is not None, "only runs with windows are chosen"
    times_s = [[each / run.steps_per_window for each in window.busy_s] for window in run.windows]
    median_s = statistics.median(time_s for window_s in times_s for time_s in window_s)
    factor, unit = (1e3, "ms") if median_s < 1 else (1.0, "s")
    summaries = {summary.uuid: summary for summary in run.gpu_summaries}
    shown = [each for each in _TELEMETRY if any(each[0] in s.values for s in summaries.values())]
    held = any(summary.clock_event_reasons for summary in summaries.values())
    paces_s = [rank.pace_s for rank in run.ranks if rank.pace_s is not None]
    pace_s = statistics.median_low(paces_s) if paces_s else None
    rows = []
    for position, rank in enumerate(run.ranks_in_order):
        devices = [summaries[uuid] for uuid in rank.device_uuids if uuid in summaries]
        cells = {"rank": Cell(f"rank {rank.rank}", _place(rank))}
        if pace_s is not None:
            cells["own pace"] = _timed(rank.pace_s, pace_s, factor)
        for number, window_s in enumerate(times_s, start=1):
            cells[str(number)] = _timed(window_s[position], median_s, factor)
        cells |= {label: Cell(_counter(devices, field, form)) for field, label, form in shown}
        if held:
            reasons = [each.clock_event_reasons or {} for each in devices]
            shares = ((name, share) for each in reasons for name, share in each.items())
            texts = (f"{name.replace('_', ' ')} {whole_percent(share)}" for name, share in shares)
            cells["held back by"] = Cell(", ".join(texts))
        rows.append(cells)
    return Table(
        caption=(
            f"{name} on {phrases.gpus_text(run.gpus)}, run {run.index}: "
            f"{format_seconds(run.step_time_s)} a step; by window, in {unit}"
        ),
        rows=rows,
        words=frozenset({"held back by"}),
    )


def _timed(time_s: float | None, median_s: float, factor: float) -> Cell:
    """Return a time in the table's unit, shaded by its excess over the median."""
    if time_s is None:
        return Cell(phrases.UNKNOWN)
    tones = (tone for above, tone in _TONES if time_s / median_s > 1 + above)
    return Cell(significant(time_s * factor), tone=next(tones, ""))


def _place(rank: RankReport) -> str:
    devices = ", ".join(f"GPU {number}" for number in rank.devices) or "CPU"
    return f"{rank.host}, {devices}"


def _counter(summaries: Sequence[GpuSummary], field: str, form: Callable[[float], str]) -> str:
    """Return a counter's range over all windows, or its value for the run if no window has it."""
    values = [
        window.values[field]
        for each in summaries
        for window in each.windows
        if field in window.values
    ] or [each.values[field] for each in summaries if field in each.values]
    texts = dict.fromkeys(form(value) for value in (min(values), max(values))) if values else {}
    return " – ".join(texts) or phrases.UNKNOWN
