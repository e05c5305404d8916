"""Figures of time, throughput and speedup against GPU count, together and separately."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from matplotlib.axes import Axes

from gpuscale.analysis.scaling import published_points, scaling_points
from gpuscale.base.units import counted, significant
from gpuscale.records import Configuration, Estimate, ScalingPoint
from gpuscale.reports.figures.picture import (
    COLUMN_IN,
    INK,
    LOG_SCALE,
    PAGE_IN,
    SURFACE,
    Measurements,
    Picture,
    Style,
    drawn,
    label_ticks,
    lay_amounts,
    lay_gpus,
    left_out_of,
    legend_columns,
    legend_of,
    names_beside,
    shortened,
    styles_of,
    time_unit,
)
from gpuscale.reports.phrases import interval_text

Quantity = Literal["time", "step time", "throughput", "speedup", "efficiency"]
_QUANTITIES = get_args(Quantity)
MOST_CASES = 4
"""Maximum number of cases in one figure, one below the other."""
_TIMED = {"epoch": "time per epoch", "training_loop": "time of training", "job": "time of the job"}
_IDEAL = "ideal"
_APART = 1.03
"""Factor between the x positions of adjacent curves' intervals, which would otherwise overlap."""


@dataclass(frozen=True, slots=True)
class _Curve:
    """Scaling points of one configuration, all from the same origin."""

    points: Sequence[ScalingPoint]
    way: str
    """Strategy, with options if needed to distinguish the curve from others of the case."""
    origin: Literal["measured", "baseline", "published"]

    @property
    def configuration(self) -> Configuration:
        return self.points[0].configuration

    @property
    def case(self) -> str:
        return self.configuration.case

    @property
    def name(self) -> str:
        """Strategy and options, followed by the origin unless the curve is from current runs."""
        return self.way if self.origin == "measured" else f"{self.way}, {self.origin}"

    @property
    def timed(self) -> str:
        """Scope of the curve's time: an epoch, the training loop or a whole job."""
        figure = self.points[0].figure
        return "epoch" if figure is None or figure.timed is None else figure.timed

    def values(self, quantity: Quantity) -> dict[int, Estimate]:
        """Return the known values of a quantity, keyed by number of GPUs."""
        found = {point.gpus: _value(point, quantity) for point in self.points}
        return {gpus: value for gpus, value in found.items() if value is not None}

    def has(self, quantity: Quantity) -> bool:
        """True if the curve has values of the quantity; speedup and efficiency need 2 GPUs."""
        least = 2 if quantity in ("speedup", "efficiency") else 1
        return any(gpus >= least for gpus in self.values(quantity))


def _value(point: ScalingPoint, quantity: Quantity) -> Estimate | None:
    step_time, figure = point.step_time_s, point.figure
    if quantity == "step time":
        return step_time if figure is None else None
    if quantity == "time" and figure is not None:
        return None if figure.mean_time_s is None else Estimate(value=figure.mean_time_s)
    if quantity == "time":
        if step_time is None or point.epoch_s is None:
            return None
        return step_time.scaled(point.epoch_s / step_time.value)
    if quantity == "throughput":
        return point.samples_per_s
    return point.speedup if quantity == "speedup" else point.efficiency


def _curves_of(measurements: Measurements) -> tuple[_Curve, ...]:
    """Return the measured curves, each followed by the baseline's curves of the same configuration.

    If there are no measured curves, return all curves of the baseline.
    """
    baseline = measurements.baseline
    measured = _measured(scaling_points(measurements.runs))
    if baseline is None:
        return tuple(measured.values())
    before = _measured(scaling_points(baseline.runs), origin="baseline")
    published: dict[str, _Curve] = {}
    for point in published_points(baseline).values():
        points = (
            (*published[point.key.name].points, point) if point.key.name in published else (point,)
        )
        published[point.key.name] = _Curve(points, point.configuration.strategy, "published")
    if not measured:
        return (*before.values(), *published.values())
    found: list[_Curve] = []
    for configuration, curve in measured.items():
        found.append(curve)
        if configuration in before:
            found.append(replace(before[configuration], way=curve.way))
        if configuration.label in published:
            # Configurations with the same label share a publication, which is drawn once.
            found.append(replace(published.pop(configuration.label), way=curve.way))
    return tuple(found)


def _measured(
    points: Sequence[ScalingPoint], origin: Literal["measured", "baseline"] = "measured"
) -> dict[Configuration, _Curve]:
    names = names_beside([point.configuration for point in points])
    has_both = len({configuration.scaling for configuration in names}) > 1
    curves = {}
    for configuration, name in names.items():
        way = name.removeprefix(f"{configuration.case}/")
        way += f", {configuration.scaling} scaling" if has_both else ""
        its_points = [point for point in points if point.configuration == configuration]
        curves[configuration] = _Curve(its_points, way, origin)
    return curves


