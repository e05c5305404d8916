"""Figure of a machine's nightly results: each row's throughput, and when its level changed."""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from matplotlib.axes import Axes

from gpuscale.analysis.estimates import log_sample
from gpuscale.analysis.history import History, RowChange, RowHistory
from gpuscale.analysis.nights import Night
from gpuscale.analysis.scaling import geometric_mean, level_of
from gpuscale.analysis.shifts_and_drifts import FEWEST_NIGHTS, REMEMBERED
from gpuscale.base.grouping import by_key
from gpuscale.base.text import format_percent
from gpuscale.records import Estimate, PointKey, Scaling
from gpuscale.records.environment_diff import environment_text
from gpuscale.reports.figures import picture
from gpuscale.reports.figures.picture import Measurements, Picture, drawn
from gpuscale.reports.phrases import busy_text, percent_text, row_text

MOST_ROWS = 8
_LEAST_ROOM, _ROOM = 0.01, 0.25
"""Margin below the lowest point: a share of the throughput or of its range, whichever is larger."""
_LABEL_WIDTH, _LABEL_PT, _LABEL_LINES = 0.17, 9, 3
"""Labels in a plot: width as a share of all nights, height in points, and number of rows."""
_BARS = (
    "bars: 95 % intervals over the runs of a night, cut at the ends of the axis; arrows: outlying "
    "nights beyond it, and how far they are from their level"
)
_BOLD = (
    "bold: the change between the levels beside it, each the mean of at most 15 nights, without "
    "outlying ones; of a slow drift, medians of the last week and of the one that differs most"
)
_COLOR, _LEVEL_COLOR = picture.STYLES["ddp"][0], picture.STYLES["dp"][0]
_TICK_PT, _CHARACTER_WIDTH = 6.5, 0.03
"""Size of the nights' names in points, and width of a character as a share of all nights."""


def history_picture(measurements: Measurements) -> Picture | None:
    """Draw each row's nightly throughput, rows with level changes first; None without rows."""
    history = measurements.history
    if history is None or not history.rows:
        return None
    ordered = sorted(history.rows, key=lambda row: (not row.changes, not row.outlying))
    shown = ordered[:MOST_ROWS]
    names = picture.distinct_names([row.point.configuration for row in history.rows])
    labels = [row_text(names, row.point.configuration, row.point.gpus) for row in shown]
    left_out = picture.left_out_of("row", len(ordered) - len(shown))
    points = {row.point for row in shown}
    rates = [_rates(night, points) for night in history.nights]
    height_in, notes = 0.9 + 1.05 * len(shown), [_BARS, *_notes(history)]
    if any(row.changes for row in shown):
        notes.insert(1, _BOLD)
    with drawn(measurements, history.label, picture.COLUMN_IN, height_in, notes, left_out) as image:
        grid = image.figure.subplots(len(shown), sharex=True, squeeze=False)
        for (axes,), row, label in zip(grid, shown, labels, strict=True):
            _draw(axes, row, rates)
            title = f"{label} (UNCLEAR: its last level is not drawn)" if row.is_unclear else label
            axes.set_title(title, loc="left")
            metric = row.point.configuration.metric
            axes.set_ylabel("samples/s" if metric is None else metric.unit or "value")
        last = len(history.nights) - 1
        onsets = [change.onset for row in shown for change in row.changes]
        named = _named_nights(history.names, onsets)
        # The label of a change is to the right of it.
        width = _LABEL_WIDTH * len(history.nights)
        moments = [_moment(row, change) for row in shown for change in row.changes]
        margin = width / 4 + 0.5
        grid[-1][0].set_xlim(-margin, max(last + margin, *(at + width for at in (0, *moments))))
        labels = [_tick_label(history.names[index]) for index in named]
        grid[-1][0].set_xticks(named, labels, fontsize=_TICK_PT)
    return image


