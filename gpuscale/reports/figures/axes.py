"""Axes whose ticks are numbers, and in units, that a person would choose."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from gpuscale.records import Configuration
from gpuscale.reports.figures.picture import shortened
from gpuscale.reports.phrases import set_apart

_Tick = TypeVar("_Tick")
_MOST_COUNTS = 9
_LEGEND_CHARACTERS_PER_IN = 14
_LEGEND_MARK_IN = 0.55
"""With the gap to the next column."""
_FRACTIONS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0))
"""Of a power of ten: those of ticks, coarse to fine."""
_FEWEST_TICKS = 3
_MOST_TICKS = 6
_UNITS = ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"))
"""From so many seconds on, of so many, and its sign."""


def names_beside(configurations: Sequence[Configuration]) -> dict[Configuration, str]:
    """A name for each configuration, shortened where that leaves them apart."""
    names = set_apart(configurations)
    short = {each: shortened(name) for each, name in names.items()}
    return short if len({*short.values()}) == len({*names.values()}) else names


def legend_columns(handles: Sequence[Artist], width_in: float, most: int) -> int:
    """The most columns in which a legend has room; it fills them one after the other."""
    widths_in = [
        len(str(each.get_label())) / _LEGEND_CHARACTERS_PER_IN + _LEGEND_MARK_IN for each in handles
    ]

    def has_room(columns: int) -> bool:
        rows = math.ceil(len(widths_in) / columns)
        tops = (max(widths_in[at : at + rows]) for at in range(0, len(widths_in), rows))
        return sum(tops) <= width_in

    return next(filter(has_room, range(most, 1, -1)), 1)


def lay_gpus(axes: Axes, counts: Iterable[int]) -> None:
    """Makes the x axis logarithmic, with the numbers of GPUs that there are as its ticks."""
    ascending = sorted(set(counts))
    axes.set_xscale("log", base=2)
    axes.set_xlim(ascending[0] / 1.3, ascending[-1] * 1.3)
    label_ticks(axes.xaxis, thinned(ascending, _MOST_COUNTS, math.log))


def lay_amounts(axes: Axes, values: Iterable[float]) -> None:
    """Makes the y axis logarithmic about the (positive) values, with round numbers as ticks."""
    known = [*values]
    low, high = min(known), max(known)
    room = max(1.1, (high / low) ** 0.08)
    axes.set_yscale("log")
    axes.set_ylim(low / room, high * room)
    label_ticks(axes.yaxis, _round_numbers(low / room, high * room))


def label_ticks(axis: Axis, numbers: Iterable[float]) -> None:
    """Puts ticks at these numbers, as plain numbers, and nowhere else."""
    axis.set_major_locator(FixedLocator([*numbers]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def legend_of(panels: Iterable[Axes], order: Sequence[str]) -> list[Artist]:
    """What the panels label, each label once and in this order."""
    found = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    return [found[label] for label in dict.fromkeys(order) if label in found]


def time_unit(times_s: Iterable[float]) -> tuple[float, str]:
    """The unit in which such times are read: its seconds, and its sign."""
    middle_s = statistics.geometric_mean(times_s)
    for least_s, unit_s, sign in _UNITS:
        if middle_s >= least_s:
            return unit_s, sign
    return 1e-6, "µs"


def _round_numbers(low: float, high: float) -> list[float]:
    """Between the bounds, evenly on a logarithmic axis as far as round numbers can be."""
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
    """Those whose labels have room beside each other, where an axis has room for so many."""
    room = (position(ascending[-1]) - position(ascending[0])) / most
    kept = [ascending[0]]
    for each in ascending[1:]:
        if position(each) - position(kept[-1]) > room:
            kept.append(each)
    return kept
