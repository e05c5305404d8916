"""Stacked bars: the efficiency budget and the phases of a step."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text
from matplotlib.ticker import PercentFormatter

from gpuscale.analysis.budget import efficiency_budgets
from gpuscale.analysis.typical_step import typical_steps
from gpuscale.base.units import format_seconds, whole_percent
from gpuscale.reports.figures.picture import (
    COLUMN_IN,
    INK,
    SURFACE,
    Measurements,
    Picture,
    drawn,
    left_out_of,
    names_beside,
    row_text,
    time_unit,
)
from gpuscale.reports.phrases import amount_text

MOST_BARS = 24
_BAR_IN = 0.4
_BAR_HEIGHT = 0.45
"""Height of a bar as a share of the space per bar; the bar's label takes the rest."""
_LEGEND_COLUMNS = 3
_FILLED = 0.9
"""A number is shown on a part only if it takes at most this share of the part's width."""


_LIGHT, _BLUE, _DARK = "#bdbdbd", "#0072b2", "#5f5f5f"
_FILLS = {
    **dict.fromkeys(("communication", "bubble"), "#d55e00"),
    "data": "#56b4e9",
    "h2d": "#e69f00",
    **dict.fromkeys(("forward", "skew", "imbalance"), _BLUE),
    **dict.fromkeys(("backward", "micro-batching"), "#009e73"),
    "optimizer": "#cc79a7",
    **dict.fromkeys(("wait", "rest"), _DARK),
}
"""Colours of phases and budget parts, keyed by name; other parts are light grey."""


class _Bar(NamedTuple):
    """A stacked bar for one row, with the parts in stacking order."""

    case: str
    label: str
    parts: Mapping[str, float]
    end: str
    """Text to the right of the bar."""
    shares: Mapping[str, str]
    """Text on each part: the part's share of a step."""
    description: str
    """Description of the parts in words."""


def budget_picture(measurements: Measurements) -> Picture | None:
    """Draw the efficiency budget of each row on several GPUs."""
    budgets = [each for each in efficiency_budgets(measurements.runs) if each.parts]
    names = names_beside([each.configuration for each in budgets])
    bars = [
        _Bar(
            case="",
            label=row_text(names[each.configuration], each.configuration, each.key.gpus),
            parts={"efficiency": each.efficiency, **each.parts, "rest": each.rest},
            end="",
            shares={name: f"{value} %" for name, value in each.hundredths.items()},
            description=", ".join(
                f"{name} {'−' if value < 0 else ''}{abs(value) / 100:.2f}"
                for name, value in each.hundredths.items()
            ),
        )
        for each in budgets
    ]
    # If there is not room for all bars, those that lost most are shown.
    worst = sorted(bars, key=lambda bar: bar.parts["efficiency"])[:MOST_BARS]
    shown = [bar for bar in bars if bar in worst]
    notes = ["of a step on n GPUs; below 0: shorter than on one GPU"]
    return _picture(measurements, "What the efficiency was lost to", bars, shown, notes)


def phases_picture(measurements: Measurements) -> Picture | None:
    """Draw the phases of an average step in each row; each case has its own axis."""
    steps = typical_steps(measurements.runs)
    names = names_beside([point.configuration for point in steps])
    bars = [
        _Bar(
            case=point.configuration.case,
            label=row_text(names[point.configuration], point.configuration, point.gpus),
            parts=(parts := {n: s for n, s in step.phases_s.items() if s is not None}),
            end=format_seconds(step.time_s),
            shares={n: whole_percent(s / step.time_s) for n, s in parts.items()},
            description=", ".join(f"{n} {amount_text(s, 's')}" for n, s in parts.items()),
        )
        for point, step in steps.items()
    ]
    notes = ["an average step, of the slowest rank; communication: what the backward did not hide"]
    return _picture(measurements, "An average step, phase by phase", bars, bars[:MOST_BARS], notes)


