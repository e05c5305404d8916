"""Examine a machine: describe its GPUs and settings, and find problems."""

import os
import platform
import time
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from gpuscale.base.errors import DeviceAbsentError, DriverAbsentError, DriverBrokenError, QueryError
from gpuscale.base.host import cpu_model, cpu_numa_nodes, gpu_numa_node
from gpuscale.base.text import counted
from gpuscale.measure.evidence.network import read_ports
from gpuscale.measure.evidence.node import LoadMeter, read_settings
from gpuscale.measure.telemetry.device import Smi, open_smi
from gpuscale.records import NodeEvidence
from gpuscale.records.gpu_and_port_counters import Reading

_LOAD_S = 0.25
"""Seconds over which the load from other processes is measured."""
_BUSY_UTILIZATION = 0.5
"""Lowest utilization at which a GPU counts as busy; its PCIe link should then be at full speed."""

_LINKS = {"nvlink_active": "NVLink", "xgmi_active": "XGMI"}
_SLOWDOWNS = (
    *("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "hw_slowdown"),
    *("prochot", "socket_thermal", "vr_thermal", "hbm_thermal"),
)
"""Clock event reasons that a healthy GPU never reports; many always train at their power limit, so
`sw_power_cap` and `ppt` are not included."""


class ExaminedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one GPU at one moment."""

    number: int
    """The GPU's index in the driver's list of all GPUs; its CUDA index may differ."""
    name: str | None = None
    uuid: str | None = None
    reading: Reading = msgspec.field(default_factory=Reading)
    firmware: str | None = None
    numa_node: int | None = None
    """NUMA node of the GPU; None if unknown, or if the machine has only one."""
    unreachable: str | None = None
    """The reason why the driver cannot reach the GPU; None if it can."""

    @property
    def is_busy(self) -> bool:
        """True if utilization is at least 50 % and the driver does not report the GPU as idle."""
        answers = self.reading.answers
        idle = "gpu_idle" in answers.get("clock_event_reasons", ())
        return not idle and answers.get("utilization", 0.0) >= _BUSY_UTILIZATION


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one machine at one moment; unknown values are None."""

    node: NodeEvidence
    cpu_model: str | None
    cpu_count: int
    """The number of cores that this process may use."""
    cpu_numa_nodes: tuple[int, ...]
    """The NUMA nodes of the cores that this process may use; empty if unknown."""
    smi: str | None = None
    """The driver's interface that answered, NVML or AMD SMI; None without a driver."""
    driver_version: str | None = None
    driver_absent: str | None = None
    """The reason why there is no usable GPU driver; None if there is one."""
    driver_broken: bool = False
    """True if a driver is installed but does not work."""
    gpus: tuple[ExaminedGpu, ...] = ()


def examine() -> Machine:
    """Examine this machine, in less than a second, without torch or a CUDA context."""
    meter = LoadMeter()
    time.sleep(_LOAD_S)
    settings, absent = read_settings()
    machine = Machine(
        node=NodeEvidence(
            host=platform.node(),
            load=meter.load(),
            settings=settings,
            ports=read_ports(),
            absent=absent,
        ),
        cpu_model=cpu_model(),
        cpu_count=len(os.sched_getaffinity(0)),
        cpu_numa_nodes=cpu_numa_nodes(os.sched_getaffinity(0)),
    )
    try:
        with open_smi() as smi:
            gpus = tuple(_examined_gpus(smi))
            return replace(machine, smi=smi.NAME, driver_version=smi.driver_version(), gpus=gpus)
    except DriverAbsentError as error:
        is_broken = isinstance(error, DriverBrokenError)
        return replace(machine, driver_absent=str(error), driver_broken=is_broken)


def _examined_gpus(smi: Smi) -> Iterator[ExaminedGpu]:
    try:
        for number, device in smi.all_devices():
            if isinstance(device, DeviceAbsentError):
                yield ExaminedGpu(number=number, unreachable=str(device))
                continue
            yield ExaminedGpu(
                number=number,
                name=device.name,
                uuid=device.uuid,
                reading=device.inspect(device.read()),
                firmware=device.firmware,
                numa_node=gpu_numa_node(device.pci_address) if device.pci_address else None,
            )
    except QueryError as error:
        yield ExaminedGpu(number=0, unreachable=f"{smi.NAME} cannot list the GPUs: {error}")


def find_problems(machine: Machine) -> tuple[str, ...]:
    """Return the problems, of the driver or of GPUs, that would disturb a measurement."""
    found: list[str] = []
    if machine.driver_broken:
        remedy = "reload it, or reboot after an update"
        found.append(f"the driver of the GPUs does not work ({machine.driver_absent}): {remedy}")
    for gpu in machine.gpus:
        found += [f"GPU {gpu.number} {problem}" for problem in _problems_of(gpu, machine.gpus)]
    return tuple(found)


def _problems_of(gpu: ExaminedGpu, all_gpus: Sequence[ExaminedGpu]) -> Iterator[str]:
    answers = gpu.reading.answers
    lost = {"GPU is lost", "GPU requires restart"} & {*gpu.reading.absent.values()}
    if reason := gpu.unreachable or ", ".join(sorted(lost)):
        remedy = "look for XID messages in the kernel's log, then reset it or reboot"
        yield f"cannot be reached ({reason}): {remedy}"
    # To save power an idle GPU lowers the generation, but not the width.
    for fact in ("width", "generation") if gpu.is_busy else ("width",):
        now, most = answers.get(f"pcie_{fact}"), answers.get(f"pcie_max_{fact}")
        if now is not None and most is not None and now < most:
            remedy = "reseat it, check the riser and the slot's setting in the firmware"
            yield f"runs PCIe at {fact} {now} of {most}: {remedy}"
    yield from _inactive_links(gpu, all_gpus)
    if uncorrected := answers.get("ecc_uncorrected"):
        yield (
            f"had {counted(uncorrected, 'memory error')} that ECC could not correct since its last "
            "reset: drain the node and reset the GPU, and have it replaced if they come back"
        )
    slow = [reason for reason in answers.get("clock_event_reasons", ()) if reason in _SLOWDOWNS]
    if slow:
        heat = answers.get("temperature_c")
        why = ", ".join([*slow, *([] if heat is None else [f"{heat:.0f} °C"])])
        yield f"slows itself ({why}): check fans, air flow, power supply and power cables"


def _inactive_links(gpu: ExaminedGpu, all_gpus: Sequence[ExaminedGpu]) -> Iterator[str]:
    # Only GPUs of one model are compared: the number of links in use differs between machines.
    alike = [other.reading.answers for other in all_gpus if other.name == gpu.name]
    for moment, links in _LINKS.items():
        active = gpu.reading.answers.get(moment, ())
        most = max(sum(answers.get(moment, ())) for answers in alike)
        if active and sum(active) < most:
            down = ", ".join(str(link) for link, is_active in enumerate(active) if not is_active)
            yield (
                f"has {sum(active)} of {len(active)} {links} links active, another {gpu.name} here "
                f"has {most}: check bridge or baseboard at link {down}"
            )
