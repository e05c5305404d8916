"""What `gpuscale selftest` found on this machine, for the terminal."""

from collections.abc import Iterator

from gpuscale.records import OverheadReport, Rate, TrialsReport
from gpuscale.report.phrases import UNKNOWN, interval_text
from gpuscale.report.screen import table
from gpuscale.units import format_percent, format_seconds


def overhead_text(report: OverheadReport) -> str:
    """The overhead on each number of GPUs, without a line break at its end."""
    return "\n".join(_overhead_lines(report))


def _overhead_lines(report: OverheadReport) -> Iterator[str]:
    configuration = report.configuration
    yield (
        f"overhead of measuring {configuration.label} ({configuration.size}, "
        f"{configuration.precision}) on {report.environment.hardware_label}"
    )
    yield ""
    rows = [
        [
            str(result.gpus),
            f"{result.runs} × {result.pairs // result.runs}",
            format_seconds(result.step_time_s),
            interval_text(result.ratio, digits=4),
            f"{result.limit:.3f}",
            result.verdict,
        ]
        for result in report.results
    ]
    headers = ["gpus", "runs × pairs", "step, bare", "measured / bare", "limit", "verdict"]
    yield table(headers, rows, left=("verdict",))
    yield ""
    yield (
        "measured: windows as gpuscale makes them, with phases, barriers, progress and telemetry; "
        "bare: a plain loop"
    )
    yield "intervals: 95%, over runs"
    for result in report.results:
        if result.reason:
            yield f"{result.gpus} GPU{'' if result.gpus == 1 else 's'}: {result.reason}"
    yield f"took {format_seconds(report.wall_s)}"


def trials_text(report: TrialsReport) -> str:
    """False alarms, faults found and the overhead, without a line break at its end."""
    return "\n".join(_trials_lines(report))


def _trials_lines(report: TrialsReport) -> Iterator[str]:
    configuration = report.configuration
    gpus = " and ".join(str(count) for count in report.gpus)
    yield (
        f"selftest with {configuration.label} ({configuration.size}, {configuration.precision}) "
        f"on {gpus} GPU{'' if report.gpus == (1,) else 's'}: {report.environment.hardware_label}"
    )
    failed = f", {report.failed_runs} of them failed or not steady" if report.failed_runs else ""
    yield f"{report.runs} runs{failed}; a night here is {report.runs_per_block} runs of each"
    yield ""
    yield (
        f"false alarms: {_rate(report.false_alarms)} of the rows in {report.comparisons} "
        "comparisons of nothing changed"
    )
    losses = ", ".join(
        f"{format_percent(its.loss)} on {its.key.gpus} GPU{'' if its.key.gpus == 1 else 's'}"
        for its in report.detectable_losses
    )
    yield f"smallest loss that is found 19 times in 20 (median): {losses or UNKNOWN}"
    yield ""
    rows = [
        [
            result.fault.name,
            f"+{result.fault.size * 100:.0f} %",
            _rate(result.found),
            _rate(result.named),
        ]
        for result in report.faults
    ]
    headers = ["fault", "of a step", "found", "named first, of those found"]
    yield table(headers, rows, left=headers)
    for reason in report.not_tried:
        yield f"not tried: {reason}"
    yield ""
    yield overhead_text(report.overhead)
    yield f"trials took {format_seconds(report.wall_s)}; intervals: 95%"


def coarse_rate_text(rate: Rate) -> str:
    """`97.1 % [94, 99]`, for rates that are not small."""
    low, high = rate.rate.low, rate.rate.high
    bounds = "" if low is None or high is None else f" [{low * 100:.0f}, {high * 100:.0f}]"
    return f"{format_percent(rate.rate.value)}{bounds}"


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return UNKNOWN
    return f"{rate.count} of {rate.of}, {coarse_rate_text(rate)}"
