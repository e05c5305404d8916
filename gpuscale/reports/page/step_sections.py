"""Where the time of a step goes: the efficiency budget and the phases."""

from collections.abc import Sequence

from gpuscale.analysis.budget import EfficiencyBudget, efficiency_budgets
from gpuscale.analysis.typical_step import typical_steps
from gpuscale.reports import phrases
from gpuscale.reports.columns import Cell
from gpuscale.reports.page.content import Section, Subject, Table
from gpuscale.reports.page.pictures import pictures
from gpuscale.reports.show.step_time import budget_findings, budget_legend, phase_cells, phase_notes

NAMED_LOSS = 0.1
"""The part of a step from which it is shaded."""
_MOST_LINES = 8


def budget(subject: Subject) -> Section | None:
    """What of the ideal speedup was lost, and to what."""
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
    """The phases of a step, of each row."""
    steps = typical_steps(subject.runs)
    if not steps:
        return None
    table = Table(
        caption="The time of each phase, and in small type its share of the step",
        rows=phase_cells(steps),
    )
    notes = _few([*phase_notes(steps, "the judged step time, in the rows above,")])
    return Section(title="Phases", figures=pictures(subject, "phases"), tables=[table], notes=notes)
