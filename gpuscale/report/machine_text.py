"""A machine's examination by `gpuscale doctor` and its `selftest`, for the terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from gpuscale.diagnose.slow_nodes import NodeFinding
from gpuscale.records import Configuration, NodeProbe, OverheadReport, Rate, TrialsReport
from gpuscale.report.phrases import UNKNOWN, counted, gpus_text, interval_text
from gpuscale.report.screen import table
from gpuscale.telemetry.doctor import ExaminedGpu, Machine
from gpuscale.telemetry.fields import BYTES, FIELDS, SHARE, Field, Quantity
from gpuscale.units import format_bytes, format_percent, format_seconds, whole_percent

_SMALL_SHARED_MEMORY_BYTES = 1024**3


def doctor_text(machine: Machine, problems: Sequence[str]) -> str:
    """The machine, GPU by GPU, and the problems, without a line break at its end."""
    lines = [
        f"host      {machine.host}",
        f"CPU       {machine.cpu_model or 'unknown model'}, {counted(machine.cpu_count, 'core')} "
        "to use",
        f"/dev/shm  {_shared_memory(machine.shared_memory_bytes)}",
        f"Python    {machine.python_version}",
        f"torch     {machine.torch_version or 'not installed: pip install torch'}",
        f"driver    {machine.driver_absent or machine.driver_version or 'of unknown version'}",
    ]
    if machine.driver_absent is None and not machine.gpus:
        lines.append("GPUs      none")
    for gpu in machine.gpus:
        lines += ["", *_gpu_lines(gpu)]
    none = "no GPU to look at: gpuscale measures CPU ranks here, and says so"
    lines += ["", *_problems(problems, "no problem found" if machine.gpus else none)]
    return "\n".join(lines)


def nodes_text(
    probes: Sequence[NodeProbe], findings: Sequence[NodeFinding], *, message_bytes: int
) -> str:
    """A table of a job's nodes and a line for each finding, without a line break at its end."""
    rows = [
        [
            probe.host,
            format_seconds(max(probe.compute_s)),
            *(_link_rate(probe, place, message_bytes) for place in range(len(probes))),
        ]
        for probe in probes
    ]
    headers = ["node", "compute", *(f"to {probe.host}" for probe in probes)]
    alike = {
        1: "a single node: nothing to compare it with",
        2: "both nodes are alike, and so are both ways of their link; a third would tell more",
    }
    lines = [
        table(headers, rows, left=headers),
        "",
        "compute: time for a product of matrices, of the slowest GPU where there are several; "
        f"links: {format_bytes(message_bytes)} and a receipt",
        *_problems(
            [finding.text for finding in findings],
            alike.get(len(probes), "no node and no link is slow beside the others"),
        ),
    ]
    return "\n".join(lines)


def overhead_text(report: OverheadReport) -> str:
    """The overhead on each number of GPUs, without a line break at its end."""
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
    lines = [
        f"overhead of measuring {_options(report.configuration)} on "
        f"{report.environment.hardware_label}",
        "",
        table(headers, rows, left=("verdict",)),
        "",
        "measured: windows as gpuscale makes them, with phases, barriers, progress and telemetry; "
        "bare: a plain loop",
        "intervals: 95%, over runs",
    ]
    lines += [f"{gpus_text(its.gpus)}: {its.reason}" for its in report.results if its.reason]
    return "\n".join([*lines, f"took {format_seconds(report.wall_s)}"])


def trials_text(report: TrialsReport) -> str:
    """False alarms, faults found and the overhead, without a line break at its end."""
    failed = f", {report.failed_runs} of them failed or not steady" if report.failed_runs else ""
    losses = [
        f"{format_percent(its.loss)} on {gpus_text(its.key.gpus)}"
        for its in report.detectable_losses
    ]
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
    lines = [
        f"selftest with {_options(report.configuration)} on {gpus_text(*report.gpus)}: "
        f"{report.environment.hardware_label}",
        f"{report.runs} runs{failed}; a night here is {report.runs_per_block} runs of each",
        "",
        f"false alarms: {_rate(report.false_alarms)} of the rows in {report.comparisons} "
        "comparisons of nothing changed",
        f"smallest loss that is found 19 times in 20 (median): {', '.join(losses) or UNKNOWN}",
        "",
        table(headers, rows, left=headers),
        *(f"not tried: {reason}" for reason in report.not_tried),
        "",
        overhead_text(report.overhead),
        f"trials took {format_seconds(report.wall_s)}; intervals: 95%",
    ]
    return "\n".join(lines)


