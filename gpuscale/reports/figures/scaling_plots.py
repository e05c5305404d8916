"""Scaling over GPUs: the three plots of the CTE-POWER course, together and each by itself."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from matplotlib.axes import Axes

from gpuscale.base.units import counted, significant
from gpuscale.records import Estimate
from gpuscale.reports.figures.axes import (
    label_ticks,
    lay_amounts,
    lay_gpus,
    legend_columns,
    legend_of,
    time_unit,
)
from gpuscale.reports.figures.curves import Curve, Quantity, curves_of
from gpuscale.reports.figures.picture import (
    COLUMN_IN,
    INK,
    PAGE_IN,
    SURFACE,
    Measurements,
    Picture,
    Style,
    drawn,
    left_out_of,
    shortened,
    styles_of,
)
from gpuscale.reports.phrases import interval_text

MOST_CASES = 4
"""Cases below each other in one figure."""
_TIMED = {"epoch": "time per epoch", "training_loop": "time of training", "job": "time of the job"}
_IDEAL = "ideal"
_APART = 1.03
"""The factor by which a curve's intervals stand beside those of the next one."""


def scaling_picture(quantities: Sequence[Quantity], measurements: Measurements) -> Picture | None:
    """The quantities beside each other over GPUs, a row for each case; None of nothing known."""
    every = curves_of(measurements)
    quantities = [name for name in quantities if any(curve.has(name) for curve in every)]
    if not quantities:
        return None
    cases = [*dict.fromkeys(curve.case for curve in every)]
    ways = {curve.way: curve.strategy for curve in every}
    styles = styles_of(ways)
    shown = [curve for curve in every if curve.case in cases[:MOST_CASES] and curve.way in styles]
    baseline = measurements.baseline
    source = baseline.source.title if baseline is not None and baseline.source else None
    left_out = left_out_of(
        {"case": len(cases) - MOST_CASES, "configuration": len(ways) - len(styles)}
    )
    rows = min(len(cases), MOST_CASES)
    width_in = COLUMN_IN if len(quantities) == 1 else PAGE_IN
    with drawn(measurements, width_in, 0.8 + 2.0 * rows, _notes(shown, source), left_out) as figure:
        grid = figure.subplots(rows, len(quantities), squeeze=False)
        for row, case in zip(grid, cases, strict=False):
            row[0].set_title(shortened(case), loc="left", fontweight="bold")
            for axes, quantity in zip(row, quantities, strict=True):
                _draw(axes, quantity, [curve for curve in shown if curve.case == case], styles)
        legend = legend_of(grid.flat, [*(curve.name for curve in shown), _IDEAL])
        most = 2 if len(quantities) == 1 else 4
        columns = legend_columns(legend, figure.get_figwidth(), most)
        figure.legend(handles=legend, loc="outside upper left", ncols=columns)
    return Picture(
        figure=figure,
        title=f"{', '.join(quantities).capitalize()} over GPUs: {', '.join(cases[:MOST_CASES])}",
        description="; ".join(_sentences(shown, quantities)),
        left_out=left_out,
    )


def _draw(
    axes: Axes, quantity: Quantity, curves: Sequence[Curve], styles: Mapping[str, Style]
) -> None:
    """One quantity of the curves of one case."""
    counts = sorted({gpus for curve in curves for gpus in curve.points})
    lay_gpus(axes, counts)
    axes.set_xlabel(_gpus_text(curves))
    known = [curve for curve in curves if curve.has(quantity)]
    if quantity == "time":
        # The time of a job is not that of an epoch.
        known = [curve for curve in known if curve.timed == known[0].timed]
    if not known:
        axes.text(0.5, 0.5, f"{quantity} not known", ha="center", transform=axes.transAxes)
        axes.set_yticks([])
        return
    values = [
        {gpus: its[quantity] for gpus, its in curve.points.items() if quantity in its}
        for curve in known
    ]
    factor, words = 1.0, f"{quantity} (samples/s)" if quantity == "throughput" else str(quantity)
    if quantity in ("time", "step time"):
        unit_s, unit = time_unit(value.value for its in values for value in its.values())
        named = _TIMED[known[0].timed] if quantity == "time" else quantity
        factor, words = 1 / unit_s, f"{named} ({unit})"
    axes.set_ylabel(words)
    scaled = [{gpus: each.scaled(factor) for gpus, each in its.items()} for its in values]
    for place, (curve, its) in enumerate(zip(known, scaled, strict=True)):
        beside = _APART ** (place - (len(known) - 1) / 2)
        _draw_curve(axes, curve, its, styles[curve.way], beside)
    _lay_values(axes, quantity, scaled, counts)


