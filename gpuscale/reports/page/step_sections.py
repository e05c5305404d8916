"""Where the time of a step goes: the efficiency budget and the phases."""

from collections.abc import Sequence

from gpuscale.analysis.budget import EfficiencyBudget, efficiency_budgets
from gpuscale.analysis.typical_step import typical_steps
from gpuscale.reports import phrases
from gpuscale.reports.page.content import Cell, Section, Subject, Table, cells
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
        headers=("case", "GPUs", "E", *parts, "rest"),
        rows=[
            (*cells(names[each.configuration], str(each.key.gpus)), *_shares(each, parts))
            for each in found
        ],
    )
    # The table has the budgets themselves.
    found_lines = [
        f"{label}: {text}" for label, text in budget_findings(subject.runs) if " = 1 " not in text
    ]
    notes = [*budget_legend(found, "the phases below have"), *_few(found_lines)]
    figures = pictures(subject, "budget")
    return Section(title="Where the efficiency went", figures=figures, tables=[table], notes=notes)


def _few(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _MOST_LINES
    rest = [f"and {more} more: gpuscale show has all"] if more > 0 else []
    return [*lines[:_MOST_LINES], *rest]


def _with_share_below(text: str) -> Cell:
    """`7.21 ms 17.6 %` in two lines; what has no share stays in one."""
    *time, share, sign = text.split(" ") if " " in text else ("", text, "")
    return Cell(" ".join(time), f"{share} {sign}") if sign == "%" and time else Cell(text)


def _shares(budget: EfficiencyBudget, parts: list[str]) -> list[Cell]:
    shares = {name: hundredths / 100 for name, hundredths in budget.hundredths.items()}
    found = []
    for name in ("efficiency", *parts, "rest"):
        share = shares.get(name)
        text = phrases.known_text(share, "{:.2f}".format).replace("-", "−")
        is_loss = name != "efficiency" and share is not None and share >= NAMED_LOSS
        found.append(Cell(text, tone="slower" if is_loss else ""))
    return found


def phases(subject: Subject) -> Section | None:
    """The phases of a step, of each row."""
    steps = typical_steps(subject.runs)
    if not steps:
        return None
    texts = phase_cells(steps)
    table = Table(
        caption="The time of each phase, and in small type its share of the step",
        headers=[*texts],
        rows=[[*map(_with_share_below, row)] for row in zip(*texts.values(), strict=True)],
    )
    notes = _few([*phase_notes(steps, "the judged step time, in the rows above,")])
    return Section(title="Phases", figures=pictures(subject, "phases"), tables=[table], notes=notes)