def coarse_rate_text(rate: Rate) -> str:
    """`97.1 % [94, 99]`, for rates that are not small."""
    low, high = rate.rate.low, rate.rate.high
    bounds = "" if low is None or high is None else f" [{low * 100:.0f}, {high * 100:.0f}]"
    return f"{format_percent(rate.rate.value)}{bounds}"


def _problems(problems: Sequence[str], none: str) -> list[str]:
    if not problems:
        return [none]
    return [counted(len(problems), "problem"), *(f"  {problem}" for problem in problems)]


def _options(configuration: Configuration) -> str:
    return f"{configuration.label} ({configuration.size}, {configuration.precision})"


def _rate(rate: Rate | None) -> str:
    return UNKNOWN if rate is None else f"{rate.count} of {rate.of}, {coarse_rate_text(rate)}"


def _link_rate(probe: NodeProbe, place: int, message_bytes: int) -> str:
    for send in probe.sends:
        if send.to == place:
            return f"{format_bytes(round(message_bytes / send.time_s))}/s"
    return UNKNOWN


def _shared_memory(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "absent: loader processes need it"
    small = ": too small for many loader processes; in a container, see --shm-size"
    return format_bytes(size_bytes) + (small if size_bytes < _SMALL_SHARED_MEMORY_BYTES else "")


def _gpu_lines(gpu: ExaminedGpu) -> Iterator[str]:
    yield f"GPU {gpu.number}  {gpu.name or 'of unknown name'}  {gpu.uuid or ''}".rstrip()
    if gpu.unreachable is not None:
        yield f"  cannot be reached: {gpu.unreachable}"
        return
    texts: dict[str, list[str]] = {}
    absent: dict[str, str] = {}
    for field in FIELDS:
        if field.moment in gpu.reading.absent:
            absent.setdefault(field.label, gpu.reading.absent[field.moment])
        elif (text := _text(field, gpu)) is not None:
            texts.setdefault(field.label, []).append(text)
    for label in dict.fromkeys(field.label for field in FIELDS):
        if label in texts:
            yield f"  {label:<13} {', '.join(texts[label])}"
        elif label in absent:
            yield f"  {label:<13} absent: {absent[label]}"


def _text(field: Field, gpu: ExaminedGpu) -> str | None:
    """A counter now; None where there is none, or where another one's text tells it."""
    answer = gpu.reading.answers.get(field.moment)
    if answer is None or field.shown is None:
        return None
    if field.moment in _OWN_TEXTS:
        return _OWN_TEXTS[field.moment](gpu)
    if not field.is_number:
        return field.shown
    number = field.number(answer)
    return None if number is None else field.shown.format(_with_unit(number, field.quantity))


def _with_unit(number: float, quantity: Quantity) -> str:
    if quantity is BYTES:
        return format_bytes(number)
    if quantity is SHARE:
        return whole_percent(number)
    return f"{number:.0f} {quantity.unit}".rstrip()


def _pcie_generation(gpu: ExaminedGpu) -> str:
    answers = gpu.reading.answers
    generation, most = answers["pcie_generation"], answers.get("pcie_max_generation")
    text = f"generation {generation} of {most or 'unknown'}"
    if generation < (most or 0) and not gpu.is_busy:
        return f"{text} (lowered while idle; runs record it under load)"
    return text


def _pcie_width(gpu: ExaminedGpu) -> str:
    most = gpu.reading.answers.get("pcie_max_width")
    of = "unknown" if most is None else f"x{most}"
    return f"width x{gpu.reading.answers['pcie_width']} of {of}"


def _nvlink(gpu: ExaminedGpu) -> str:
    active = gpu.reading.answers["nvlink_active"]
    down = [str(link) for link, is_active in enumerate(active) if not is_active]
    text = f"{sum(active)} of {len(active)} links active"
    return f"{text} (inactive: {', '.join(down)})" if down else text


_OWN_TEXTS: Mapping[str, Callable[[ExaminedGpu], str]] = {
    "clock_event_reasons": lambda gpu: (
        ", ".join(gpu.reading.answers["clock_event_reasons"]) or "none"
    ),
    "pcie_generation": _pcie_generation,
    "pcie_width": _pcie_width,
    "nvlink_active": _nvlink,
}
"""Of what more is to be said than a number, by the moment's name."""
