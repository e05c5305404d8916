"""The rows that `gpuscale show` gives in every format: published, measured and projected ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from gpuscale.analysis.projection import Projection
from gpuscale.analysis.scaling import published_points, scaling_points
from gpuscale.records import Baseline, Configuration, Estimate, Results, ScalingPoint
from gpuscale.reports.screen import PLAIN_COLUMNS

_HOUR_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A results or baseline file, and what is asked of it."""

    content: Results | Baseline
    path: Path
    now: datetime
    steps: int | None = None
    """Of a training whose GPU-hours are told."""
    projections: tuple[Projection, ...] = ()
    """The configurations on numbers of GPUs on which they were not measured."""
    phases: bool = False
    """The phases of results in place of their scaling table, in the text."""
    columns: int = PLAIN_COLUMNS
    """Columns of the terminal or the file that the text is written to."""

    @property
    def injections(self) -> tuple[str, ...]:
        """The faults that were made on purpose."""
        return self.content.injections if isinstance(self.content, Results) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """The numbers of one configuration on one number of GPUs; None is unknown."""

    kind: Literal["published", "measured", "projected"]
    configuration: Configuration
    gpus: int
    nodes: int | None
    batch_per_gpu: int | None
    samples_per_step: int | None
    """Over all GPUs."""
    runs: int | None = None
    failed_runs: int | None = None
    step_time_s: Estimate | None = None
    samples_per_s: Estimate | None = None
    speedup: Estimate | None = None
    efficiency: Estimate | None = None
    gpu_hours: Estimate | None = None
    """Of the steps that were asked for."""
    epoch_s: float | None = None
    samples_per_j: Estimate | None = None
    gpu_utilization: float | None = None
    peak_memory_bytes: int | None = None
    peak_host_memory_bytes: int | None = None
    timed: str | None = None
    """The span of a published `time_s`."""
    time_s: float | None = None
    """A published wall clock."""
    sample_shape: str | None = None


ESTIMATES = frozenset(
    ("step_time_s", "samples_per_s", "speedup", "efficiency", "gpu_hours", "samples_per_j")
)
"""The fields of a row that have an interval."""


def scaling_rows(shown: Shown) -> Iterator[ScalingRow]:
    """The rows, published ones first and projected ones last, by configuration."""
    points = [*scaling_points(shown.content.runs)]
    if isinstance(shown.content, Baseline):
        points = [*published_points(shown.content).values(), *points]
    points += [point for projection in shown.projections for point in projection.points]
    return (row_of(point, shown.steps) for point in points)


def row_of(point: ScalingPoint, steps: int | None = None) -> ScalingRow:
    """The row of a point; with a number of `steps` it has the GPU-hours that they take."""
    shape, figure = point.sample_shape, point.figure
    is_projected, is_measured = point.kind == "projected", point.kind == "measured"
    return ScalingRow(
        kind=point.kind,
        configuration=point.configuration,
        gpus=point.gpus,
        nodes=point.nodes,
        batch_per_gpu=point.batch_per_gpu,
        samples_per_step=point.batch_per_gpu and point.gpus * point.batch_per_gpu,
        runs=None if is_projected else point.valid_runs,
        failed_runs=point.failed_runs if is_measured else None,
        step_time_s=point.step_time_s,
        samples_per_s=point.samples_per_s,
        speedup=point.speedup,
        efficiency=point.efficiency,
        gpu_hours=_gpu_hours(point.step_time_s, point.gpus, steps),
        epoch_s=point.epoch_s,
        samples_per_j=point.samples_per_j,
        gpu_utilization=point.gpu_utilization,
        peak_memory_bytes=point.peak_memory_bytes,
        peak_host_memory_bytes=point.peak_host_memory_bytes,
        timed=None if figure is None else figure.timed,
        time_s=None if figure is None else figure.mean_time_s,
        sample_shape=None if shape is None else "x".join(map(str, shape)),
    )


def _gpu_hours(step_time_s: Estimate | None, gpus: int, steps: int | None) -> Estimate | None:
    """What a training of so many steps costs; None where either is unknown."""
    if step_time_s is None or steps is None:
        return None
    return step_time_s.scaled(gpus * steps / _HOUR_S)