def scaling_picture(quantities: Sequence[Quantity], measurements: Measurements) -> Picture | None:
    """Plot the quantities against GPU count, one row of panels for each case; None without data."""
    every = _curves_of(measurements)
    quantities = [name for name in quantities if any(curve.has(name) for curve in every)]
    if not quantities:
        return None
    cases = [*dict.fromkeys(curve.case for curve in every)]
    ways = {curve.way: curve.configuration.strategy for curve in every}
    styles = styles_of(ways)
    shown = [curve for curve in every if curve.case in cases[:MOST_CASES] and curve.way in styles]
    baseline = measurements.baseline
    source = baseline.source.title if baseline is not None and baseline.source else None
    left_out = left_out_of(
        {"case": len(cases) - MOST_CASES, "configuration": len(ways) - len(styles)}
    )
    rows = min(len(cases), MOST_CASES)
    is_alone = len(quantities) == 1
    width_in = COLUMN_IN if is_alone else PAGE_IN
    with drawn(measurements, width_in, 0.8 + 2.0 * rows, _notes(shown, source), left_out) as figure:
        grid = figure.subplots(rows, len(quantities), squeeze=False)
        for row, case in zip(grid, cases, strict=False):
            curves = [curve for curve in shown if curve.case == case]
            titles = (shortened(case), ", ".join(_scaling_texts(curves)))
            title = ("\n" if is_alone else ", ").join(filter(None, titles))
            row[0].set_title(title, loc="left", fontweight="bold")
            for axes, quantity in zip(row, quantities, strict=True):
                _draw(axes, quantity, curves, styles)
        legend = legend_of(grid.flat, [*(curve.name for curve in shown), _IDEAL])
        columns = legend_columns(legend, figure.get_figwidth(), 3 if is_alone else 4)
        figure.legend(handles=legend, loc="outside upper left", ncols=columns)
    return Picture(
        figure=figure,
        title=f"{', '.join(quantities).capitalize()} over GPUs: {', '.join(cases[:MOST_CASES])}",
        description="; ".join(_sentences(shown, quantities)),
        left_out=left_out,
    )


def _draw(
    axes: Axes, quantity: Quantity, curves: Sequence[_Curve], styles: Mapping[str, Style]
) -> None:
    """Draw one quantity for the curves of one case."""
    counts = sorted({point.gpus for curve in curves for point in curve.points})
    lay_gpus(axes, counts)
    on_cpu = all(curve.configuration.device == "cpu" for curve in curves)
    axes.set_xlabel(f"{'CPU ranks' if on_cpu else 'GPUs'} ({LOG_SCALE})")
    known = [curve for curve in curves if curve.has(quantity)]
    if quantity == "time":
        # The time of a job is not that of an epoch.
        known = [curve for curve in known if curve.timed == known[0].timed]
    if not known:
        axes.text(0.5, 0.5, f"{quantity} not known", ha="center", transform=axes.transAxes)
        axes.set_yticks([])
        return
    values = [curve.values(quantity) for curve in known]
    factor, words = 1.0, f"{quantity} (samples/s)" if quantity == "throughput" else str(quantity)
    if quantity in ("time", "step time"):
        unit_s, unit = time_unit(value.value for points in values for value in points.values())
        named = _TIMED[known[0].timed] if quantity == "time" else quantity
        factor, words = 1 / unit_s, f"{named} ({unit})"
    axes.set_ylabel(words + (_epoch_text(known) if quantity == "time" else ""))
    scaled = [{gpus: each.scaled(factor) for gpus, each in points.items()} for points in values]
    for place, (curve, points) in enumerate(zip(known, scaled, strict=True)):
        beside = _APART ** (place - (len(known) - 1) / 2)
        _draw_curve(axes, curve, points, styles[curve.way], beside)
    _lay_values(axes, quantity, scaled, counts)


def _epoch_text(curves: Sequence[_Curve]) -> str:
    """Return the size of an epoch, `of 60000 samples`, if all curves share it; otherwise empty."""
    epochs = {
        round(point.epoch_s * point.samples_per_s.value)
        for curve in curves
        for point in curve.points
        if point.epoch_s is not None and point.samples_per_s is not None
    }
    return f"\nof {epochs.pop():,} samples" if len(epochs) == 1 else ""


def _lay_values(
    axes: Axes,
    quantity: Quantity,
    values: Iterable[Mapping[int, Estimate]],
    counts: Sequence[int],
) -> None:
    """Draw ideal scaling, and fit the y axis to it and to the values with their intervals."""
    shown = [each for points in values for each in points.values()]
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
    axes: Axes, curve: _Curve, values: Mapping[int, Estimate], style: Style, beside: float
) -> None:
    """Draw a line through the values, with intervals; only markers of current runs are filled."""
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


def _scaling_texts(curves: Sequence[_Curve]) -> Iterator[str]:
    """Yield weak or strong scaling and the batch, each if all curves have the same."""
    modes = {
        curve.configuration.scaling for curve in curves if curve.configuration.scaling is not None
    }
    if len(modes) != 1:
        return
    (mode,) = modes
    yield f"{mode} scaling"
    batches = {
        point.batch_per_gpu if mode == "weak" else point.batch_per_gpu * point.gpus
        for curve in curves
        for point in curve.points
        if curve.configuration.scaling is not None and point.batch_per_gpu is not None
    }
    if len(batches) == 1:
        yield f"{counted(batches.pop(), 'sample')} {'each' if mode == 'weak' else 'in all'}"


def _notes(curves: Sequence[_Curve], source: str | None) -> Iterator[str]:
    """Yield notes on what the intervals show, and on the source of published figures."""
    measured = [curve for curve in curves if curve.origin != "published"]
    values = [_value(p, name) for curve in measured for p in curve.points for name in _QUANTITIES]
    if any(value is not None and value.has_interval for value in values):
        yield "bars: 95 % intervals over runs"
    elif measured:
        yield "no intervals: one run each"
    if any(curve.origin == "published" for curve in curves):
        yield f"published: {source}"


def _sentences(curves: Sequence[_Curve], quantities: Sequence[Quantity]) -> Iterator[str]:
    """Describe each curve: `mnist_cnn, ddp: speedup 1.86 [1.80, 1.93] on 2 GPUs`."""
    for curve in curves:
        for quantity in quantities:
            found = [
                f"{interval_text(value, significant)} on {gpus}"
                for gpus, value in curve.values(quantity).items()
            ]
            if found:
                yield f"{curve.case}, {curve.name}: {quantity} {', '.join(found)}"
