"""Points and columns that every format of `gpuscale show` uses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpuscale.analysis.projection import Projection
from gpuscale.analysis.scaling import published_points, scaling_points
from gpuscale.base.units import format_bytes, format_percent, format_seconds, significant
from gpuscale.records import Baseline, Estimate, Results, ScalingPoint
from gpuscale.reports.columns import SCALING, Column
from gpuscale.reports.screen import PLAIN_COLUMNS

_HOUR_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A results or baseline file, and how to show it."""

    content: Results | Baseline
    path: Path
    now: datetime
    steps: int | None = None
    """Number of training steps for which GPU-hours are shown; None for no GPU-hours."""
    projections: tuple[Projection, ...] = ()
    """Projections of configurations to GPU counts that were not measured."""
    phases: bool = False
    """True if the text shows the phases of a step instead of the scaling table."""
    columns: int = PLAIN_COLUMNS
    """Width of the terminal or file that the text is written to, in columns."""

    @property
    def injections(self) -> tuple[str, ...]:
        """Faults injected into the results on purpose."""
        return self.content.injections if isinstance(self.content, Results) else ()

    @property
    def points(self) -> Sequence[ScalingPoint]:
        """All scaling points: published ones first, then measured ones, then projected ones."""
        published = published_points(self.content) if isinstance(self.content, Baseline) else {}
        projected = (point for projection in self.projections for point in projection.points)
        return (*published.values(), *scaling_points(self.content.runs), *projected)


def columns_with(steps: int | None) -> tuple[Column[ScalingPoint], ...]:
    """Return the columns of scaling points, with the GPU-hours of `steps` training steps."""

    def gpu_hours(point: ScalingPoint) -> Estimate | None:
        if point.step_time_s is None or steps is None:
            return None
        return point.step_time_s.scaled(point.gpus * steps / _HOUR_S)

    def of_figure(name: str) -> Callable[[ScalingPoint], object]:
        return lambda point: None if point.figure is None else getattr(point.figure, name)

    return (
        Column("kind"),
        Column("gpus", "GPUs"),
        Column("nodes", "nodes"),
        Column("batch_per_gpu", "batch/GPU"),
        Column(
            "samples_per_step",
            "batch",
            value=lambda point: point.batch_per_gpu and point.gpus * point.batch_per_gpu,
        ),
        Column(
            "runs",
            "runs",
            value=lambda point: None if point.kind == "projected" else point.valid_runs,
        ),
        Column(
            "failed_runs",
            value=lambda point: point.failed_runs if point.kind == "measured" else None,
        ),
        *SCALING,
        Column("gpu_hours", "GPU-hours", significant, "±", gpu_hours),
        Column("epoch_s", "epoch", format_seconds),
        Column("samples_per_j", "samples/J", significant, "±"),
        Column("gpu_utilization", "GPU util", format_percent),
        Column("peak_memory_bytes", "peak memory", format_bytes),
        Column("peak_host_memory_bytes", "peak RAM", format_bytes),
        Column("timed", value=of_figure("timed")),
        Column("time_s", value=of_figure("mean_time_s")),
        Column(
            "sample_shape",
            value=lambda point: point.sample_shape and "x".join(map(str, point.sample_shape)),
        ),
    )
