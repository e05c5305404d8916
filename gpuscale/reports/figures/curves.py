"""Scaling curves: what a configuration does over numbers of GPUs, measured or published."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpuscale.analysis.scaling import Figures, published_speedup, scaling_points
from gpuscale.records import Baseline, Configuration, Estimate, PublishedFigure, ScalingPoint
from gpuscale.records.baseline import Timed
from gpuscale.reports.figures.axes import names_beside
from gpuscale.reports.figures.picture import Measurements

Quantity = Literal["time", "step time", "throughput", "speedup", "efficiency"]
Origin = Literal["measured", "baseline", "published"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One configuration over its numbers of GPUs."""

    case: str
    strategy: str
    way: str
    """How the case is made parallel, and what else tells it from the others of its case."""
    origin: Origin
    device: str
    scaling: str | None
    timed: Timed = "epoch"
    """The span of its `time`."""
    points: Mapping[int, Mapping[Quantity, Estimate]]
    """What is known, by number of GPUs."""
    batches: Mapping[int, int]
    """Samples per GPU of a step, by number of GPUs."""

    @property
    def name(self) -> str:
        """The way, and where it is from unless it was measured now."""
        return self.way if self.origin == "measured" else f"{self.way}, {self.origin}"

    def has(self, quantity: Quantity) -> bool:
        """True where it is known; one GPU alone tells no speedup."""
        least = 2 if quantity in ("speedup", "efficiency") else 1
        return any(quantity in its for gpus, its in self.points.items() if gpus >= least)


def curves_of(measurements: Measurements) -> tuple[Curve, ...]:
    """The curves that were measured, each followed by what the baseline has of the same.

    Without runs they are those of the baseline.
    """
    baseline = measurements.baseline
    measured = _measured(scaling_points(measurements.runs), "measured")
    if baseline is None:
        return tuple(measured.values())
    before = _measured(scaling_points(baseline.runs), "baseline")
    published = _published(baseline)
    if not measured:
        return (*before.values(), *published.values())
    found: list[Curve] = []
    for configuration, curve in measured.items():
        found.append(curve)
        if configuration in before:
            found.append(replace(before[configuration], way=curve.way))
        if configuration.label in published:
            # Two configurations of one label have the same publication.
            found.append(replace(published.pop(configuration.label), way=curve.way))
    return tuple(found)


def _measured(points: Sequence[ScalingPoint], origin: Origin) -> dict[Configuration, Curve]:
    names = names_beside([point.configuration for point in points])
    modes = {configuration.scaling for configuration in names}
    return {
        configuration: Curve(
            case=configuration.case,
            strategy=configuration.strategy,
            way=name.removeprefix(f"{configuration.case}/")
            + (f", {configuration.scaling} scaling" if len(modes) > 1 else ""),
            origin=origin,
            device=configuration.device,
            scaling=configuration.scaling,
            points={point.key.gpus: _values(point) for point in its},
            batches={p.key.gpus: p.batch_per_gpu for p in its if p.batch_per_gpu is not None},
        )
        for configuration, name in names.items()
        if (its := [each for each in points if each.configuration == configuration])
    }


def _values(point: ScalingPoint) -> dict[Quantity, Estimate]:
    step_time, epoch_s = point.step_time_s, point.epoch_s
    time = None
    if step_time is not None and epoch_s is not None:
        time = step_time.scaled(epoch_s / step_time.value)
    values: dict[Quantity, Estimate | None] = {
        "time": time,
        "step time": step_time,
        "throughput": point.samples_per_s,
        "speedup": point.speedup,
        "efficiency": point.efficiency,
    }
    return {name: value for name, value in values.items() if value is not None}


def _published(baseline: Baseline) -> dict[str, Curve]:
    """By label."""
    figures = {figure.key: figure for figure in baseline.published}
    curves = {}
    for label in dict.fromkeys(key.name for key in figures):
        its = [f for f in figures.values() if f.key.name == label]
        curves[label] = Curve(
            case=its[0].case,
            strategy=its[0].strategy,
            way=its[0].strategy,
            origin="published",
            device=baseline.hardware.device,
            scaling=None,
            timed=its[0].timed or "epoch",
            points={figure.gpus: dict(_published_values(figure, figures)) for figure in its},
            batches={figure.gpus: figure.batch_per_gpu for figure in its},
        )
    return curves


def _published_values(
    figure: PublishedFigure, figures: Figures
) -> Iterator[tuple[Quantity, Estimate]]:
    if figure.mean_time_s is not None:
        yield "time", Estimate(value=figure.mean_time_s)
    if figure.samples_per_s is not None:
        yield "throughput", Estimate(value=figure.samples_per_s)
    if (speedup := published_speedup(figure, figures)) is not None:
        yield "speedup", Estimate(value=speedup)
        yield "efficiency", Estimate(value=speedup / figure.gpus)
