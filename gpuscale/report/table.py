"""The scaling table: one row per (case, strategy, gpus), every number with its interval."""

from collections.abc import Sequence

from tabulate import tabulate

from gpuscale.records import Configuration, Estimate
from gpuscale.scaling import ScalingPoint
from gpuscale.units import format_bytes, format_percent, format_seconds, significant

UNKNOWN = "–"


def scaling_table(points: Sequence[ScalingPoint]) -> str:
    """The points as a table; intervals are 95%, and absent where a single run gives none."""
    on_cpu = all(point.configuration.device == "cpu" for point in points)
    headers = [
        "case",
        "gpus",
        "batch/gpu",
        "runs",
        "step time",
        "samples/s",
        "speedup",
        "efficiency",
        "GPU util",
        "peak memory" if not on_cpu else "peak memory (host)",
    ]
    shown = set_apart([point.configuration for point in points])
    rows = [[shown[point.configuration], *_cells(point)] for point in points]
    return tabulate(
        rows, headers, disable_numparse=True, colalign=("left", *["right"] * (len(headers) - 1))
    )


def set_apart(configurations: Sequence[Configuration]) -> dict[Configuration, str]:
    """A name for each configuration: its label, and options where labels alone are ambiguous."""
    distinct = dict.fromkeys(configurations)
    labels = [configuration.label for configuration in distinct]
    return {
        configuration: configuration.label
        if labels.count(configuration.label) == 1
        else f"{configuration.label} ({configuration_text(configuration)})"
        for configuration in distinct
    }


def configuration_text(configuration: Configuration) -> str:
    """What identifies a result beside case, strategy and gpus, in words."""
    words: list[str] = [configuration.size, configuration.precision]
    if configuration.channels_last:
        words.append("channels-last")
    if configuration.compiled:
        words.append("compiled")
    words += [f"{configuration.scaling} scaling", f"{configuration.data} data"]
    return ", ".join(words)


def interval_text(estimate: Estimate | None, digits: int = 2) -> str:
    """`1.86 [1.80, 1.93]`; without brackets where there is no interval."""
    if estimate is None:
        return UNKNOWN
    text = f"{estimate.value:.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def _cells(point: ScalingPoint) -> list[str]:
    time_s, rate = point.step_time_s, point.samples_per_s
    memory = point.peak_memory_bytes
    if point.configuration.device == "cpu":
        memory = point.peak_host_memory_bytes
    failed = f" ({point.failed_runs} failed)" if point.failed_runs else ""
    return [
        str(point.key.gpus),
        str(point.batch_per_gpu),
        f"{point.valid_runs}{failed}",
        UNKNOWN if time_s is None else format_seconds(time_s.value) + spread_text(time_s),
        UNKNOWN if rate is None else significant(rate.value) + spread_text(rate),
        interval_text(point.speedup),
        interval_text(point.efficiency),
        UNKNOWN if point.gpu_utilization is None else format_percent(point.gpu_utilization),
        UNKNOWN if memory is None else format_bytes(memory),
    ]


def spread_text(estimate: Estimate) -> str:
    """Half the interval relative to the value: ` ±2.1 %`; empty without an interval."""
    if estimate.low is None or estimate.high is None:
        return ""
    half = (estimate.high - estimate.low) / 2 / estimate.value
    return f" ±{format_percent(half)}"
