"""The nights of a machine: each row's throughput, its levels, and what changed when."""

import itertools
import statistics
from collections.abc import Sequence
from datetime import datetime

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from gpuscale.environment_diff import change_text
from gpuscale.figures.axes import label_ticks, legend_of, names_beside, thinned
from gpuscale.figures.picture import (
    COLUMN_IN,
    INK,
    STYLES,
    SURFACE,
    Measurements,
    Picture,
    drawn,
    notes_of_left_out,
    row_text,
)
from gpuscale.history import History, Night, RowHistory, environment_at
from gpuscale.reports.phrases import counted, percent_text
from gpuscale.statistics.estimates import exponential

MOST_ROWS = 8
MOST_ENVIRONMENTS = 6
"""Changes of the environment that are told below the picture, the latest."""
_MOST_DATES, _MOST_RATES = 3, 3
_LEAST_ROOM, _ROOM = 0.01, 0.25
"""Below the nights of a row, twice above: of their throughput, and of what they differ by."""
_LABEL_WIDTH, _LABEL_PT = 0.17, 9
"""Of a change: of the time that all nights take, and its height."""
_LEGEND = ("night", "outlying night", "level", "level changed", "environment changed")
_COLOR, _LEVEL_COLOR = STYLES[0][0], STYLES[1][0]


def history_picture(measurements: Measurements) -> Picture | None:
    """Each row over the nights, those that changed first."""
    history = measurements.history
    if history is None or not history.rows:
        return None
    ordered = sorted(history.rows, key=lambda row: (not row.changes, not row.outlying))
    shown = ordered[:MOST_ROWS]
    names = names_beside([row.point.configuration for row in history.rows])
    labels = [
        row_text(names[row.point.configuration], row.point.configuration, row.point.gpus)
        for row in shown
    ]
    changed = [
        (night, changes)
        for night in range(1, len(history.nights))
        if (changes := environment_at(history.nights, night))
    ]
    notes = [
        "samples/s of each night; percentages are from level to level; outlying nights beyond the "
        "axis lie at its end; dates in UTC",
        *(
            f"{history.nights[night].began_at:%Y-%m-%d}: {'; '.join(map(change_text, changes))}"
            for night, changes in changed[-MOST_ENVIRONMENTS:]
        ),
        *notes_of_left_out(len(changed) - MOST_ENVIRONMENTS, "change of the environment"),
        *notes_of_left_out(len(ordered) - len(shown), "row"),
    ]
    with drawn(measurements, COLUMN_IN, 0.9 + 1.05 * len(shown), notes) as figure:
        grid = figure.subplots(len(shown), sharex=True, squeeze=False)
        for (axes,), row, label in zip(grid, shown, labels, strict=True):
            _draw(axes, row, history.nights, [night for night, _ in changed])
            axes.set_title(label, loc="left")
        named = thinned(history.nights, _MOST_DATES, lambda night: _number(night.began_at))
        grid[-1][0].set_xticks(
            [_number(night.began_at) for night in named],
            [f"{night.began_at:%Y-%m-%d}" for night in named],
        )
        figure.legend(handles=legend_of(grid.flat, _LEGEND), loc="outside upper left", ncols=2)
    return Picture(
        figure=figure,
        title=f"{counted(len(history.nights), 'night')} of {history.machine}",
        description="; ".join(
            f"{label}: {_sentence(row, history)}" for row, label in zip(shown, labels, strict=True)
        ),
    )


def _draw(
    axes: Axes, row: RowHistory, nights: Sequence[Night], environments: Sequence[int]
) -> None:
    """The nights of a row, its levels, and what changed with them."""
    days = {index: _number(nights[index].began_at) for index in row.nights}
    rates = {
        index: row.point.global_batch / exponential(nights[index].log_step_times[row.point])
        for index in row.nights
    }
    bounds = [0, *(row.nights.index(change.onset) for change in row.changes), len(row.nights)]
    for begin, end in itertools.pairwise(bounds):
        level = row.nights[begin:end]
        rate = statistics.median(rates[index] for index in level)
        ends = [days[level[0]], days[level[-1]]]
        axes.plot(ends, [rate, rate], color=_LEVEL_COLOR, linewidth=1.6, label="level")
    far = {*row.outlying}
    # One night that is far away would draw all levels as one line.
    usual = [rate for index, rate in rates.items() if index not in far] or [*rates.values()]
    room = max(_LEAST_ROOM * max(usual), _ROOM * (max(usual) - min(usual)))
    low, high = min(usual) - room, max(usual) + 2 * room
    axes.set_ylim(low, high)
    for label, face, its in (
        ("night", _COLOR, [index for index in row.nights if index not in far]),
        ("outlying night", SURFACE, row.outlying),
    ):
        # An empty line takes the corner of the figure, and leaves no room for what is drawn.
        if its:
            axes.plot(
                [days[index] for index in its],
                [min(max(rates[index], low), high) for index in its],
                clip_on=False,
                linestyle="none",
                marker="o",
                markersize=3.5,
                color=_COLOR,
                markerfacecolor=face,
                label=label,
            )
    # Between two nights, where no dot is, and marks beside lines: a night may have both.
    if environments:
        axes.plot(
            [_between(nights[night - 1], nights[night]) for night in environments],
            [0.0] * len(environments),
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            linestyle="none",
            marker="^",
            markersize=5,
            color=INK,
            label="environment changed",
        )
    earliest, latest = _number(nights[0].began_at), _number(nights[-1].began_at)
    label_days = _LABEL_WIDTH * max(latest - earliest, 1.0)
    axes.set_xlim(earliest - label_days / 4, latest + label_days)
    free_from: list[float] = []
    for change in row.changes:
        before = row.nights[row.nights.index(change.onset) - 1]
        moment = _between(nights[before], nights[change.onset])
        # In the first line of labels that has room there.
        line = next((at for at, day in enumerate(free_from) if day <= moment), len(free_from))
        free_from[line : line + 1] = [moment + label_days]
        axes.annotate(
            percent_text(change.throughput.value),
            (moment, 1.0),
            (2, -2 - _LABEL_PT * line),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            va="top",
            fontweight="bold",
            bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 0.5},
        )
        axes.axvline(moment, color=INK, linewidth=1.0, label="level changed")
    label_ticks(axes.yaxis, MaxNLocator(_MOST_RATES, steps=[1, 2, 5, 10]).tick_values(low, high))
    axes.set_ylim(low, high)


def _number(day: datetime) -> float:
    """As matplotlib counts days."""
    return day.timestamp() / 86400


def _between(before: Night, night: Night) -> float:
    return (_number(before.began_at) + _number(night.began_at)) / 2


def _sentence(row: RowHistory, history: History) -> str:
    if row.nights_missing:
        return f"{counted(len(row.nights), 'night')}, too few to tell a change of level"
    if not row.changes:
        return f"no change of level over {counted(len(row.nights), 'night')}"
    return ", ".join(
        f"{percent_text(change.throughput.value)} from "
        f"{history.nights[change.onset].began_at:%Y-%m-%d}"
        for change in row.changes
    )
