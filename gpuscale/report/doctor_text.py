"""The findings of `gpuscale doctor`, for the terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from gpuscale.telemetry.doctor import ExaminedGpu, Machine
from gpuscale.telemetry.fields import BYTES, FIELDS, SHARE, Field, Quantity
from gpuscale.units import format_bytes, whole_percent

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


def _clock_events(gpu: ExaminedGpu) -> str:
    return ", ".join(gpu.reading.answers["clock_event_reasons"]) or "none"


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
    "clock_event_reasons": _clock_events,
    "pcie_generation": _pcie_generation,
    "pcie_width": _pcie_width,
    "nvlink_active": _nvlink,
}
"""Of what more is to be said than a number, by the moment's name."""
