"""The scaling table: one row per (case, strategy, gpus), every number with its interval."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gpuscale.records import Estimate, Run
from gpuscale.report.configurations import configuration_text, set_apart
from gpuscale.report.stacking import stacked_table
from gpuscale.scaling import PointKey, ScalingPoint, unit_error_note
from gpuscale.units import format_bytes, format_percent, format_seconds, significant

UNKNOWN = "–"
_WIDEST_SYMMETRIC = 0.2


_FIRST = ("step time", "speedup", "efficiency", "samples/s", "runs")
"""What a narrow terminal shows first."""


def scaling_table(
    points: Sequence[ScalingPoint], runs: Iterable[Run] = (), *, columns: int | None = None
) -> str:
    """The points as a table; intervals are 95%, and absent where a single run gives none.

    Args:
        points: One for each row.
        runs: What the points are made of: unsteady ones are told from failed ones.
        columns: Of the terminal; None where there is room for any table.
    """
    on_cpu = all(point.configuration.device == "cpu" for point in points)
    memory = ["peak host memory"] if on_cpu else ["GPU util", "peak memory"]
    counted = any(point.samples_per_j is not None for point in points)
    energy = ["samples/J"] if counted else []
    headers = ["case", "gpus", "scaling", "batch/gpu", "runs", "step time", "samples/s"]
    headers += ["speedup", "efficiency", *energy, *memory]
    shown = set_apart([point.configuration for point in points])
    unsteady = Counter(
        PointKey.of(run) for run in runs if run.failure and run.failure.kind == "unsteady"
    )
    rows = [
        [
            shown[point.configuration],
            *_cells(point, unsteady[point.point_key]),
            *([_rate_text(point.samples_per_j)] if counted else []),
            *_resource_cells(point, on_cpu=on_cpu),
        ]
        for point in points
    ]
    return stacked_table(headers, rows, columns, first=_FIRST)


def table_notes(points: Sequence[ScalingPoint]) -> Iterator[str]:
    """What a reader of the table must know: how it was measured, and what cannot be."""
    texts = dict.fromkeys(configuration_text(point.configuration) for point in points)
    several = any(point.valid_runs > 1 for point in points)
    intervals = "intervals: 95%, over runs" if several else "a single run gives no interval"
    yield f"{'; '.join(texts)}; {intervals}"
    for point in points:
        spread = "" if point.step_time_s is None else spread_text(point.step_time_s)
        if "×" in spread:
            yield (
                f"{spread.strip()}: a wide interval, as factors of the value; measure more runs, "
                "or on a quieter machine"
            )
            break
    for point in points:
        if note := unit_error_note(point.key, point.efficiency):
            yield note


def interval_text(estimate: Estimate | None, digits: int = 2) -> str:
    """`1.86 [1.80, 1.93]`; without brackets where there is no interval."""
    if estimate is None:
        return UNKNOWN
    text = f"{estimate.value:.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def time_text(time_s: Estimate | None) -> str:
    """`4.12 ms ±0.3 %`; the spread is the 95% interval over runs."""
    return UNKNOWN if time_s is None else format_seconds(time_s.value) + spread_text(time_s)


def _cells(point: ScalingPoint, unsteady: int) -> list[str]:
    time_s, rate = point.step_time_s, point.samples_per_s
    counts = {"unsteady": unsteady, "failed": point.failed_runs - unsteady}
    without = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return [
        str(point.key.gpus),
        point.configuration.scaling or UNKNOWN,
        str(point.batch_per_gpu),
        f"{point.valid_runs} ({without})" if without else str(point.valid_runs),
        time_text(time_s),
        _rate_text(rate),
        interval_text(point.speedup),
        interval_text(point.efficiency),
    ]


def _rate_text(rate: Estimate | None) -> str:
    return UNKNOWN if rate is None else significant(rate.value) + spread_text(rate)


def _resource_cells(point: ScalingPoint, *, on_cpu: bool) -> list[str]:
    if on_cpu:
        memory = point.peak_host_memory_bytes
        return [UNKNOWN if memory is None else format_bytes(memory)]
    used, memory = point.gpu_utilization, point.peak_memory_bytes
    return [
        UNKNOWN if used is None else format_percent(used),
        UNKNOWN if memory is None else format_bytes(memory),
    ]


def spread_text(estimate: Estimate) -> str:
    """Half the interval relative to the value: ` ±2.1 %`; empty without an interval.

    A wide interval is not symmetric; it is shown as factors of the value instead.
    """
    if estimate.low is None or estimate.high is None:
        return ""
    half = (estimate.high - estimate.low) / 2 / estimate.value
    if half > _WIDEST_SYMMETRIC:
        below, above = estimate.low / estimate.value, estimate.high / estimate.value
        return f" ×[{significant(below, 2)}, {significant(above, 2)}]"
    return f" ±{format_percent(half)}"
