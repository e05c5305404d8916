"""Results and baselines as a LaTeX table, as a paper or a proposal for computing time shows it."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from gpuscale import __version__
from gpuscale.base.units import format_seconds, significant
from gpuscale.judge.compare.hardware import hardware_label
from gpuscale.records import Estimate, Results
from gpuscale.reports import phrases
from gpuscale.reports.show.scaling_rows import ScalingRow, Shown, scaling_rows

_HEADERS = ("Nodes", "GPUs", "Batch", "Step time", "Samples/s", "Speedup", "Efficiency")
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
# Letters that pdflatex knows without a package.
_FOREIGN = re.compile("[^\x20-\x7eÀ-ÖØ-öø-ž±×−–µ]")
_SIGN = re.compile("|".join(map(re.escape, _SIGNS)))


def render(shown: Shown) -> str:
    """The rows as a table of the package booktabs, by configuration."""
    hours = () if shown.steps is None else ("GPU-hours",)
    headers = [*_HEADERS, *hours]
    lines = [
        f"% gpuscale {__version__}: {_plain(shown.path.name)}",
        r"% needs \usepackage{booktabs} before \begin{document}",
        r"\begin{table}",
        r"  \centering\small",
        rf"  \caption{{{_latex(_caption(shown))}}}",
        rf"  \begin{{tabular}}{{{'r' * len(headers)}}}",
        r"    \toprule",
        f"    {_line(headers)}",
        *(f"    {line}" for line in _groups(list(scaling_rows(shown)), len(headers))),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _groups(rows: list[ScalingRow], width: int) -> Iterator[str]:
    """The rows below a line that names their configuration."""
    for (kind, configuration), its in groupby(rows, key=lambda row: (row.kind, row.configuration)):
        words = [configuration.label, phrases.configuration_text(configuration)]
        words += [f"{configuration.scaling} scaling"] if configuration.scaling else []
        words += [kind] if kind != "measured" else []
        yield r"\midrule"
        text = _latex(", ".join(filter(None, words)))
        yield rf"\multicolumn{{{width}}}{{l}}{{\emph{{{text}}}}} \\"
        yield from (_line(_cells(row, width)) for row in its)


def _cells(row: ScalingRow, width: int) -> list[str]:
    """The numbers of a row; a page is narrow, so each interval stands once."""
    return [
        phrases.known_text(row.nodes, str),
        str(row.gpus),
        str(row.samples_per_step or phrases.UNKNOWN),
        phrases.with_spread(row.step_time_s, format_seconds),
        _value(row.samples_per_s, significant),
        phrases.interval_text(row.speedup, significant),
        _value(row.efficiency, "{:.2f}".format),
        _value(row.gpu_hours, significant),
    ][:width]


def _value(estimate: Estimate | None, form: Callable[[float], str]) -> str:
    return phrases.UNKNOWN if estimate is None else form(estimate.value)


def _caption(shown: Shown) -> str:
    """Where the numbers come from, and what intervals and hours they have."""
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
    """The text with foreign letters as escapes."""
    return _FOREIGN.sub(lambda found: ascii(found[0])[1:-1], text)


def _latex(text: str) -> str:
    """The text as LaTeX prints it, ligatures such as that of two hyphens apart."""
    signs = _SIGN.sub(lambda found: _SIGNS[found[0]], _plain(text))
    return re.sub("-(?=-)", "-{}", signs)
