"""NVIDIA's driver as a probe. Only the modules `nvml*` here import the NVML binding."""

from collections.abc import Sequence
from contextlib import suppress

import pynvml  # type: ignore[import-untyped]

from gpuscale.telemetry.nvml_binding import or_none
from gpuscale.telemetry.nvml_device import NvmlDevice
from gpuscale.telemetry.probe import DeviceAbsentError, DriverAbsentError, DriverBrokenError


def open_nvml() -> "NvmlProbe":
    """Starts NVML in this process.

    Raises:
        DriverAbsentError: there is no driver, or (`DriverBrokenError`) it cannot be talked to.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        raise DriverAbsentError("no NVIDIA driver: libnvidia-ml.so.1 not found") from None
    except pynvml.NVMLError_DriverNotLoaded:
        raise DriverAbsentError("no NVIDIA driver: its kernel module is not loaded") from None
    except pynvml.NVMLError as error:
        raise DriverBrokenError(f"NVML does not start: {error}") from None
    return NvmlProbe()


class NvmlProbe:
    """NVML, started; implements `Probe`."""

    def __init__(self) -> None:
        self.driver_version: str | None = or_none(pynvml.nvmlSystemGetDriverVersion)

    def find(self, uuid: str) -> "NvmlDevice":
        """The GPU or MIG device with that UUID: `GPU-…`, `MIG-…`, or bare as CUDA gives it.

        NVML counts physical devices while CUDA_VISIBLE_DEVICES renumbers ours, so a device
        of a run is never looked up by its number.

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

    def all_devices(self) -> Sequence["NvmlDevice | DeviceAbsentError"]:
        """Every GPU by NVML's number, or why it cannot be reached; MIG devices are not listed."""
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            return [DeviceAbsentError(f"NVML cannot count the GPUs: {error}")]
        return [self._numbered(number) for number in range(count)]

    def _numbered(self, number: int) -> "NvmlDevice | DeviceAbsentError":
        try:
            return NvmlDevice(pynvml.nvmlDeviceGetHandleByIndex(number))
        except pynvml.NVMLError as error:
            return DeviceAbsentError(str(error))

    def close(self) -> None:
        """Shuts NVML down; a driver that fails in this has nothing more to tell."""
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
