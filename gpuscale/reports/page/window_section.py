"""What each rank and its GPU did in each window."""

import statistics
from collections.abc import Callable, Sequence

from gpuscale.base.units import format_seconds, significant, whole_percent
from gpuscale.records import EntryKey, GpuSummary, RankReport, Run
from gpuscale.reports import phrases
from gpuscale.reports.columns import Cell, Tone
from gpuscale.reports.figures.window_map import slowest_runs
from gpuscale.reports.page.content import Section, Subject, Table
from gpuscale.reports.page.pictures import pictures

_MOST_LINES = 32
"""Ranks that are shown; a page of a hundred rows is to stay small."""
_TONES: tuple[tuple[float, Tone], ...] = ((0.10, "slowest"), (0.05, "slower"), (0.02, "slow"))
"""How much longer than the run's median a window must last, or a rank's own step."""
_TELEMETRY: Sequence[tuple[str, str, Callable[[float], str]]] = (
    ("sm_clock_mean_mhz", "SM clock", "{:.0f} MHz".format),
    ("power_mean_w", "power", "{:.0f} W".format),
    ("utilization_mean", "busy", whole_percent),
    ("temperature_max_c", "hottest", "{:.0f} °C".format),
)


def windows(subject: Subject) -> Section | None:
    """The slowest run of each row, window by window, until the page has enough of them."""
    chosen = _slowest_runs(subject)
    if not chosen:
        return None
    names = phrases.set_apart([run.configuration for run in chosen])
    tables: list[Table] = []
    lines = 0
    for run in chosen:
        lines += len(run.ranks)
        if tables and lines > _MOST_LINES:
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
        figures=pictures(subject, "windows"),
        tables=tables,
        notes=[more] if more else (),
    )


def _slowest_runs(subject: Subject) -> list[Run]:
    """The slowest run of each row, which the picture shows too; rows that got worse first."""
    order: dict[EntryKey, int] = {}
    for place, row in enumerate(subject.view.ranked if subject.view else ()):
        order.setdefault(row.entry.key, place)
    return sorted(slowest_runs(subject.runs).values(), key=lambda run: order.get(run.key, 0))


def _table(run: Run, name: str) -> Table:
    assert run.steps_per_window is not None, "only runs with windows are chosen"
    times_s = [[each / run.steps_per_window for each in window.busy_s] for window in run.windows]
    median_s = statistics.median(time_s for its in times_s for time_s in its)
    factor, unit = (1e3, "ms") if median_s < 1 else (1.0, "s")
    summaries = {summary.uuid: summary for summary in run.gpu_summaries}
    shown = [each for each in _TELEMETRY if any(each[0] in s.values for s in summaries.values())]
    held = any(summary.clock_event_reasons for summary in summaries.values())
    paces_s = [rank.pace_s for rank in run.ranks if rank.pace_s is not None]
    pace_s = statistics.median_low(paces_s) if paces_s else None
    rows = []
    for position, rank in enumerate(run.ranks_in_order):
        its = [summaries[uuid] for uuid in rank.device_uuids if uuid in summaries]
        cells = {"rank": Cell(f"rank {rank.rank}", _place(rank))}
        if pace_s is not None:
            cells["own pace"] = _timed(rank.pace_s, pace_s, factor)
        for number, window_s in enumerate(times_s, start=1):
            cells[str(number)] = _timed(window_s[position], median_s, factor)
        cells |= {label: Cell(_counter(its, field, form)) for field, label, form in shown}
        if held:
            cells["held back by"] = Cell(_held(its))
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
    """The time in the table's unit, shaded by how far it is above the median."""
    if time_s is None:
        return Cell(phrases.UNKNOWN)
    tones = (tone for above, tone in _TONES if time_s / median_s > 1 + above)
    return Cell(significant(time_s * factor), tone=next(tones, ""))


def _place(rank: RankReport) -> str:
    devices = ", ".join(f"GPU {number}" for number in rank.devices) or "CPU"
    return f"{rank.host}, {devices}"


def _counter(summaries: Sequence[GpuSummary], field: str, form: Callable[[float], str]) -> str:
    """The lowest and the highest over the windows, or where they tell nothing that of the run."""
    values = [
        window.values[field]
        for each in summaries
        for window in each.windows
        if field in window.values
    ] or [each.values[field] for each in summaries if field in each.values]
    texts = dict.fromkeys(form(value) for value in (min(values), max(values))) if values else {}
    return " – ".join(texts) or phrases.UNKNOWN


def _held(summaries: Sequence[GpuSummary]) -> str:
    reasons = [its for each in summaries for its in (each.clock_event_reasons or {}).items()]
    return ", ".join(f"{name.replace('_', ' ')} {whole_percent(share)}" for name, share in reasons)
