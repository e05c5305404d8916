"""Where the time of a step goes: the efficiency budget and the phases."""

from gpuscale.budget import EfficiencyBudget, efficiency_budgets
from gpuscale.page.content import Cell, Section, Subject, Table, Tone, cells
from gpuscale.reports import phrases
from gpuscale.reports.phrases import UNKNOWN
from gpuscale.reports.step_time import budget_lines, phase_cells, phase_notes
from gpuscale.typical_step import typical_steps
from gpuscale.units import whole_percent

NAMED_LOSS = 0.1
"""The part of a step from which it is shaded."""


def budget(subject: Subject) -> Section | None:
    """What of the ideal speedup was lost, and to what."""
    found = [each for each in efficiency_budgets(subject.runs) if each.parts]
    if not found:
        return None
    parts = list(dict.fromkeys(name for each in found for name in (*each.parts, *each.absent)))
    names = phrases.set_apart([each.configuration for each in found])
    table = Table(
        caption="Efficiency, and the parts of a step that it lacks to 1",
        headers=("case", "GPUs", "E", *parts, "rest"),
        rows=[
            (*cells(names[each.configuration], str(each.key.gpus)), *_shares(each, parts))
            for each in found
        ],
    )
    # The lines that follow the budgets themselves.
    notes = [line for line in budget_lines(subject.runs) if line and " = 1 " not in line]
    return Section(title="Where the efficiency went", tables=[table], notes=notes)


def _shares(budget: EfficiencyBudget, parts: list[str]) -> list[Cell]:
    known = {**budget.parts, "rest": budget.rest}
    shares = [Cell(f"{budget.efficiency:.2f}")]
    for name in (*parts, "rest"):
        share = known.get(name)
        tone: Tone = "slower" if share is not None and share >= NAMED_LOSS else ""
        shares.append(Cell(UNKNOWN if share is None else whole_percent(share), tone=tone))
    return shares


def phases(subject: Subject) -> Section | None:
    """The phases of a step, of each row."""
    steps = typical_steps(subject.runs)
    if not steps:
        return None
    texts = phase_cells(steps)
    table = Table(
        caption="An average step of each row, phase by phase",
        headers=[*texts],
        rows=[cells(*row) for row in zip(*texts.values(), strict=True)],
    )
    return Section(title="Phases", tables=[table], notes=list(phase_notes(steps)))
