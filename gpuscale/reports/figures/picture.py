"""Appearance of all figures (styles, axes, notes), and their output as files."""

import html
import io
import math
import re
import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from gpuscale.analysis.history import History
from gpuscale.records import Baseline, Configuration, Run
from gpuscale.reports.phrases import counted, gpus_text, injection_warning, set_apart

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
_Tick = TypeVar("_Tick")
_MOST_COUNTS = 9
_LEGEND_CHARACTERS_PER_IN = 14
_LEGEND_MARK_IN = 0.55
"""Width of a marker in the legend plus the gap to the next column, in inches."""
_FRACTIONS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))
"""Alternative sets of ticks, as multiples of powers of ten, from coarse to fine."""
_FEWEST_TICKS = 3
_MOST_TICKS = 6
_UNITS = ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"))
"""For each unit of time: the shortest time shown in it, its length in seconds, and its symbol."""
KINDS = ("svg", "pdf", "png")
COLUMN_IN, PAGE_IN = 3.5, 7.2
"""Widths of a column and of a page in a paper, in inches."""
_FONT = "DejaVu Sans"
"""A wide font that comes with matplotlib: text laid out with it still fits in other fonts."""
_MOST_CHARACTERS = 28
"""Maximum length of the name of a row or case."""
LOG_SCALE = "log scale"
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
    **dict.fromkeys(
        (
            "text.color",
            "axes.edgecolor",
            "axes.labelcolor",
            "axes.titlecolor",
            "xtick.color",
            "ytick.color",
            "grid.color",
        ),
        INK,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Data for figures; each figure uses only some of it."""

    runs: Sequence[Run] = ()
    baseline: Baseline | None = None
    history: History | None = None
    injections: Sequence[str] = ()
    """Injected faults, named in each picture so that it never passes for a real result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure with a title, and with a description for people who cannot see it."""

    figure: Figure
    title: str
    description: str
    left_out: Sequence[str] = ()
    """Items omitted for lack of space, such as `2 more cases`."""


def styles_of(strategies: Mapping[str, str]) -> dict[str, Style]:
    """Return a style for each training variant, until the styles run out.

    The alphabetically first variant of a strategy gets the strategy's own style.
    """
    styles: dict[str, Style] = {}
    for way, strategy in sorted(strategies.items()):
        if (own := STYLES.get(strategy)) is not None and own not in styles.values():
            styles[way] = own
    free = [style for style in STYLES.values() if style not in styles.values()]
    others = sorted(strategies.keys() - styles.keys())
    return styles | dict(zip(others, free, strict=False))


def row_text(name: str, configuration: Configuration, gpus: int) -> str:
    """Name a row: `mnist_cnn/ddp, 2 GPUs` or `mnist_cnn/ddp, 2 CPU ranks`."""
    ranks = counted(gpus, "CPU rank") if configuration.device == "cpu" else gpus_text(gpus)
    return f"{name}, {ranks}"


def shortened(name: str) -> str:
    """Replace the middle of a long name by an ellipsis."""
    if len(name) <= _MOST_CHARACTERS:
        return name
    return f"{name[: _MOST_CHARACTERS // 2]}…{name[-_MOST_CHARACTERS // 2 :]}"


@contextmanager
def drawn(
    measurements: Measurements,
    width_in: float,
    height_in: float,
    notes: Iterable[str],
    left_out: Iterable[str],
) -> Iterator[Figure]:
    """Yield an empty figure in the style of all figures, not registered with pyplot.

    Notes and omitted items are printed below the figure in small type, injected faults first.
    """
    notes = (*notes, *(f"not shown: {each}" for each in left_out))
    if measurements.injections:
        notes = (injection_warning(measurements.injections), *notes)
    width = int(width_in * _NOTE_CHARACTERS_PER_IN)
    wrapped = [part for line in notes for part in textwrap.wrap(line, width)]
    with mpl.rc_context(_LOOK):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        yield figure
        if wrapped:
            figure.supxlabel("\n".join(wrapped), x=0.01, ha="left", fontsize=_NOTE_PT)


def left_out_of(counts: Mapping[str, int]) -> list[str]:
    """Format the numbers of items omitted for lack of space: `2 more cases`."""
    return [counted(count, f"more {word}") for word, count in counts.items() if count > 0]


def names_beside(configurations: Sequence[Configuration]) -> dict[Configuration, str]:
    """Return a unique name for each configuration, shortened if it is long and remains unique."""
    names = set_apart(configurations)
    short = {each: shortened(name) for each, name in names.items()}
    return short if len({*short.values()}) == len({*names.values()}) else names


def legend_columns(handles: Sequence[Artist], width_in: float, most: int) -> int:
    """Return the largest number of columns, up to `most`, in which the legend fits the width."""
    widths_in = [
        len(str(each.get_label())) / _LEGEND_CHARACTERS_PER_IN + _LEGEND_MARK_IN for each in handles
    ]

    def has_room(columns: int) -> bool:
        rows = math.ceil(len(widths_in) / columns)
        tops = (max(widths_in[at : at + rows]) for at in range(0, len(widths_in), rows))
        return sum(tops) <= width_in

    return next(filter(has_room, range(most, 1, -1)), 1)


def lay_gpus(axes: Axes, counts: Iterable[int]) -> None:
    """Make the x axis logarithmic, with the numbers of GPUs as its ticks."""
    ascending = sorted(set(counts))
    axes.set_xscale("log", base=2)
    axes.set_xlim(ascending[0] / 1.3, ascending[-1] * 1.3)
    label_ticks(axes.xaxis, thinned(ascending, _MOST_COUNTS, math.log))


def lay_amounts(axes: Axes, values: Iterable[float]) -> None:
    """Make the labelled y axis logarithmic for positive values, with round numbers as ticks."""
    known = [*values]
    low, high = min(known), max(known)
    room = max(1.1, (high / low) ** 0.08)
    axes.set_yscale("log")
    axes.set_ylabel(f"{axes.get_ylabel()}\n{LOG_SCALE}")
    axes.set_ylim(low / room, high * room)
    label_ticks(axes.yaxis, _round_numbers(low / room, high * room))


def label_ticks(axis: Axis, numbers: Iterable[float]) -> None:
    """Put ticks at exactly these numbers, labelled without exponents."""
    axis.set_major_locator(FixedLocator([*numbers]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def legend_of(panels: Iterable[Axes], order: Sequence[str]) -> list[Artist]:
    """Return one artist from the panels for each label in `order`, for use in a legend."""
    found = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    return [found[label] for label in dict.fromkeys(order) if label in found]


def time_unit(times_s: Iterable[float]) -> tuple[float, str]:
    """Return the length in seconds and the symbol of the unit that suits these times."""
    middle_s = statistics.geometric_mean(times_s)
    for least_s, unit_s, sign in _UNITS:
        if middle_s >= least_s:
            return unit_s, sign
    return 1e-6, "µs"


def _round_numbers(low: float, high: float) -> list[float]:
    """Return round numbers between the bounds, as evenly spaced on a log axis as possible."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for fractions in _FRACTIONS:
        numbers = [part * 10.0**power for power in powers for part in fractions]
        inside = [number for number in numbers if low <= number <= high]
        if _FEWEST_TICKS <= len(inside) <= _MOST_TICKS:
            return inside
    between = MaxNLocator(_MOST_TICKS - 2, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(number) for number in between if low <= number <= high]


def thinned(
    ascending: Sequence[_Tick], most: int, position: Callable[[_Tick], float]
) -> list[_Tick]:
    """Drop items until their labels do not overlap on an axis with room for `most` labels."""
    room = (position(ascending[-1]) - position(ascending[0])) / most
    kept = [ascending[0]]
    for each in ascending[1:]:
        if position(each) - position(kept[-1]) > room:
            kept.append(each)
    return kept


def svg_of(picture: Picture) -> str:
    """Return the picture as an SVG element that takes the colours of the surrounding text.

    Pictures with different titles or descriptions never share an element ID.
    """
    text = _element(picture, background="none")
    return text.replace(INK, "currentColor").replace(SURFACE, "var(--surface, Canvas)")


def content_of(picture: Picture, kind: str) -> bytes:
    """Return a file of the given kind, on white; equal pictures give identical files."""
    if kind == "svg":
        return f"{_element(picture, background='white')}\n".encode()
    words = {"Title": picture.title}
    metadata = {"pdf": {**words, "CreationDate": None}, "png": words}
    written = io.BytesIO()
    with mpl.rc_context(_LOOK):
        picture.figure.savefig(
            written, format=kind, dpi=300, facecolor="white", metadata=metadata[kind]
        )
    return written.getvalue()


def _element(picture: Picture, *, background: str) -> str:
    """Return an SVG element with an accessible name and description, but without style rules."""
    title, description = html.escape(picture.title), html.escape(picture.description)
    written = io.StringIO()
    with mpl.rc_context({**_LOOK, "svg.hashsalt": title + description}):
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        picture.figure.savefig(written, format="svg", facecolor=background, metadata=metadata)
    text = written.getvalue()
    # Ids of groups are the same in every figure, and nothing refers to them.
    used = {*re.findall(r'(?:href="|url\()#([^")]+)', text)}
    text = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)
    # Nobody sees less than a hundredth of a point, and further digits are a tenth of the element.
    text = re.sub(
        r' (?:d|x|y|transform)="[^"]+"',
        lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]),
        text,
    )
    # In a page such a rule would apply to the whole page.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, flags=re.DOTALL)
    text = text.replace(f"'{_FONT}'", "sans-serif")
    lines = [line.strip() for line in text[text.index("<svg") :].splitlines()]
    opening, _, content = "\n".join(lines).partition(">")
    words = f"<title>{title}</title><desc>{description}</desc>"
    return f'{opening} role="img" stroke-linejoin="round">{words}{content}'
