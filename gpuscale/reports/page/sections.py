"""The report page: verdict, causes, rows, curves, nights, efficiency budget, phases and ranks."""

from collections.abc import Callable, Sequence
from datetime import datetime

from gpuscale.analysis.scaling import scaling_points
from gpuscale.analysis.step_parts import efficiency_budgets, typical_steps
from gpuscale.base.host import device_word
from gpuscale.records import Results, Run, Verdict
from gpuscale.records.configuration import commands_text
from gpuscale.reports import history_text, phrases
from gpuscale.reports.columns import Cell, Tone, named_on
from gpuscale.reports.comparison import View
from gpuscale.reports.comparison.rows import Item, Row
from gpuscale.reports.figures import FIGURES
from gpuscale.reports.figures.picture import Measurements, svg_of
from gpuscale.reports.page import (
    TONES,
    Block,
    Section,
    Subject,
    Table,
    rendered,
    tone_of,
    without_unknown,
)
from gpuscale.reports.show import failures, odd_runs, scaling_cells, step_parts, table_notes

_MOST_FINDINGS = 8
_MOST_RANKS = 32
"""Maximum number of ranks shown, so that a page of a hundred rows stays small."""


def causes(subject: Subject) -> Section | None:
    """Return the section that explains the verdicts, the worst first; None if it is empty."""
    view = subject.view
    if view is None:
        return None
    blocks = [
        Block(
            title=found.subject,
            text=found.reason,
            items=[*map(Item, found.lost_metrics), *found.causes],
            tone=tone_of(found.rows[0].entry.verdict),
        )
        for found in view.explanations
        if found.rows[0].entry.verdict is not Verdict.CONSISTENT
    ]
    return Section(title="Why", blocks=blocks, notes=view.notes) if blocks or view.notes else None


def rows(subject: Subject) -> Section | None:
    """Return the section with the table of all rows; None if there are no rows."""
    if subject.view is not None and subject.view.rows:
        return _compared(subject.view)
    return _measured(subject.runs) if subject.runs else None


def place_text(results: Results) -> str:
    """Return the place and time of results: `node017, 4× V100, 2026-11-20 02:10, job 4711`."""
    where, began = results.environment, datetime.fromisoformat(results.created_at)
    job, at = f"job {where.job_id}" if where.job_id else "", f"{began:%Y-%m-%d %H:%M}"
    return ", ".join(filter(None, (where.host, where.hardware_label, at, job)))


def measured_headline(subject: Subject) -> Sequence[tuple[str, str]]:
    """Return the headline of a page without a verdict, as pairs of a label and a text."""
    points = scaling_points(subject.runs)
    rows = phrases.counted(len(points), "row")
    measured = sum(point.valid_runs > 0 for point in points)
    if measured < len(points):
        rows = f"{measured} of {rows}, since no run of the others is valid"
    facts = {
        "MEASURED": f"{rows}; no baseline was given, so nothing is judged",
        "beware": phrases.busy_text(subject.runs),
        "command": commands_text(run.configuration for run in subject.runs),
    }
    return [(label, text) for label, text in facts.items() if text]


def _compared(view: View) -> Section:
    devices = [row.entry.device for row in view.ranked]
    table = Table(
        caption="Now, and in small type the baseline; what got worse comes first",
        rows=named_on(devices, map(_compared_row, view.ranked)),
        words=frozenset(("verdict", "change", "because")),
    )
    legend = [
        f"E: efficiency, the speedup over the number of {device_word(devices[0])}s; 1 is ideal",
        "change: of what the verdict rests on, with its 95 % interval",
    ]
    return Section(title="Rows", tables=[table], notes=legend)


def _compared_row(row: Row) -> dict[str, Cell]:
    numbers = {
        name: Cell(pair.now, "" if pair.then == phrases.UNKNOWN else f"was {pair.then}")
        for name, pair in row.numbers.items()
    }
    return {
        "case": Cell(row.name),
        "GPUs": Cell(str(row.entry.key.gpus)),
        "verdict": Cell(row.verdict, tone=tone_of(row.entry.verdict)),
        **numbers,
        "change": Cell(row.moved.text or phrases.UNKNOWN, row.moved.below),
        "because": Cell(row.short_reason),
    }


def _measured(runs: Sequence[Run]) -> Section:
    points = scaling_points(runs)
    table = Table(
        caption="Means over runs, and in small type their 95 % intervals",
        rows=without_unknown(scaling_cells(points, with_epoch=True)),
    )
    notes = [*table_notes(points), *odd_runs(runs), *failures(runs)]
    return Section(title="Rows", tables=[table], notes=notes)


