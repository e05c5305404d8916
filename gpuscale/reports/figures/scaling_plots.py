"""Figures of time, throughput and speedup against GPU count, together and separately."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from msgspec.structs import replace

from gpuscale.analysis.scaling import published_points, scaling_points
from gpuscale.base.grouping import by_key
from gpuscale.base.host import device_word
from gpuscale.records import Baseline, Configuration, Estimate, ScalingPoint
from gpuscale.reports.figures import picture
from gpuscale.reports.figures.picture import Measurements, Picture, drawn
from gpuscale.reports.phrases import configurations_text

Quantity = Literal["time", "throughput", "speedup"]
Origin = Literal["measured", "baseline", "published"]
MOST_CASES = 4
_TIMED = {"epoch": "time per epoch", "training_loop": "time of training", "job": "time of the job"}
_APART = 1.03
"""Factor between the x positions of adjacent curves' intervals, which would otherwise overlap."""


class _Curve(msgspec.Struct, frozen=True):
    """Scaling points of one configuration, all from the same source (such as the baseline)."""

    points: Sequence[ScalingPoint]
    label: str
    """Strategy, with options if needed to distinguish the curve from others of the case."""
    origin: Origin

    @property
    def configuration(self) -> Configuration:
        return self.points[0].configuration

    @property
    def name(self) -> str:
        """Name in the legend: the label, plus `baseline` or `published` if not measured now."""
        return self.label if self.origin == "measured" else f"{self.label}, {self.origin}"

    @property
    def timed(self) -> str:
        """Name of the time shown: `time per epoch`, `time of training` or `time of the job`."""
        figure = self.points[0].figure
        return _TIMED["epoch" if figure is None or figure.timed is None else figure.timed]

    @property
    def samples_per_epoch(self) -> int | None:
        """Number of samples in the epoch whose duration the curve shows; None if unknown."""
        for point in self.points:
            if point.epoch_s and point.samples_per_s:
                return round(point.epoch_s * point.samples_per_s.value)
        return None

    def values(self, quantity: Quantity) -> dict[int, Estimate]:
        """Return the known values of a quantity, keyed by number of GPUs."""
        found = {point.gpus: _value(point, quantity) for point in self.points}
        return {gpus: value for gpus, value in found.items() if value is not None}

    def has(self, quantity: Quantity) -> bool:
        """True if the curve has values of the quantity; a speedup needs at least 2 GPUs."""
        return any(quantity != "speedup" or gpus > 1 for gpus in self.values(quantity))


def _value(point: ScalingPoint, quantity: Quantity) -> Estimate | None:
    if quantity != "time":
        return point.samples_per_s if quantity == "throughput" else point.speedup
    if point.figure is not None:
        time_s = point.figure.mean_time_s
        return None if time_s is None else Estimate(value=time_s)
    return point.epoch_time_s


def _curves_of(measurements: Measurements) -> Sequence[_Curve]:
    """Return the measured curves, each followed by the baseline's curves of the same configuration.

    If there are no measured curves, return all curves of the baseline.
    """
    baseline = measurements.baseline
    measured = _curves(scaling_points(measurements.runs), "measured")
    if baseline is None:
        return [*measured.values()]
    before = _curves(scaling_points(baseline.runs), "baseline")
    figures = published_points(baseline).values()
    published = {
        label: _Curve(points, points[0].configuration.strategy, "published")
        for label, points in by_key((p.configuration.label, p) for p in figures).items()
    }
    if not measured:
        return [*before.values(), *published.values()]
    found: list[_Curve] = []
    for configuration, curve in measured.items():
        # Configurations with the same label share the published figures, which are drawn once.
        references = (before.get(configuration), published.pop(configuration.label, None))
        found += [curve, *(replace(each, label=curve.label) for each in references if each)]
    return found


def _curves(points: Sequence[ScalingPoint], origin: Origin) -> dict[Configuration, _Curve]:
    names = picture.distinct_names([point.configuration for point in points])
    return {
        each: _Curve(own, names[each].removeprefix(f"{each.case}/"), origin)
        for each, own in by_key((point.configuration, point) for point in points).items()
    }


