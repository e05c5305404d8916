"""Figure of a machine's nightly results: each row's throughput, levels and changes."""

import itertools
import statistics
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from gpuscale.analysis.history import History, Night, RowHistory, environment_at
from gpuscale.analysis.scaling import level_of
from gpuscale.analysis.statistics.estimates import exponential
from gpuscale.records import EnvironmentChange, Estimate, PointKey
from gpuscale.records.environment_diff import environment_text
from gpuscale.reports.figures.picture import (
    COLUMN_IN,
    INK,
    STYLES,
    SURFACE,
    Measurements,
    Picture,
    drawn,
    label_ticks,
    left_out_of,
    legend_of,
    names_beside,
    row_text,
)
from gpuscale.reports.history_text import night_names
from gpuscale.reports.phrases import counted, percent_text

MOST_ROWS = 8
MOST_ENVIRONMENTS = 6
"""Maximum number of environment changes listed below the picture; the latest are kept."""
_MOST_RATES = 3
_LEAST_ROOM, _ROOM = 0.01, 0.25
"""Margin below the lowest point: a share of the throughput or of its range, whichever is larger."""
_LABEL_WIDTH, _LABEL_PT = 0.17, 9
"""Width of a change's label as a share of the number of nightly runs; its height in points."""
_LEGEND = ("night", "outlying night", "level", "level changed", "environment changed")
_COLOR, _LEVEL_COLOR = STYLES["ddp"][0], STYLES["dp"][0]


def history_picture(measurements: Measurements) -> Picture | None:
    """Draw each row's nightly throughput; rows with a change of level come first."""
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
    changed, dates = [*_environment_changes(history.nights)], night_names(history.nights)
    notes = [
        "percentages are from level to level; outlying nights beyond the axis lie at its end; "
        "dates in UTC",
        *(
            f"{dates[night]}: {'; '.join(map(environment_text, each))}"
            for night, each in changed[-MOST_ENVIRONMENTS:]
        ),
        *(
            f"not shown: {each}"
            for each in left_out_of({"environment change": len(changed) - MOST_ENVIRONMENTS})
        ),
        *([f"left out: {', '.join(history.left_out)}"] if history.left_out else ()),
    ]
    left_out = left_out_of({"row": len(ordered) - len(shown)})
    with drawn(measurements, COLUMN_IN, 0.9 + 1.05 * len(shown), notes, left_out) as figure:
        grid = figure.subplots(len(shown), sharex=True, squeeze=False)
        for (axes,), row, label in zip(grid, shown, labels, strict=True):
            _draw(axes, row, history, [night for night, _ in changed])
            axes.set_title(label, loc="left")
            metric = row.point.configuration.metric
            axes.set_ylabel("samples/s" if metric is None else metric.unit or "value")
        last = len(history.nights) - 1
        named = sorted({0, last // 2, last})
        grid[-1][0].set_xticks(named, [dates[index].replace(" ", "\n") for index in named])
        figure.legend(handles=legend_of(grid.flat, _LEGEND), loc="outside upper left", ncols=2)
    return Picture(
        figure=figure,
        title=history.label,
        description="; ".join(
            f"{label}: {_sentence(row, history)}" for row, label in zip(shown, labels, strict=True)
        ),
        left_out=left_out,
    )


def _environment_changes(
    nights: Sequence[Night],
) -> Iterator[tuple[int, Sequence[EnvironmentChange]]]:
    """Yield each night's environment changes; a host counts as a change only at its first use."""
    hosts = {nights[0].environment.host}
    for night in range(1, len(nights)):
        changes = [
            change
            for change in environment_at(nights, night)
            if change.name != "host" or not hosts.issuperset(change.after)
        ]
        hosts.add(nights[night].environment.host)
        if changes:
            yield night, changes


def _draw(axes: Axes, row: RowHistory, history: History, environments: Sequence[int]) -> None:
    """Draw a row's nightly throughput, its levels, and changes of the environment.

    Nightly runs are evenly spaced: on a date axis, one wrong clock would squeeze all the others.
    """
    rates = {
        index: _shown(row.point, exponential(history.nights[index].log_costs[row.point]))
        for index in row.nights
    }
    bounds = [0, *(row.nights.index(change.onset) for change in row.changes)]
    if not _has_too_few_nights(row):
        bounds.append(len(row.nights))
    for begin, end in itertools.pairwise(bounds):
        level = row.nights[begin:end]
        rate = statistics.median(rates[index] for index in level)
        axes.plot(
            [level[0], level[-1]], [rate, rate], color=_LEVEL_COLOR, linewidth=1.6, label="level"
        )
    far = {*row.outlying}
    # With one distant night on the axis, all levels would look like one line.
    usual = [rate for index, rate in rates.items() if index not in far] or [*rates.values()]
    room = max(_LEAST_ROOM * max(usual), _ROOM * (max(usual) - min(usual)))
    low, high = min(usual) - room, max(usual) + 2 * room
    axes.set_ylim(low, high)
    for label, face, nights in (
        ("night", _COLOR, [index for index in row.nights if index not in far]),
        ("outlying night", SURFACE, row.outlying),
    ):
        # An empty line would take the corner of the figure and narrow the rest.
        if nights:
            axes.plot(
                nights,
                [min(max(rates[index], low), high) for index in nights],
                clip_on=False,
                linestyle="none",
                marker="o",
                markersize=3.5,
                color=_COLOR,
                markerfacecolor=face,
                label=label,
            )
    # Drawn between two nights, where there is no dot; marks and lines may share a night.
    if environments:
        axes.plot(
            [night - 0.5 for night in environments],
            [0.0] * len(environments),
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            linestyle="none",
            marker="^",
            markersize=5,
            color=INK,
            label="environment changed",
        )
    _draw_changes(axes, row, len(history.nights))
    label_ticks(axes.yaxis, MaxNLocator(_MOST_RATES, steps=[1, 2, 5, 10]).tick_values(low, high))
    axes.set_ylim(low, high)


def _shown(point: PointKey, cost: float) -> float:
    """Return the samples/s, or the value of the metric that is judged instead."""
    level = level_of(point, Estimate(value=cost))
    shown = level.value or level.samples_per_s
    assert shown is not None, "a level has one of the two"
    return shown.value


def _draw_changes(axes: Axes, row: RowHistory, nights: int) -> None:
    """Draw a labelled line at each change of level, and leave space for the last label."""
    label_nights = _LABEL_WIDTH * nights
    axes.set_xlim(-label_nights / 4 - 0.5, nights + label_nights)
    free_from: list[float] = []
    for change in row.changes:
        before = row.nights[row.nights.index(change.onset) - 1]
        moment = (before + change.onset) / 2
        # Use the first line of labels with room at this place.
        line = next((at for at, until in enumerate(free_from) if until <= moment), len(free_from))
        free_from[line : line + 1] = [moment + label_nights]
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


def _has_too_few_nights(row: RowHistory) -> bool:
    """True if a row was measured on too few of the latest nights to establish a level."""
    return row.is_unclear or row.nights_missing > 0


def _sentence(row: RowHistory, history: History) -> str:
    if _has_too_few_nights(row) and not row.changes:
        return f"{counted(len(row.nights), 'night')}, too few to detect a change of level"
    if not row.changes:
        return f"no change of level over {counted(len(row.nights), 'night')}"
    return ", ".join(
        f"{percent_text(change.throughput.value)} from {night_names(history.nights)[change.onset]}"
        for change in row.changes
    )