def budget(subject: Subject) -> Section | None:
    """Return the section on the efficiency budget; None if no row has one."""
    if not (found := [each for each in efficiency_budgets(subject.runs) if each.parts]):
        return None
    findings = [f"{row}: {text}" for row, text in step_parts.budget_findings(subject.runs)]
    notes = [*step_parts.budget_legend(found), *phrases.few(findings, _MOST_FINDINGS, "finding")]
    figures = pictures(subject, "budget")
    return Section(title="Where the efficiency went", figures=figures, notes=notes)


def phases(subject: Subject) -> Section | None:
    """Return the section on the phases of a step in each row; None if none were recorded."""
    if not (steps := typical_steps(subject.runs)):
        return None
    table = Table(
        caption="The time of each phase, and in small type its share of the step",
        rows=step_parts.phase_cells(steps),
    )
    figures, notes = pictures(subject, "phases"), [*step_parts.phase_notes(steps)]
    return Section(title="Phases", figures=figures, tables=[table], notes=notes)


def pictures(subject: Subject, *names: str) -> list[str]:
    """Return as SVG the named figures that have data; cases with the worst verdicts come first."""
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


def ranks(subject: Subject) -> Section | None:
    """Return the section on the ranks in each row's slowest run; None if no rank was timed."""
    ranked = subject.view.ranked if subject.view else ()
    keys = dict.fromkeys(row.entry.key for row in ranked)
    places = {key: place for place, key in enumerate(keys)}
    cells = step_parts.rank_cells(sorted(subject.runs, key=lambda run: places.get(run.key, 0)))
    if not cells:
        return None
    more = len(cells) - _MOST_RANKS
    on_gpus = subject.runs[0].configuration.device != "cpu"
    reported = ", and what its GPU reported over the run" if on_gpus else ""
    table = Table(
        caption=f"The pace of each rank by itself{reported}",
        rows=without_unknown(cells[:_MOST_RANKS]),
        words=frozenset({"rank", "held back by"}),
    )
    return Section(
        title=f"What each {'GPU' if on_gpus else 'rank'} did",
        intro=f"The slowest run of each row{', the worst verdicts first' if ranked else ''}.",
        tables=[table],
        notes=[f"{phrases.counted(more, 'more rank')}: see the results file"] if more > 0 else (),
    )


def verdict_of_nights(subject: Subject) -> tuple[str, str] | None:
    """Return the nightly verdict (word, text); None if unknown or the page lacks the last night."""
    history = subject.history
    shown = {results.allocation_of(run) for results in subject.results for run in results.runs}
    if history is None or history.nights[-1].allocation not in shown:
        return None
    return history_text.verdict(history)


def nights(subject: Subject) -> Section | None:
    """Return the section on nightly runs, latest changes first; None without a history."""
    history = subject.history
    if history is None:
        return None
    caption = "The last night of each row against the nights before"
    tables = [Table(caption=caption, rows=history_text.standings(history))]
    if history.nodes:
        tables.append(Table(caption="The slowest nodes", rows=history_text.node_table(history)))
    blocks = []
    for event in reversed(history.events):
        title, details = history_text.event_text(event, history)
        tone: Tone = "loss" if event.changes[0].is_loss else "pass"
        blocks.append(Block(title=title, items=[*map(Item, details)], tone=tone))
    return Section(
        title="History",
        intro=f"{history_text.nights_text(history)}.",
        blocks=blocks,
        figures=pictures(subject, "history"),
        tables=tables,
        notes=[note.strip() for note in history_text.notes(history)],
    )


SECTIONS: Sequence[Callable[[Subject], Section | None]] = (
    causes,
    rows,
    curves,
    nights,
    budget,
    phases,
    ranks,
)
"""Functions that create the sections below the verdict, in order; each may return None."""
_TONES_OF_NIGHTS: dict[str, Tone] = {"STEADY": "", "SLOWER": "loss"}


def report_html(subject: Subject) -> str:
    """Return the HTML of a report; raise UsageError if Jinja2 or matplotlib is missing."""
    view = subject.view
    made = [section for make in SECTIONS if (section := make(subject)) is not None]
    injections = dict.fromkeys(each for result in subject.results for each in result.injections)
    (word, first), *facts = measured_headline(subject) if view is None else view.headline
    tone: Tone = "" if view is None else TONES.get(view.comparison.exit_code, "doubt")
    if view is None and (of_nights := verdict_of_nights(subject)):
        word, first = of_nights
        tone = _TONES_OF_NIGHTS.get(word, "doubt")
        facts.append(("baseline", "none was given; --history DIR judges the last night"))
    if software := phrases.software_text(subject.results[0].environment):
        facts.append(("software", software))
    place = place_text(subject.results[0])
    return rendered(
        made,
        title=f"{word}: {place}",
        place=f"Scaling on {place}",
        warning=phrases.injection_warning([*injections]) if view is None else view.warning,
        word=word,
        first=first,
        facts=facts,
        tone=tone,
    )
