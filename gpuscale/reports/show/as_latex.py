"""Results and baselines as a LaTeX table, for a paper or a proposal for computing time."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from gpuscale import __version__
from gpuscale.base.units import significant
from gpuscale.judge.compare.hardware import hardware_label
from gpuscale.records import Results
from gpuscale.reports import phrases
from gpuscale.reports.show import Shown, columns_with

_HEADERS = {
    "Nodes": "nodes",
    "GPUs": "GPUs",
    "Batch": "batch",
    "Step time": "step time",
    "Samples/s": "samples/s",
    "Speedup": "speedup",
    "Efficiency": "efficiency",
    "GPU-hours": "GPU-hours",
}
"""Headers in the LaTeX table, each with the header of that column in other formats."""
_WITH_INTERVAL = ("step time", "speedup")
"""Columns shown with intervals; others have none, since a printed page is narrow."""
_SIGNS = {
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "–": r"\textendash{}",
    "µ": r"$\mu$",
}
# Characters that pdflatex does not know without a package.
_FOREIGN = re.compile("[^\x20-\x7eÀ-ÖØ-öø-ž±×−–µ]")
_SIGN = re.compile("|".join(map(re.escape, _SIGNS)))


def render(shown: Shown) -> str:
    """Return the rows as a table for the LaTeX package booktabs, grouped by configuration."""
    headers = [*_HEADERS][: None if shown.steps else -1]
    lines = [
        f"% gpuscale {__version__}: {_plain(shown.path.name)}",
        r"% needs \usepackage{booktabs} before \begin{document}",
        r"\begin{table}",
        r"  \centering\small",
        rf"  \caption{{{_latex(_caption(shown))}}}",
        rf"  \begin{{tabular}}{{{'r' * len(headers)}}}",
        r"    \toprule",
        f"    {_line(headers)}",
        *(f"    {line}" for line in _groups(shown, len(headers))),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _groups(shown: Shown, width: int) -> Iterator[str]:
    """For each configuration, yield a line with its name, then its rows."""
    columns = {column.header: column for column in columns_with(shown.steps)}
    columns["speedup"] = replace(columns["speedup"], form=significant)
    kinds = groupby(shown.points, key=lambda point: (point.kind, point.configuration))
    for (kind, configuration), points in kinds:
        words = [configuration.label, phrases.configuration_text(configuration)]
        words += [f"{configuration.scaling} scaling"] if configuration.scaling else []
        words += [kind] if kind != "measured" else []
        yield r"\midrule"
        text = _latex(", ".join(filter(None, words)))
        yield rf"\multicolumn{{{width}}}{{l}}{{\emph{{{text}}}}} \\"
        for point in points:
            cells = {name: columns[name].cell(point) for name in [*_HEADERS.values()][:width]}
            yield _line(
                cell.line if name in _WITH_INTERVAL else cell.text for name, cell in cells.items()
            )


def _caption(shown: Shown) -> str:
    """State the origin of the numbers and the meaning of intervals and GPU-hours."""
    content = shown.content
    if isinstance(content, Results):
        where = f"{content.environment.hardware_label}, {content.created_at[:10]}"
    else:
        where = hardware_label(content.cluster, content.hardware)
        if content.source is not None:
            where += f"; published figures from {content.source.title}"
    warning = f"{phrases.injection_warning(shown.injections)}. " if shown.injections else ""
    hours = "" if shown.steps is None else f" GPU-hours are those of {shown.steps:,} steps."
    projected = " Projected rows were not measured; theirs are bands." if shown.projections else ""
    return (
        f"{warning}Scaling on {where}. Batch is over all GPUs; intervals are 95 % over runs."
        f"{projected}{hours}"
    )


def _line(cells: Iterable[str]) -> str:
    return rf"{' & '.join(map(_latex, cells))} \\"


def _plain(text: str) -> str:
    """Replace characters unknown to pdflatex by their Python escapes."""
    return _FOREIGN.sub(lambda found: ascii(found[0])[1:-1], text)


def _latex(text: str) -> str:
    """Escape text for LaTeX, and keep consecutive hyphens separate."""
    signs = _SIGN.sub(lambda found: _SIGNS[found[0]], _plain(text))
    return re.sub("-(?=-)", "-{}", signs)
