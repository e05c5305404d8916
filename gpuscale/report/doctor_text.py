"""What `gpuscale doctor` found, for the terminal."""

from collections.abc import Iterator, Mapping, Sequence

from gpuscale.telemetry.examination import ExaminedGpu, Machine
from gpuscale.telemetry.probe import LABELS, Condition, Reading
from gpuscale.telemetry.problems import is_busy
from gpuscale.units import format_bytes

_SMALL_SHARED_MEMORY_BYTES = 1024**3


def doctor_text(machine: Machine, problems: Sequence[str]) -> str:
    """The machine, GPU by GPU, and the problems, without a line break at its end."""
    return "\n".join(_lines(machine, problems))


def _lines(machine: Machine, problems: Sequence[str]) -> Iterator[str]:
    cores = "1 core" if machine.cpu_count == 1 else f"{machine.cpu_count} cores"
    yield f"host      {machine.host}"
    yield f"CPU       {machine.cpu_model or 'unknown model'}, {cores} to use"
    yield f"/dev/shm  {_shared_memory(machine.shared_memory_bytes)}"
    yield f"Python    {machine.python_version}"
    yield f"torch     {machine.torch_version or 'not installed: pip install torch'}"
    yield f"driver    {machine.driver_absent or machine.driver_version or 'of unknown version'}"
    if machine.driver_absent is None and not machine.gpus:
        yield "GPUs      none"
    for gpu in machine.gpus:
        yield ""
        yield from _gpu_lines(gpu)
    yield ""
    yield from _conclusion(machine, problems)


def _shared_memory(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "absent: loader processes need it"
    text = format_bytes(size_bytes)
    if size_bytes >= _SMALL_SHARED_MEMORY_BYTES:
        return text
    return f"{text}: too small for many loader processes; in a container, see --shm-size"


def _conclusion(machine: Machine, problems: Sequence[str]) -> Iterator[str]:
    if problems:
        yield "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        yield from (f"  {problem}" for problem in problems)
    elif machine.gpus:
        yield "no problem found"
    else:
        yield "no GPU to look at: gpuscale measures CPU ranks here, and says so"


def _gpu_lines(gpu: ExaminedGpu) -> Iterator[str]:
    yield f"GPU {gpu.number}  {gpu.name or 'of unknown name'}  {gpu.uuid or ''}".rstrip()
    if gpu.unreachable is not None:
        yield f"  cannot be reached: {gpu.unreachable}"
        return
    shown = {**_reading_texts(gpu.reading), **_condition_texts(gpu.condition, gpu.reading)}
    absent: Mapping[str, str] = {**gpu.reading.absent, **gpu.condition.absent}
    for field, label in LABELS.items():
        if field in shown:
            yield f"  {label:<13} {shown[field]}"
        elif field in absent and field != "ecc_uncorrected":
            yield f"  {label:<13} absent: {absent[field]}"


def _reading_texts(reading: Reading) -> dict[str, str]:
    values = {
        "power_w": (reading.power_w, "{:.0f} W"),
        "sm_clock_mhz": (reading.sm_clock_mhz, "{:.0f} MHz"),
        "memory_clock_mhz": (reading.memory_clock_mhz, "{:.0f} MHz"),
        "temperature_c": (reading.temperature_c, "{:.0f} °C"),
    }
    shown = {
        field: form.format(value) for field, (value, form) in values.items() if value is not None
    }
    if reading.utilization is not None:
        shown["utilization"] = f"{reading.utilization * 100:.0f} %"
    if reading.memory_used_bytes is not None:
        shown["memory_used_bytes"] = f"{format_bytes(reading.memory_used_bytes)} in use"
    if reading.energy_j is not None:
        shown["energy_j"] = "counted by the device"
    if reading.clock_event_reasons is not None:
        shown["clock_event_reasons"] = ", ".join(reading.clock_event_reasons) or "none"
    return shown


def _condition_texts(condition: Condition, reading: Reading) -> dict[str, str]:
    shown = {}
    if condition.pcie is not None:
        shown["pcie"] = _pcie(condition, reading)
    if condition.power_limit_w is not None:
        shown["power_limit_w"] = f"{condition.power_limit_w:.0f} W"
    if condition.nvlink_active is not None:
        shown["nvlink_active"] = _nvlink(condition.nvlink_active)
    if condition.nvlink_errors is not None:
        counts = condition.nvlink_errors.items()
        shown["nvlink_errors"] = ", ".join(f"{count} {kind}" for kind, count in counts)
    if condition.ecc_corrected is not None and condition.ecc_uncorrected is not None:
        corrected, uncorrected = condition.ecc_corrected, condition.ecc_uncorrected
        shown["ecc_corrected"] = f"{corrected} corrected, {uncorrected} not, since the last reset"
    if condition.xids is not None:
        shown["xids"] = "reported by the driver while a run is sampled"
    return shown


def _pcie(condition: Condition, reading: Reading) -> str:
    assert condition.pcie is not None
    pcie = condition.pcie
    text = f"generation {pcie.generation} of {pcie.max_generation or 'unknown'}"
    is_lowered = (pcie.generation or 0) < (pcie.max_generation or 0)
    if is_lowered and not is_busy(reading):
        text += " (lowered while idle; runs record it under load)"
    return f"{text}, width x{pcie.width} of {_lanes(pcie.max_width)}"


def _lanes(width: int | None) -> str:
    return "unknown" if width is None else f"x{width}"


def _nvlink(active: Sequence[bool]) -> str:
    down = [str(link) for link, is_active in enumerate(active) if not is_active]
    text = f"{sum(active)} of {len(active)} links active"
    return f"{text} (inactive: {', '.join(down)})" if down else text
