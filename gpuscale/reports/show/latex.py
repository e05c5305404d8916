"""Results and baselines as a LaTeX table."""

import re

from gpuscale import __version__
from gpuscale.base.errors import FileError
from gpuscale.judge.sides import machine_label
from gpuscale.records import Results
from gpuscale.reports import phrases
from gpuscale.reports.show import Shown, cells_under, table_notes

_HEADERS = (
    *("case", "kind", "batch/GPU", "nodes"),
    *("GPUs", "step time", "samples/s", "speedup", "efficiency", "GPU-hours"),
)
# Characters that pdflatex does not know without a package.
_FOREIGN = re.compile("[^\n\x20-\x7eÀ-ÖØ-öø-ž±×−–µ]")


def latex(shown: Shown) -> str:
    """Return the rows as a LaTeX table, for a paper or a proposal for computing time."""
    from tabulate import LATEX_ESCAPE_RULES, tabulate

    headers = _HEADERS[: None if shown.steps else -1]
    cells = cells_under(headers, shown.points, steps=shown.steps)
    if not cells:
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
    first, *others = {point.configuration for point in shown.points}
    what = "" if others else f" of {first.label}"
    note, points = next(table_notes(shown.points)), shown.points
    counts = sorted({p.valid_runs for p in points if p.kind == "measured" and p.valid_runs})
    if counts[-1:] > [1]:
        note += f" ({phrases.format_range([*map(str, counts)])} of each measured row)"
    return f"{warning}Scaling{what} on {where}; {note}.{hours}"