def scaling_picture(quantities: Sequence[Quantity], measurements: Measurements) -> Picture | None:
    """Plot quantities against GPU count, with a row of panels for each case; None without data."""
    every = _curves_of(measurements)
    quantities = [name for name in quantities if any(curve.has(name) for curve in every)]
    if not quantities:
        return None
    cases = [*dict.fromkeys(curve.configuration.case for curve in every)]
    labels = {curve.label: curve.configuration.strategy for curve in every}
    styles = picture.styles_of(labels)
    shown = [
        [curve for curve in every if curve.configuration.case == case and curve.label in styles]
        for case in cases[:MOST_CASES]
    ]
    left_out = picture.left_out_of("case", len(cases) - MOST_CASES)
    left_out += picture.left_out_of("configuration", len(labels) - len(styles))
    width_in = picture.COLUMN_IN if len(quantities) == 1 else picture.PAGE_IN
    notes = _notes([curve for curves in shown for curve in curves], measurements.baseline)
    what, device = ", ".join(quantities).capitalize(), every[0].configuration.device
    title = f"{what} over {device_word(device)}s: {', '.join(cases[:MOST_CASES])}"
    with drawn(measurements, title, width_in, 0.8 + 2.0 * len(shown), notes, left_out) as image:
        grid = image.figure.subplots(len(shown), len(quantities), squeeze=False)
        for row, case, curves in zip(grid, cases, shown, strict=False):
            row[0].set_title(picture.shortened(case), loc="left", fontweight="bold")
            for axes, quantity in zip(row, quantities, strict=True):
                _draw(axes, quantity, curves, styles)
    return image


def _draw(
    axes: Axes, quantity: Quantity, curves: Sequence[_Curve], styles: Mapping[str, picture.Style]
) -> None:
    """Draw one quantity for the curves of one case, on logarithmic axes."""
    known = [curve for curve in curves if curve.has(quantity)]
    if not known:
        axes.text(0.5, 0.5, f"{quantity} not known", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    label = "throughput (samples/s)" if quantity == "throughput" else "speedup"
    scale_text = "log scale"
    if quantity == "time":
        # Times of different scope, such as an epoch and a job, must not share an axis.
        known = [curve for curve in known if curve.timed == known[0].timed]
        label = f"{known[0].timed} (s)"
        if samples := known[0].samples_per_epoch:
            scale_text = f"{samples:,} samples, log scale"
    for place, curve in enumerate(known):
        factor = _APART ** (place - (len(known) - 1) / 2)
        _draw_curve(axes, curve, curve.values(quantity), styles[curve.label], factor)
    counts = sorted({point.gpus for curve in curves for point in curve.points})
    if quantity == "speedup":
        ends, middle = (1, counts[-1]), math.sqrt(counts[-1])
        axes.plot(ends, ends, color=picture.INK, linewidth=0.8, linestyle=(0, (6, 3)))
        # In the legend, it could take a further line, which would make this plot the lowest.
        axes.text(middle, middle, "ideal ", ha="right", va="bottom", fontsize=6.5)
    axes.set_xlabel(f"{device_word(curves[0].configuration.device)}s (log scale)")
    axes.set_ylabel(f"{label}\n{scale_text}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.margins(0.1)
    axes.set_xticks(counts)
    least, most = axes.get_ylim()
    if quantity == "speedup" and most < 2 * counts[-1] and len(counts) > 2:
        axes.set_yticks(counts)
    else:
        round_values = LogLocator(subs=(1, 2, 5))
        shown = [tick for tick in round_values.tick_values(least, most) if least <= tick <= most]
        axes.yaxis.set_major_locator(
            round_values if len(shown) > 2 else MaxNLocator(8, steps=(1, 2, 5, 10))
        )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:,.10g}")


def _draw_curve(
    axes: Axes, curve: _Curve, values: Mapping[int, Estimate], style: picture.Style, factor: float
) -> None:
    """Draw a curve with intervals; `factor` shifts it in x so that intervals do not overlap."""
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
        [gpus * factor for gpus in values],
        [each.value for each in values.values()],
        yerr=[*zip(*bars, strict=True)] if has_bars else None,
        label=curve.name,
        color=color,
        marker="*" if curve.origin == "published" else marker,
        markersize=8 if curve.origin == "published" else None,
        markerfacecolor=color if is_measured else picture.SURFACE,
        linestyle=line,
        linewidth=1.3 if is_measured else 0.8,
        elinewidth=1.0,
        capsize=2.5,
    )


def _notes(curves: Sequence[_Curve], baseline: Baseline | None) -> Iterator[str]:
    yield configurations_text(curve.configuration for curve in curves)
    measured = [point for curve in curves if curve.origin != "published" for point in curve.points]
    if any(point.samples_per_s and point.samples_per_s.has_interval for point in measured):
        yield "bars: 95 % intervals over a point's runs; verdicts also heed the spread of others"
    elif measured:
        yield "no intervals: one run each"
    if baseline and baseline.source and any(curve.origin == "published" for curve in curves):
        yield f"published: {baseline.source.title}"
