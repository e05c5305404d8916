"""Sections on the time of a step: curves, efficiency budget, phases, and the pace of each rank."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gpuscale.analysis.steps import efficiency_budgets, typical_steps
from gpuscale.base.grouping import by_key
from gpuscale.base.text import format_seconds, whole_percent
from gpuscale.records import Configuration, GpuSummary, PointKey, Run
from gpuscale.reports import phrases
from gpuscale.reports.columns import Cell
from gpuscale.reports.figures import FIGURES
from gpuscale.reports.figures.picture import Measurements, svg_of
from gpuscale.reports.page import Section, Subject, Table, without_unknown
from gpuscale.reports.show.step_parts import (
    budget_findings,
    budget_legend,
    phase_cells,
    phase_notes,
)

_MOST_LINES = 8


def budget(subject: Subject) -> Section | None:
    """Return the section on the efficiency budget; None if no row has one."""
    found = [each for each in efficiency_budgets(subject.runs) if each.parts]
    if not found:
        return None
    findings = (f"{row}: {text}" for row, text in budget_findings(subject.runs))
    notes = [*budget_legend(found), *_few([*findings])]
    return Section(
        title="Where the efficiency went", figures=pictures(subject, "budget"), notes=notes
    )


def _few(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _MOST_LINES
    rest = [f"and {more} more: gpuscale show has all"] if more > 0 else []
    return [*lines[:_MOST_LINES], *rest]


def phases(subject: Subject) -> Section | None:
    """Return the section on the phases of a step in each row; None if none were recorded."""
    steps = typical_steps(subject.runs)
    if not steps:
        return None
    table = Table(
        caption="The time of each phase, and in small type its share of the step",
        rows=phase_cells(steps),
    )
    notes = _few([*phase_notes(steps)])
    return Section(title="Phases", figures=pictures(subject, "phases"), tables=[table], notes=notes)


def pictures(subject: Subject, *names: str) -> list[str]:
    """Return those of the named figures that have data, as SVG, each with the worst cases first."""
    ranked = subject.view.ranked if subject.view else ()
    cases = dict.fromkeys(row.entry.key.case for row in ranked)
    places = {case: place for place, case in enumerate(cases)}
    # A figure has room for the first few cases only.
    runs = sorted(subject.runs, key=lambda run: places.get(run.configuration.case, 0))
    drawn = Measurements(
        runs=runs, baseline=subject.baseline, earlier=subject.earlier, history=subject.history
    )
    made = (FIGURES[name](drawn) for name in names)
    return [svg_of(picture) for picture in made if picture is not None]


def curves(subject: Subject) -> Section | None:
    """Return the section on time, throughput and speedup against GPU count; None without data."""
    found = pictures(subject, "time", "throughput", "speedup")
    return Section(title="Curves", figures=found) if found else None


_MOST_RANKS = 32
"""Maximum number of ranks shown, so that a page of a hundred rows stays small."""
_LAGS = 0.05
"""Lag above which a rank is marked, as a share of the median pace of the ranks in its run."""
_TELEMETRY: Sequence[tuple[str, str, Callable[[float], str]]] = (
    ("sm_clock_mean_mhz", "SM clock", "{:.0f} MHz".format),
    ("power_mean_w", "power", "{:.0f} W".format),
    ("utilization_mean", "busy", whole_percent),
    ("temperature_max_c", "hottest", "{:.0f} °C".format),
)


def ranks(subject: Subject) -> Section | None:
    """Return the section on the ranks in each row's slowest run; None if no pace is known."""
    # The worst rows come last, so that the worst row of each key determines its place.
    ranked = [*enumerate(subject.view.ranked if subject.view else ())][::-1]
    order = {row.entry.key: place for place, row in ranked}
    chosen = sorted(slowest_runs(subject.runs), key=lambda run: order.get(run.key, 0))
    names = phrases.set_apart([run.configuration for run in chosen])
    rows = [row for run in chosen for row in _rank_rows(run, names)]
    if not rows:
        return None
    more = len(rows) - _MOST_RANKS
    on_gpus = chosen[0].configuration.device != "cpu"
    reported = ", and what its GPU reported over the run" if on_gpus else ""
    table = Table(
        caption=f"The pace of each rank by itself{reported}",
        rows=without_unknown(rows[:_MOST_RANKS]),
        words=frozenset({"rank", "held back by"}),
    )
    return Section(
        title=f"What each {'GPU' if on_gpus else 'rank'} did",
        intro=f"The slowest run of each row{', the worst verdicts first' if ranked else ''}.",
        tables=[table],
        notes=[f"{phrases.counted(more, 'more rank')}: see the results file"] if more > 0 else (),
    )


def slowest_runs(runs: Iterable[Run]) -> list[Run]:
    """Return each row's slowest valid run, ignoring runs in which no rank recorded its pace."""
    valid = (run for run in runs if run.is_valid)
    paced = (run for run in valid if any(rank.pace_s is not None for rank in run.ranks))
    rows = by_key((PointKey.of(run), run) for run in paced).values()
    return [max(row, key=lambda run: run.step_time_s) for row in rows]


def _rank_rows(run: Run, names: Mapping[Configuration, str]) -> Iterator[dict[str, Cell]]:
    summaries = {summary.uuid: summary for summary in run.gpu_summaries}
    median_s = statistics.median_low(rank.pace_s for rank in run.ranks if rank.pace_s is not None)
    for rank in sorted(run.ranks, key=lambda report: report.rank):
        devices = [summaries[uuid] for uuid in rank.device_uuids if uuid in summaries]
        numbers = ", ".join(f"GPU {number}" for number in rank.devices) or "CPU"
        lags = rank.pace_s is not None and rank.pace_s > (1 + _LAGS) * median_s
        reasons = (each.clock_event_reasons or {} for each in devices)
        shares = (each for reasons_of_device in reasons for each in reasons_of_device.items())
        held = ", ".join(f"{each.replace('_', ' ')} {whole_percent(by)}" for each, by in shares)
        yield {
            "row": Cell(phrases.row_text(names, run.configuration, run.gpus), f"run {run.index}"),
            "rank": Cell(f"rank {rank.rank}", f"{rank.host}, {numbers}"),
            "own pace": Cell(
                phrases.known_text(rank.pace_s, format_seconds), tone="doubt" if lags else ""
            ),
            **{label: Cell(_counter(devices, field, form)) for field, label, form in _TELEMETRY},
            "held back by": Cell(held or phrases.UNKNOWN),
        }


def _counter(summaries: Sequence[GpuSummary], field: str, form: Callable[[float], str]) -> str:
    values = [each.values[field] for each in summaries if field in each.values]
    return (
        phrases.format_range([form(min(values)), form(max(values))]) if values else phrases.UNKNOWN
    )
