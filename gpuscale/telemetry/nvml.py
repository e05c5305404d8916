"""NVIDIA's driver as a probe: the only module that imports the NVML binding."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import pynvml  # type: ignore[import-untyped]

from gpuscale.telemetry.probe import DeviceAbsentError, DriverAbsentError, Reading

_Number = TypeVar("_Number", int, float)
_Handle = Any  # an opaque ctypes pointer, in a binding without types

_NEVER_OFFERED = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLError_InvalidArgument,
)
"""Answers that will be the same at the next tick, so the question is not put again."""

_DEVICE_GONE = (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired)
"""Answers after which nothing is asked of the device: calls to a lost GPU can take seconds."""


def open_nvml() -> "NvmlProbe":
    """Starts NVML in this process.

    Raises:
        DriverAbsentError: there is no driver, or it cannot be talked to.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        raise DriverAbsentError("no NVIDIA driver: libnvidia-ml.so.1 not found") from None
    except pynvml.NVMLError_DriverNotLoaded:
        raise DriverAbsentError("no NVIDIA driver: its kernel module is not loaded") from None
    except pynvml.NVMLError as error:
        raise DriverAbsentError(f"NVML does not start: {error}") from None
    return NvmlProbe()


class NvmlProbe:
    """NVML, started; implements `Probe`."""

    def __init__(self) -> None:
        self.driver_version: str | None = _or_none(pynvml.nvmlSystemGetDriverVersion)

    def find(self, uuid: str) -> "NvmlDevice":
        """The GPU or MIG device with that UUID: `GPU-…`, `MIG-…`, or bare as CUDA gives it.

        NVML counts physical devices while CUDA_VISIBLE_DEVICES renumbers ours, so a device
        is never looked up by its number.

        Raises:
            DeviceAbsentError: NVML does not know it or cannot reach it.
        """
        reason = f"NVML knows no device with UUID {uuid}"
        prefixes = ("",) if uuid.startswith(("GPU-", "MIG-")) else ("", "GPU-", "MIG-")
        for prefix in prefixes:
            try:
                return NvmlDevice(pynvml.nvmlDeviceGetHandleByUUID(prefix + uuid))
            except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
                continue
            except pynvml.NVMLError as error:
                reason = f"NVML cannot reach device {uuid}: {error}"
        raise DeviceAbsentError(reason)

    def close(self) -> None:
        """Shuts NVML down; a driver that fails in this has nothing more to tell."""
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


class NvmlDevice:
    """One GPU or MIG device; implements `DeviceProbe`."""

    def __init__(self, handle: _Handle) -> None:
        self.name: str | None = _or_none(lambda: pynvml.nvmlDeviceGetName(handle))
        self._handle = handle
        self._clock_handle = handle
        self._has_memory_v2 = True
        self._never_offered: dict[str, str] = {}
        self._gone: str | None = None
        if _or_none(lambda: pynvml.nvmlDeviceIsMigDeviceHandle(handle)):
            self._use_mig_device()
        elif (_or_none(lambda: pynvml.nvmlDeviceGetMigMode(handle)) or [0])[0]:
            self._use_gpu_in_mig_mode()

    def _use_mig_device(self) -> None:
        # A MIG device has memory of its own. Its SMs run at the clock of the GPU, so the GPU
        # is asked for that. Power is only measured for the whole GPU, and its other instances
        # may belong to other jobs: their watts are not ours to report.
        self._never_offered["power_w"] = (
            "measured only for the whole GPU, which other MIG devices share"
        )
        parent = _or_none(lambda: pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._handle))
        if parent is not None:
            self._clock_handle = parent

    def _use_gpu_in_mig_mode(self) -> None:
        # A process can only train on one MIG device of such a GPU, but an old CUDA gives the
        # UUID of the whole: its sums over all MIG devices say nothing about that one.
        for field in ("memory_used_bytes", "power_w"):
            self._never_offered[field] = (
                "the UUID is that of a whole GPU in MIG mode; name the MIG device by its own UUID"
            )

    def read(self) -> Reading:
        """The present state.

        `utilization` covers the driver's own sampling period (1/6 to 1 s) and `power_w` is
        the mean over the last second on most GPUs since Ampere.
        """
        absent: dict[str, str] = {}
        return Reading(
            utilization=self._ask("utilization", self._utilization, absent),
            memory_used_bytes=self._ask("memory_used_bytes", self._memory_used_bytes, absent),
            power_w=self._ask("power_w", self._power_w, absent),
            sm_clock_mhz=self._ask("sm_clock_mhz", self._sm_clock_mhz, absent),
            absent=absent,
        )

    def _ask(
        self, field: str, query: Callable[[], _Number], absent: dict[str, str]
    ) -> _Number | None:
        reason = self._gone or self._never_offered.get(field)
        if reason is None:
            try:
                return query()
            except pynvml.NVMLError as error:
                reason = str(error)
                if isinstance(error, _DEVICE_GONE):
                    self._gone = reason
                elif isinstance(error, _NEVER_OFFERED):
                    self._never_offered[field] = reason
        absent[field] = reason
        return None

    def _utilization(self) -> float:
        return float(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100

    def _memory_used_bytes(self) -> int:
        # Version 2 leaves out what the driver itself reserves (up to about 1 GiB), as
        # nvidia-smi does; drivers before R510 only have the first version, which counts it.
        if self._has_memory_v2:
            try:
                memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2)
                return int(memory.used)
            except (
                pynvml.NVMLError_FunctionNotFound,
                pynvml.NVMLError_ArgumentVersionMismatch,
            ):
                self._has_memory_v2 = False
        return int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def _power_w(self) -> float:
        return float(pynvml.nvmlDeviceGetPowerUsage(self._handle)) / 1000

    def _sm_clock_mhz(self) -> float:
        return float(pynvml.nvmlDeviceGetClockInfo(self._clock_handle, pynvml.NVML_CLOCK_SM))


def _or_none(query: Callable[[], Any]) -> Any:
    try:
        return query()
    except pynvml.NVMLError:
        return None
