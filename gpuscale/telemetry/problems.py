"""What is wrong with a machine that was looked at, as one plain sentence each with its remedy."""

from collections.abc import Iterator, Mapping, Sequence

from gpuscale.telemetry.examination import ExaminedGpu, Machine
from gpuscale.telemetry.probe import Reading

_BUSY_UTILIZATION = 0.5
"""From here on a GPU counts as busy, so that its PCIe link should run at full speed."""

_SLOWDOWNS = {
    "sw_thermal_slowdown": "is slowed by its driver because it is hot: check fans and air flow",
    "hw_thermal_slowdown": "slows itself because it is too hot: check fans, air flow and heat sink",
    "hw_power_brake_slowdown": "is slowed by the power supply: check it and the power cables",
    "hw_slowdown": "slows itself for heat or power: check cooling, power supply and power cables",
}
"""Reasons that a healthy GPU has at no load, the most telling of them first.

`sw_power_cap` is not among them: many GPUs train at their power limit all the time.
"""


def find_problems(machine: Machine) -> tuple[str, ...]:
    """Everything that a machine to measure on should not have, GPU by GPU; empty where all is well.

    A machine without a GPU has no problem; one whose driver does not work has.
    """
    found: list[str] = []
    if machine.driver_broken:
        found.append(
            f"the NVIDIA driver does not work ({machine.driver_absent}): "
            "reload it, or reboot after an update"
        )
    most_links = _most_active_links(machine.gpus)
    for gpu in machine.gpus:
        found += [f"GPU {gpu.number} {problem}" for problem in _problems_of(gpu, most_links)]
    return tuple(found)


def is_busy(reading: Reading) -> bool:
    """Whether the GPU is at work, as far as it tells."""
    idle = reading.clock_event_reasons is not None and "gpu_idle" in reading.clock_event_reasons
    return not idle and (reading.utilization or 0.0) >= _BUSY_UTILIZATION


def _problems_of(gpu: ExaminedGpu, most_links: Mapping[str | None, int]) -> Iterator[str]:
    if gpu.unreachable is not None:
        yield (
            f"cannot be reached ({gpu.unreachable}): look for XID messages in the kernel's log, "
            "then reset it or reboot"
        )
        return
    yield from _losses(gpu)
    yield from _pcie_problems(gpu)
    yield from _nvlink_problems(gpu, most_links.get(gpu.name, 0))
    uncorrected = gpu.condition.ecc_uncorrected
    if uncorrected:
        errors = "memory error" if uncorrected == 1 else "memory errors"
        yield (
            f"had {uncorrected} {errors} that ECC could not correct since its last reset: "
            "drain the node and reset the GPU, and have it replaced if they come back"
        )
    for reason, sentence in _SLOWDOWNS.items():
        if reason in (gpu.reading.clock_event_reasons or ()):
            yield f"{sentence}{_heat(gpu.reading)}"
            break  # hw_slowdown stands beside the reason that it sums up


def _losses(gpu: ExaminedGpu) -> Iterator[str]:
    """A GPU that answers to its name and then to nothing else."""
    reasons = set(gpu.reading.absent.values())
    for lost in ("GPU is lost", "GPU requires restart"):
        if lost in reasons:
            yield f"does not answer ({lost}): reset it or reboot"


def _heat(reading: Reading) -> str:
    return "" if reading.temperature_c is None else f" (now {reading.temperature_c:.0f} °C)"


def _pcie_problems(gpu: ExaminedGpu) -> Iterator[str]:
    pcie = gpu.condition.pcie
    if pcie is None:
        return
    if pcie.width is not None and pcie.max_width is not None and pcie.width < pcie.max_width:
        yield (
            f"runs PCIe at width x{pcie.width} of x{pcie.max_width}: reseat it or check the riser"
        )
    # An idle GPU lowers the generation, not the width, to save power.
    generations = (pcie.generation, pcie.max_generation)
    if None not in generations and is_busy(gpu.reading):
        now, most = pcie.generation or 0, pcie.max_generation or 0
        if now < most:
            yield (
                f"runs PCIe at generation {now} of {most} while it is busy: "
                "reseat it, check the riser and the slot's setting in the firmware"
            )


def _nvlink_problems(gpu: ExaminedGpu, most_links: int) -> Iterator[str]:
    active = gpu.condition.nvlink_active
    if active is None or sum(active) >= most_links:
        return
    down = ", ".join(str(link) for link, is_active in enumerate(active) if not is_active)
    yield (
        f"has {sum(active)} of {len(active)} NVLink links active, another {gpu.name} here has "
        f"{most_links}: check bridge or baseboard at link {down}"
    )


def _most_active_links(gpus: Sequence[ExaminedGpu]) -> Mapping[str | None, int]:
    """By model, since the number of links in use differs between healthy machines."""
    most: dict[str | None, int] = {}
    for gpu in gpus:
        if gpu.condition.nvlink_active is not None:
            most[gpu.name] = max(most.get(gpu.name, 0), sum(gpu.condition.nvlink_active))
    return most
