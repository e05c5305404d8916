"""A results file for the terminal: where from, its scaling table, where the efficiency went."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from gpuscale.budget import (
    DeviceSpread,
    EfficiencyBudget,
    RankSkew,
    device_spreads,
    efficiency_budgets,
    rank_skews,
)
from gpuscale.printable import visible
from gpuscale.records import Environment, Estimate, Results, Run
from gpuscale.report.phrases import (
    UNKNOWN,
    configuration_text,
    counted,
    gpus_text,
    injection_warning,
    interval_text,
    set_apart,
    spread_text,
    time_text,
)
from gpuscale.report.reason_words import statement_text
from gpuscale.report.screen import fitted, table
from gpuscale.scaling import PointKey, ScalingPoint, scaling_points, unit_error_note
from gpuscale.units import format_bytes, format_percent, format_seconds, significant

NAMED_SKEW = 0.02
"""Share of the time from which a skew, and a rank that lags in a run, is named."""

_DAY_S = 86400
_BUDGET_PARTS = ("communication", "data", "skew")
_FIRST = ("step time", "speedup", "efficiency", "samples/s", "runs")
"""Columns that a narrow terminal shows first."""


def results_text(
    results: Results,
    *,
    path: Path | None = None,
    now: datetime | None = None,
    columns: int | None = None,
) -> str:
    """The results as text, without a line break at its end.

    Args:
        results: What to show.
        path: Where they were read from.
        now: By which results of another day say how old they are.
        columns: Of the terminal; None where there is room for any line.
    """
    lines = [*fitted(provenance_lines(results, path, now), columns)]
    lines += scaling_lines(results.runs, columns) if results.runs else ["no run was recorded"]
    return "\n".join((*lines, *fitted(_failures(results), columns)))


def scaling_lines(runs: Sequence[Run], columns: int | None) -> Iterator[str]:
    """The scaling table of the runs, with its notes and where the lost efficiency went."""
    points = scaling_points(runs)
    yield from scaling_table(points, runs, columns=columns).splitlines()
    yield ""
    yield from fitted(table_notes(points), columns)
    yield from fitted(budget_lines(runs), columns)


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
    has_energy = any(point.samples_per_j is not None for point in points)
    energy = ["samples/J"] if has_energy else []
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
            *([_rate_text(point.samples_per_j)] if has_energy else []),
            *_resource_cells(point, on_cpu=on_cpu),
        ]
        for point in points
    ]
    return table(headers, rows, columns, first=_FIRST)


def table_notes(points: Sequence[ScalingPoint]) -> Iterator[str]:
    """The lines below the table: how it was measured, and what cannot be right."""
    texts = dict.fromkeys(configuration_text(point.configuration) for point in points)
    several = any(point.valid_runs > 1 for point in points)
    intervals = "intervals: 95%, over runs" if several else "a single run gives no interval"
    yield f"{'; '.join(texts)}; {intervals}"
    spreads = [spread_text(point.step_time_s) for point in points if point.step_time_s is not None]
    for spread in [spread for spread in spreads if "×" in spread][:1]:
        yield (
            f"{spread.strip()}: a wide interval, as factors of the value; measure more runs, "
            "or on a quieter machine"
        )
    for point in points:
        if note := unit_error_note(point.key, point.efficiency):
            yield statement_text(note)


def provenance_lines(
    results: Results, path: Path | None = None, now: datetime | None = None
) -> Iterator[str]:
    """Which results these are: file, time, machine and software, and an empty line."""
    environment = results.environment
    if results.injections:
        yield injection_warning(results.injections)
    if path is not None:
        yield f"results   {visible(str(path))}"
    age = "" if now is None else age_text(results, now)
    yield (
        f"measured  {results.created_at} by gpuscale {results.gpuscale_version}"
        f"{f', {age}' if age else ''}"
    )
    device = "cpu, over gloo" if environment.device == "cpu" else "cuda, over NCCL"
    yield f"machine   {environment.host}: {environment.hardware_label} (device: {device})"
    yield f"software  {software_text(environment)}"
    if environment.job_id is not None:
        yield f"job       {environment.scheduler} {environment.job_id}"
    yield ""


def age_text(results: Results, now: datetime) -> str:
    """`3 days ago`, by the last of the runs; empty where that is less than a day."""
    begun_s = datetime.fromisoformat(results.created_at).timestamp()
    last_s = max([begun_s, *((run.started_at_s or 0) + (run.wall_s or 0) for run in results.runs)])
    days = int((now.timestamp() - last_s) // _DAY_S)
    return "" if days < 1 else f"{counted(days, 'day')} ago"


def software_text(environment: Environment) -> str:
    """The versions that a measurement depends on: `torch 2.15.0, CUDA 13.2, …`."""
    versions = {
        "torch": environment.torch_version,
        "CUDA": environment.cuda_version if environment.device == "cuda" else None,
        "NCCL": environment.nccl_version,
        "driver": environment.driver_version,
        "Python": environment.python_version,
        "cases": environment.cases_revision,
    }
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


def _failures(results: Results) -> Iterator[str]:
    for run in results.runs:
        if run.failure is not None:
            # What is not steady says so itself.
            kind = "" if run.failure.kind == "unsteady" else f"{run.failure.kind}: "
            yield f"{run.key.label}, run {run.index}: {kind}{run.failure.message}"


def _cells(point: ScalingPoint, unsteady: int) -> list[str]:
    counts = {"unsteady": unsteady, "failed": point.failed_runs - unsteady}
    without = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return [
        str(point.key.gpus),
        point.configuration.scaling or UNKNOWN,
        str(point.batch_per_gpu),
        f"{point.valid_runs} ({without})" if without else str(point.valid_runs),
        time_text(point.step_time_s),
        _rate_text(point.samples_per_s),
        interval_text(point.speedup),
        interval_text(point.efficiency),
    ]


def _rate_text(rate: Estimate | None) -> str:
    return UNKNOWN if rate is None else significant(rate.value) + spread_text(rate)


def _resource_cells(point: ScalingPoint, *, on_cpu: bool) -> list[str]:
    used = point.gpu_utilization
    memory = point.peak_host_memory_bytes if on_cpu else point.peak_memory_bytes
    return [
        *([] if on_cpu else [UNKNOWN if used is None else format_percent(used)]),
        UNKNOWN if memory is None else format_bytes(memory),
    ]


def budget_lines(runs: Sequence[Run]) -> Iterator[str]:
    """The efficiency budget, the stragglers, and devices that differ, after an empty line.

    Such as `mnist_cnn/ddp 4 GPUs  E 0.84 = 1 − communication 0.09 − data 0.01 − …`; nothing at
    all where none of it was measured.
    """
    names = set_apart([run.configuration for run in runs])
    lines: list[tuple[str, str]] = []
    budgets = efficiency_budgets(runs)
    for budget in budgets:
        if _measured(budget):
            label = f"{names[budget.configuration]} {gpus_text(budget.key.gpus)}"
            lines.append((label, budget_text(budget)))
            if budget.skew is not None and budget.skew >= NAMED_SKEW:
                lines += [(label, line) for line in _stragglers(budget, runs)]
    for spread in device_spreads(runs):
        label = f"{names[spread.configuration]} {gpus_text(spread.key.gpus)}"
        lines.append((label, _device_text(spread)))
    width = max((len(label) for label, _ in lines), default=0)
    if lines:
        yield ""
    for label, text in lines:
        yield f"{label:<{width}}  {text}"
    if any(budget.communication is not None for budget in budgets):
        yield (
            "E: efficiency, the speedup over the number of GPUs; communication: exposed, less what "
            "DDP does with the gradients of a single rank (show --phases has both together)"
        )


def budget_text(budget: EfficiencyBudget) -> str:
    """`E 0.84 = 1 − communication 0.09 − …`: two decimals that add up as they are printed."""
    measured = _measured(budget)
    parts = {**measured, "rest": budget.rest}
    loss = 100 - round(budget.efficiency * 100)
    points = dict(zip(parts, _whole_points(parts.values(), loss), strict=True))
    terms = "".join(
        f" {'+' if value < 0 else '−'} {name} {abs(value) / 100:.2f}"
        for name, value in points.items()
    )
    absent = [name for name in _BUDGET_PARTS if name not in measured]
    note = f" (not measured, so in the rest: {', '.join(absent)})" if absent else ""
    return f"E {(100 - loss) / 100:.2f} = 1{terms}{note}"


def skew_text(skew: RankSkew) -> str:
    """Who was slowest: `rank 2 (node1, GPU-ab12…)`."""
    where = [skew.host, *skew.device_uuids]
    return f"rank {skew.rank} ({', '.join(where)})"


def _measured(budget: EfficiencyBudget) -> dict[str, float]:
    parts = dict(zip(_BUDGET_PARTS, (budget.communication, budget.data, budget.skew), strict=True))
    return {name: part for name, part in parts.items() if part is not None}


def _whole_points(parts: Iterable[float], total: int) -> list[int]:
    """The parts in whole points whose sum is the total; each stays within a point of its part."""
    exact = [part * 100 for part in parts]
    points = [math.floor(part) for part in exact]
    largest_fraction_first = sorted(range(len(exact)), key=lambda i: points[i] - exact[i])
    for i in largest_fraction_first[: total - sum(points)]:
        points[i] += 1
    return points


def _stragglers(budget: EfficiencyBudget, runs: Iterable[Run]) -> Iterator[str]:
    found: dict[str, list[RankSkew]] = {}
    for skew in rank_skews(
        run for run in runs if (run.configuration, run.key) == (budget.configuration, budget.key)
    ):
        if skew.skew_s >= NAMED_SKEW * skew.median_pace_s:
            found.setdefault(skew_text(skew), []).append(skew)
    for who, skews in found.items():
        lag = statistics.median(skew.skew_s / skew.median_pace_s for skew in skews)
        numbers = ", ".join(str(skew.run) for skew in skews)
        yield (
            f"skew: {who} {format_percent(lag)} slower than {_compared_with(skews[0])} "
            f"in run{'s' if len(skews) > 1 else ''} {numbers}"
        )


def _compared_with(skew: RankSkew) -> str:
    # Of two ranks the median one is the other.
    return f"rank {1 - skew.rank}" if skew.key.gpus == 2 else "the median rank"


def _device_text(spread: DeviceSpread) -> str:
    return (
        f"T(1) over {spread.devices} devices: {format_seconds(spread.slowest_step_time_s)} on "
        f"{spread.slowest}, {format_percent(spread.spread)} more than on {spread.fastest}"
    )