def _lay_values(
    axes: Axes,
    quantity: Quantity,
    values: Iterable[Mapping[int, Estimate]],
    counts: Sequence[int],
) -> None:
    """Makes the y axis hold the values with their intervals, and what would be ideal."""
    shown = [each for its in values for each in its.values()]
    bounds = [bound for each in shown for bound in (each.value, each.low, each.high) if bound]
    if quantity in ("speedup", "efficiency"):
        ends = (1, counts[-1])
        ideal = ends if quantity == "speedup" else (1, 1)
        axes.plot(ends, ideal, color=INK, linewidth=0.8, linestyle=(0, (6, 3)), label=_IDEAL)
        bounds += ideal
    if quantity == "efficiency":
        axes.set_ylim(0, max(1.1, *bounds))
        return
    lay_amounts(axes, bounds)
    if quantity == "speedup" and len(counts) > 2:
        label_ticks(axes.yaxis, axes.get_xticks())


def _draw_curve(
    axes: Axes, curve: Curve, values: Mapping[int, Estimate], style: Style, beside: float
) -> None:
    """A line through the values, each with its interval as a bar; hollow unless measured now."""
    color, marker, line = style
    is_measured = curve.origin == "measured"
    bars = [
        (each.value - each.low, each.high - each.value)
        if each.low is not None and each.high is not None
        else (math.nan, math.nan)
        for each in values.values()
    ]
    has_bars = any(each.has_interval for each in values.values())
    axes.errorbar(
        [gpus * beside for gpus in values],
        [each.value for each in values.values()],
        yerr=[*zip(*bars, strict=True)] if has_bars else None,
        label=curve.name,
        color=color,
        marker="*" if curve.origin == "published" else marker,
        markersize=8 if curve.origin == "published" else None,
        markerfacecolor=color if is_measured else SURFACE,
        linestyle=line,
        linewidth=1.3 if is_measured else 0.8,
        elinewidth=1.0,
        capsize=2.5,
    )


def _gpus_text(curves: Sequence[Curve]) -> str:
    """`GPUs`, and below how the work grew with them, as far as it is the same of all."""
    word = "CPU ranks" if all(curve.device == "cpu" for curve in curves) else "GPUs"
    modes = {curve.scaling for curve in curves if curve.scaling is not None}
    if len(modes) != 1:
        return f"{word}\nweak and strong scaling" if modes else word
    (mode,) = modes
    batches = {
        batch if mode == "weak" else batch * gpus
        for curve in curves
        if curve.scaling is not None
        for gpus, batch in curve.batches.items()
    }
    if len(batches) != 1:
        return f"{word}\n{mode} scaling"
    of = "each" if mode == "weak" else "in all"
    return f"{word}\n{mode} scaling, {counted(batches.pop(), 'sample')} {of}"


def _notes(curves: Sequence[Curve], source: str | None) -> Iterator[str]:
    """Where intervals are from, what has none, and who published."""
    measured = [curve for curve in curves if curve.origin != "published"]
    values = [v for curve in measured for its in curve.points.values() for v in its.values()]
    if any(value.has_interval for value in values):
        yield "bars: 95 % intervals over runs"
    elif measured:
        yield "no intervals: one run each"
    if any(curve.origin == "published" for curve in curves):
        yield f"published: {source}"


def _sentences(curves: Sequence[Curve], quantities: Sequence[Quantity]) -> Iterator[str]:
    """Each curve in words: `mnist_cnn, ddp: speedup 1.86 [1.80, 1.93] on 2 GPUs`."""
    for curve in curves:
        for quantity in quantities:
            found = [
                f"{interval_text(its[quantity], significant)} on {gpus}"
                for gpus, its in curve.points.items()
                if quantity in its
            ]
            if found:
                yield f"{curve.case}, {curve.name}: {quantity} {', '.join(found)}"
