"""Appearance of all figures (styles, legends, notes), and their output as files."""

import html
import io
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import msgspec
from matplotlib.figure import Figure

from gpuscale.analysis.history import History
from gpuscale.analysis.scaling import scaling_points
from gpuscale.records import Baseline, Configuration, Run
from gpuscale.reports.phrases import counted, few, injection_warning, set_apart

INK = "#1b1b1c"
"""Colour of axes and text; `svg_of` replaces it with the colour of the surrounding text."""
SURFACE = "#fefefd"
"""Fill of hollow markers; `svg_of` replaces it with the CSS variable `--surface`."""
Style = tuple[str, str, str | tuple[int, tuple[int, ...]]]
STYLES: Mapping[str, Style] = {
    "ddp": ("#0072b2", "o", "-"),
    "dp": ("#d55e00", "s", "--"),
    "fsdp": ("#009e73", "^", "-."),
    "pipeline": ("#cc79a7", "D", ":"),
    "lightning": ("#e69f00", "v", (0, (5, 1, 1, 1, 1, 1))),
    "mp": ("#56b4e9", "P", (0, (1, 1))),
}
"""Colour (from Okabe and Ito's palette), marker and line style of each strategy in all figures."""
KINDS = ("svg", "pdf", "png")
COLUMN_IN, PAGE_IN = 3.5, 7.2
"""Widths of a column and of a page in a paper, in inches."""
_LEGEND_CHARACTERS_PER_IN = 14
_LEGEND_MARK_IN = 0.55
"""Width of a marker in the legend plus the gap to the next column, in inches."""
_FONT = "DejaVu Sans"
"""A wide font that comes with matplotlib: text laid out with it still fits in other fonts."""
_MOST_CHARACTERS = 28
"""Maximum length of the name of a row or case."""
_MOST_FAILED = 3
"""Maximum number of rows with failed runs that a picture names."""
_NOTE_PT = 6.5
_NOTE_CHARACTERS_PER_IN = 18
_LOOK: dict[Any, Any] = {
    "font.size": 8,
    "font.family": _FONT,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
    # A dollar sign in a name does not begin a formula.
    "text.parse_math": False,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color", "grid.color"), INK),
}


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """Data for figures; each figure uses only some of it."""

    runs: Sequence[Run] = ()
    baseline: Baseline | None = None
    earlier: Sequence[Run] = ()
    """Runs of the results given as a baseline, with the windows that a baseline file lacks."""
    history: History | None = None
    injections: Sequence[str] = ()
    """Injected faults, named in each picture so that it never passes for a real result."""
    origins: Sequence[str] = ()
    """Machine and dates of each side, named in each picture."""

    @property
    def failed(self) -> list[str]:
        """Notes on rows with failed runs: `gpt/ddp on 4 GPUs: 1 of 3 runs gave a number`."""
        rows = [point for point in scaling_points(self.runs) if point.failed_runs]
        texts = [
            f"{row.label}: {row.valid_runs} of "
            f"{counted(row.valid_runs + row.failed_runs, 'run')} gave a number"
            for row in rows
        ]
        return few(texts, _MOST_FAILED, "row")


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A figure, its title, and what was left out of it for lack of space."""

    figure: Figure
    title: str
    left_out: Sequence[str] = ()
    """Items omitted for lack of space, such as `2 more cases`."""


def styles_of(strategies: Mapping[str, str]) -> dict[str, Style]:
    """Return styles keyed by variant (strategy with options), until the styles run out.

    `strategies` maps variants to strategies. The alphabetically first variant of a strategy gets
    the strategy's style in `STYLES`, if any; the others get unused styles.
    """
    styles: dict[str, Style] = {}
    for label, strategy in sorted(strategies.items()):
        if (own := STYLES.get(strategy)) is not None and own not in styles.values():
            styles[label] = own
    free = [style for style in STYLES.values() if style not in styles.values()]
    return styles | dict(zip(sorted(strategies.keys() - styles.keys()), free, strict=False))


def distinct_names(configurations: Sequence[Configuration]) -> dict[Configuration, str]:
    """Return unique names of the configurations; long names are shortened if all stay unique."""
    names = set_apart(configurations)
    short = {each: shortened(name) for each, name in names.items()}
    return short if len({*short.values()}) == len({*names.values()}) else names


def shortened(name: str) -> str:
    """Replace the middle of a long name with an ellipsis."""
    if len(name) <= _MOST_CHARACTERS:
        return name
    return f"{name[: _MOST_CHARACTERS // 2]}…{name[-_MOST_CHARACTERS // 2 :]}"


def left_out_of(word: str, count: int) -> list[str]:
    """Say how many items were omitted for lack of space, `2 more cases`; empty if none were."""
    return [counted(count, f"more {word}")] if count > 0 else []


@contextmanager
def drawn(
    measurements: Measurements,
    title: str,
    width_in: float,
    height_in: float,
    notes: Iterable[str],
    left_out: Sequence[str],
) -> Iterator[Picture]:
    """Yield a picture with an empty figure to draw on; add its legend and notes afterwards.

    All labelled artists get a common legend above the plots. Notes and omitted items are printed
    below the figure in small type, after a warning if faults were injected.
    """
    with mpl.rc_context(_LOOK):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        yield Picture(figure=figure, title=title, left_out=left_out)
        found = (axes.get_legend_handles_labels() for axes in figure.axes)
        labelled = {label: each for both in found for each, label in zip(*both, strict=True)}
        column_in = _LEGEND_MARK_IN + max(map(len, labelled), default=0) / _LEGEND_CHARACTERS_PER_IN
        # The fewest columns that keep the number of lines: a curve and its baseline share a column.
        lines = math.ceil(len(labelled) / max(1, int(width_in / column_in)))
        figure.legend(
            labelled.values(),
            labelled.keys(),
            loc="outside upper left",
            ncols=math.ceil(len(labelled) / max(1, lines)),
        )
        not_shown = [f"not shown: {each}" for each in left_out]
        warning = injection_warning(measurements.injections)
        notes = (warning, *notes, *measurements.failed, *not_shown, *measurements.origins)
        width = int(width_in * _NOTE_CHARACTERS_PER_IN)
        if wrapped := [part for line in notes for part in textwrap.wrap(line, width)]:
            figure.supxlabel("\n".join(wrapped), x=0.01, ha="left", fontsize=_NOTE_PT)


def svg_of(picture: Picture) -> str:
    """Return the picture as an SVG element that takes the colours of the surrounding text.

    Pictures with different titles never share an element ID, so one page can contain several.
    """
    text = _element(picture, background="none")
    return text.replace(INK, "currentColor").replace(SURFACE, "var(--surface, Canvas)")


def content_of(picture: Picture, kind: str) -> bytes:
    """Return the bytes of an SVG, PDF or PNG file on white; equal pictures give equal bytes."""
    if kind == "svg":
        return f"{_element(picture, background='white')}\n".encode()
    words = {"Title": picture.title}
    metadata = {"pdf": {**words, "CreationDate": None}, "png": words}[kind]
    written = io.BytesIO()
    with mpl.rc_context(_LOOK):
        picture.figure.savefig(written, format=kind, dpi=300, facecolor="white", metadata=metadata)
    return written.getvalue()


def _element(picture: Picture, *, background: str) -> str:
    """Return an SVG on `background`, with a title for screen readers and no page-wide styles."""
    title = html.escape(picture.title)
    written = io.StringIO()
    with mpl.rc_context({**_LOOK, "svg.hashsalt": title}):
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        picture.figure.savefig(written, format="svg", facecolor=background, metadata=metadata)
    text = written.getvalue()
    # Matplotlib gives groups the same IDs in every figure, and nothing refers to them.
    used = {*re.findall(r'(?:href="|url\()#([^")]+)', text)}
    text = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)
    # Differences of less than a hundredth of a point are invisible.
    text = re.sub(r"(\.\d\d)\d{4}\b", r"\1", re.sub(r"\n\s+", "\n", text))
    # Embedded in a page, the style rule would apply to the whole page.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, flags=re.DOTALL)
    text = text.replace(f"'{_FONT}'", "sans-serif")
    opening, _, content = text[text.index("<svg") :].strip().partition(">")
    return f'{opening} role="img" stroke-linejoin="round"><title>{title}</title>{content}'