def _picture(
    measurements: Measurements,
    title: str,
    bars: Sequence[_Bar],
    shown: Sequence[_Bar],
    notes: Sequence[str],
) -> Picture | None:
    """Draw bars, with one axis for each case; return None without bars."""
    if not bars:
        return None
    facets = [[*facet] for _, facet in groupby(shown, key=lambda bar: bar.case)]
    heights = [len(facet) + 1.3 for facet in facets]
    left_out = left_out_of({"row": len(bars) - len(shown)})
    with drawn(measurements, COLUMN_IN, 0.9 + _BAR_IN * sum(heights), notes, left_out) as figure:
        grid = figure.subplots(len(facets), squeeze=False, height_ratios=heights)
        numbers = [
            each for (axes,), facet in zip(grid, facets, strict=True) for each in _draw(axes, facet)
        ]
        # The bar with most parts has them in the order in which all are stacked.
        fullest = sorted(shown, key=lambda bar: -len(bar.parts))
        found = dict.fromkeys(name for bar in fullest for name in bar.parts)
        patches = [Patch(color=_FILLS.get(name, _LIGHT), label=name) for name in found]
        figure.legend(
            handles=patches, loc="outside upper left", ncols=_LEGEND_COLUMNS, handlelength=1.0
        )
        # The widths are known once the figure is laid out.
        figure.draw_without_rendering()
        for number, part in numbers:
            room = _FILLED * part.get_window_extent().width
            number.set_visible(number.get_window_extent().width <= room)
    texts = (f"{bar.label}: {bar.description}" for bar in shown)
    return Picture(figure=figure, title=title, description="; ".join(texts), left_out=left_out)


def _draw(axes: Axes, bars: Sequence[_Bar]) -> list[tuple[Text, Rectangle]]:
    """Draw the bars on one axis; return each number with the box on which it is printed."""
    numbers: list[tuple[Text, Rectangle]] = []
    lengths = [sum(part for part in bar.parts.values() if part > 0) for bar in bars]
    is_time = any(bar.end for bar in bars)
    factor, words = 1.0, "share of a step"
    if is_time:
        unit_s, unit = time_unit(lengths)
        factor, words = 1 / unit_s, f"step time ({unit})"
    for place, (bar, length) in enumerate(zip(bars, lengths, strict=True)):
        ends = {True: 0.0, False: 0.0}
        for name, part in bar.parts.items():
            fill, is_gain = _FILLS.get(name, _LIGHT), part < 0
            (box,) = axes.barh(
                place,
                part * factor,
                left=ends[is_gain] * factor,
                height=_BAR_HEIGHT,
                color=fill,
                edgecolor=SURFACE,
                linewidth=0.6,
            )
            if not is_gain:
                number = axes.annotate(
                    bar.shares[name],
                    ((ends[is_gain] + part / 2) * factor, place),
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    color="#ffffff" if fill in (_BLUE, _DARK) else "#000000",
                )
                number.set_in_layout(False)
                numbers.append((number, box))
            ends[is_gain] += part
        _name(axes, bar, place, ends[True] * factor, length * factor)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    # Leaves room for the first label.
    axes.set_ylim(len(bars) - 1 + _BAR_HEIGHT, _BAR_HEIGHT / 2 - 1)
    axes.margins(x=0.2 if is_time else 0.0)
    axes.set_xlabel(words)
    if not is_time:
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    return numbers


def _name(axes: Axes, bar: _Bar, place: int, left: float, right: float) -> None:
    """Print the label above a bar, gains to the left of the bar and the end text to the right."""
    label = axes.annotate(
        bar.label,
        (0.0, place - _BAR_HEIGHT / 2),
        (0, 2),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 0.5},
    )
    # A long label must not narrow the bars, since nothing stands next to it.
    label.set_in_layout(False)
    gains = [f"{name} −{share[1:]}" for name, share in bar.shares.items() if share.startswith("-")]
    for text, end, offset, side in (
        (", ".join(gains), left, -3, "right"),
        (bar.end, right, 3, "left"),
    ):
        axes.annotate(
            text, (end, place), (offset, 0), textcoords="offset points", ha=side, va="center"
        )