def _named_nights(names: Sequence[str], onsets: Iterable[int]) -> list[int]:
    """Return sorted indices of nights to label, preferring those that begin a level (`onsets`)."""
    last = len(names) - 1
    lines = [line for name in names for line in _tick_label(name).splitlines()]
    least = max(1, _CHARACTER_WIDTH * max(map(len, lines)) * last)
    named: list[int] = []
    for at in (*onsets, 0, last, last // 2, *range(last)):
        if all(abs(at - other) >= least for other in named):
            named.append(at)
    return sorted(named)


def _tick_label(name: str) -> str:
    """Return a night's name, on two lines if it has a time: `14:13` above `2026-09-21`."""
    return "\n".join(filter(None, (name[11:], name[:10])))


def _notes(history: History) -> Iterator[str]:
    for event in history.events:
        if event.environment:
            changes = "; ".join(map(environment_text, event.environment))
            yield f"{history.names[event.night]}: {changes}"
    if history.left_out:
        yield f"left out: {', '.join(history.left_out)}"
    if busy := busy_text([run for night in history.nights for run in night.runs]):
        yield busy


def _draw(axes: Axes, row: RowHistory, rates: Sequence[Mapping[PointKey, Estimate]]) -> None:
    """Draw a row's nightly throughput, taken from `rates`, and a line at each level.

    A level's line joins the means of its first and its last nights, at most 15 each. An outlying
    night beyond the axis is drawn at its end, with a label. Nights are evenly spaced because, on a
    date axis, a single wrong date would squeeze the rest.
    """
    nights = {index: rates[index][row.point] for index in row.nights}
    level_rates: dict[int, float] = {}
    for level in _levels(row):
        level_rates |= level
        if not (row.is_unclear and row.nights[-1] in level):
            ends = [min(level), max(level)]
            values = [level[at] for at in ends]
            axes.plot(ends, values, color=_LEVEL_COLOR, linewidth=1.6, label="level")
    # With one distant night on the axis, all levels would look like one line.
    usual = [index for index in row.nights if index not in row.outlying]
    low, high = _axis_ends([nights[index] for index in usual or nights])
    bars = [
        (index, max(low, night.low), min(high, night.high))
        for index, night in nights.items()
        if night.low is not None and night.high is not None
    ]
    if bars:
        axes.vlines(*zip(*bars, strict=True), color=_COLOR, linewidth=0.8)
    faces = {"night": (_COLOR, usual), "outlying night": (picture.SURFACE, row.outlying)}
    for label, (face, indices) in faces.items():
        # A line without points would extend to the figure's corner and narrow the rest.
        if indices:
            axes.plot(
                indices,
                [min(max(nights[index].value, low), high) for index in indices],
                clip_on=False,
                linestyle="none",
                marker="o",
                markersize=3.5,
                color=_COLOR,
                markerfacecolor=face,
                label=label,
            )
    beyond = {
        index: format_percent(nights[index].value / level_rates[index] - 1, signed=True, decimals=0)
        for index in row.outlying
        if not low <= nights[index].value <= high
    }
    _draw_labels(axes, row, beyond, len(rates))
    axes.set_ylim(low, high)
    axes.locator_params(axis="y", nbins=4)
    axes.yaxis.set_major_formatter("{x:,.10g}")


def _axis_ends(nights: Sequence[Estimate]) -> tuple[float, float]:
    """Return the limits of the y axis, which may cut off very long confidence intervals."""
    lowest, highest = min(each.value for each in nights), max(each.value for each in nights)
    longest = highest if len(nights) <= FEWEST_NIGHTS else highest - lowest + _LEAST_ROOM * highest
    lowest = max(lowest - longest, min(each.low or each.value for each in nights))
    highest = min(highest + longest, max(each.high or each.value for each in nights))
    room = max(_LEAST_ROOM * highest, _ROOM * (highest - lowest))
    return max(0, lowest - room), highest + 2 * room


def _rates(night: Night, points: Collection[PointKey]) -> dict[PointKey, Estimate]:
    """Return each point's mean throughput (samples/s) or metric over the runs of one night."""
    measured = ((PointKey.of(run), run) for run in night.runs)
    costs = by_key((point, run.log_cost) for point, run in measured if point in points)
    return {
        point: _rate(level_of(point, geometric_mean(log_sample(logs))))
        for point, logs in costs.items()
    }


def _rate(level: Scaling) -> Estimate:
    rate = level.value or level.samples_per_s
    assert rate is not None, "a level has a metric or a throughput"
    return rate


def _levels(row: RowHistory) -> Iterator[dict[int, float]]:
    """Yield each known level's line, as a map from nights to rates; a line may slope."""
    bounds = [0, *(row.nights.index(change.onset) for change in row.changes), len(row.nights)]
    is_new = row.changes and row.level_nights <= REMEMBERED
    befores = [*(change.before for change in row.changes), None if is_new else row.level]
    afters = [None, *(change.after for change in row.changes)]
    for ends, after, before in zip(itertools.pairwise(bounds), afters, befores, strict=True):
        first, last = after or before, before or after
        if first is not None and last is not None:
            nights, rate = row.nights[slice(*ends)], _rate(first).value
            slope = (_rate(last).value - rate) / max(1, len(nights) - 1)
            yield {night: rate + slope * at for at, night in enumerate(nights)}


def _moment(row: RowHistory, change: RowChange) -> float:
    """Return the x position of a change of level, halfway between the nights before and after."""
    return (row.nights[row.nights.index(change.onset) - 1] + change.onset) / 2


def _draw_labels(axes: Axes, row: RowHistory, beyond: Mapping[int, str], count: int) -> None:
    """Draw a labelled line at each change of level, and label the nights outside the axis limits.

    `beyond` maps such nights to their distance from the level (`+12 %`). `count` counts all nights.
    """
    # Of a metric whose smaller values are better, the drawn change is not that of performance.
    changes: dict[float, str] = {
        _moment(row, each): percent_text(_rate(each.after).value / _rate(each.before).value - 1)
        for each in row.changes
    }
    for moment in changes:
        axes.axvline(moment, color=picture.INK, linewidth=1.0, label="level changed")
    above: dict[float, str] = {at: f"↑ {apart}" for at, apart in beyond.items() if apart[0] == "+"}
    below: dict[float, str] = {at: f"↓ {apart}" for at, apart in beyond.items() if at not in above}
    for texts, at_top in (({**changes, **above}, True), (below, False)):
        line, before = 0, -math.inf
        for at in sorted(texts):
            # Labels of near nights would overlap on one line.
            line = (line + 1) % _LABEL_LINES if at - before < _LABEL_WIDTH * count else 0
            before, inwards_pt = at, 2 + _LABEL_PT * line
            on_left = at in beyond and at > count / 2
            axes.annotate(
                texts[at],
                (at, float(at_top)),
                (-4 if on_left else 2, -inwards_pt if at_top else inwards_pt),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                va="top" if at_top else "bottom",
                ha="right" if on_left else "left",
                **({"fontweight": "bold"} if at in changes else {"fontsize": 6.5}),
                bbox={"facecolor": picture.SURFACE, "edgecolor": "none", "pad": 0.5, "alpha": 0.7},
            )
