"""What a machine offers for measuring: its GPUs as NVML sees them now, and what is around them."""

import os
import platform
import shutil
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

from gpuscale.host import cpu_model
from gpuscale.telemetry.nvml import open_nvml
from gpuscale.telemetry.nvml_device import NvmlDevice
from gpuscale.telemetry.probe import (
    Condition,
    DeviceAbsentError,
    DriverAbsentError,
    DriverBrokenError,
    Reading,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedGpu:
    """One GPU, looked at once."""

    number: int
    """NVML's, which counts all GPUs of the machine; CUDA may number them otherwise."""
    name: str | None = None
    uuid: str | None = None
    reading: Reading = field(default_factory=Reading)
    condition: Condition = field(default_factory=Condition)
    unreachable: str | None = None
    """Why nothing of the above is known; None where the GPU answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine, looked at once; None is what could not be found out."""

    host: str
    python_version: str
    torch_version: str | None
    """As installed, which says nothing about whether it works."""
    cpu_model: str | None
    cpu_count: int
    """Cores that this process may use."""
    shared_memory_bytes: int | None
    """Size of /dev/shm, through which loader processes and NCCL pass data."""
    driver_version: str | None = None
    driver_absent: str | None = None
    """Why no driver answers; None where one does."""
    driver_broken: bool = False
    """Whether there is a driver that does not work, rather than none."""
    gpus: tuple[ExaminedGpu, ...] = ()


def examine() -> Machine:
    """Looks at this machine; takes less than a second, starts no CUDA context and no torch."""
    surroundings = Machine(
        host=platform.node(),
        python_version=platform.python_version(),
        torch_version=_installed("torch"),
        cpu_model=cpu_model(),
        cpu_count=len(os.sched_getaffinity(0)),
        shared_memory_bytes=_size_of(Path("/dev/shm")),
    )
    try:
        probe = open_nvml()
    except DriverAbsentError as error:
        return replace(
            surroundings,
            driver_absent=str(error),
            driver_broken=isinstance(error, DriverBrokenError),
        )
    try:
        gpus = tuple(_examined(*numbered) for numbered in enumerate(probe.all_devices()))
        return replace(surroundings, driver_version=probe.driver_version, gpus=gpus)
    finally:
        probe.close()


def _examined(number: int, device: NvmlDevice | DeviceAbsentError) -> ExaminedGpu:
    if isinstance(device, DeviceAbsentError):
        return ExaminedGpu(number=number, unreachable=str(device))
    return ExaminedGpu(
        number=number,
        name=device.name,
        uuid=device.uuid,
        reading=device.read(),
        condition=device.inspect(),
    )


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _size_of(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None
