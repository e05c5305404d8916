"""Access to NVIDIA's driver and GPUs; the only module that imports the Python binding of NVML."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpuscale.base.errors import GpuscaleError

NvmlError = pynvml.NVMLError
DEVICE_GONE = (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired)
"""Errors after which a GPU is not queried again: calls to a lost GPU can take seconds."""
NEVER_OFFERED = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLError_InvalidArgument,
    pynvml.NVMLError_ArgumentVersionMismatch,
)
"""Errors after which a call is not repeated on the same device, because it would always fail."""
NOT_FOUND, TIMED_OUT = pynvml.NVMLError_NotFound, pynvml.NVMLError_Timeout
NO_SUCH_LINK = (pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_NotSupported)

_AMD_DRIVER = Path("/dev/kfd")
"""Path that exists if AMD's compute driver is loaded."""


class DriverAbsentError(GpuscaleError):
    """This machine has no usable NVIDIA driver; the message says why."""


class DriverBrokenError(DriverAbsentError):
    """This machine has an NVIDIA driver, but the driver does not work."""


class DeviceAbsentError(GpuscaleError):
    """The driver does not offer the requested device; the message says why."""


@contextmanager
def open_nvml() -> Iterator[str | None]:
    """Keep NVML open while the context lasts; yield the driver's version, or None if unknown."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        why = "no NVIDIA driver: libnvidia-ml.so.1 not found"
        if _AMD_DRIVER.exists():
            why = "NVML is NVIDIA's, and the counters of AMD's GPUs are not read yet"
        raise DriverAbsentError(why) from None
    except pynvml.NVMLError_DriverNotLoaded:
        raise DriverAbsentError("no NVIDIA driver: its kernel module is not loaded") from None
    except NvmlError as error:
        raise DriverBrokenError(f"NVML does not start: {error}") from None
    try:
        yield ask_or_none("nvmlSystemGetDriverVersion")
    finally:
        # A driver that fails to shut down has nothing more to report.
        with suppress(NvmlError):
            pynvml.nvmlShutdown()


def named(name: str) -> Any:
    """Return a function or constant of the NVML binding; NvmlError if this release lacks it."""
    found = getattr(pynvml, name, None)
    if found is None:
        raise NvmlError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return found


def ask(call: str, *arguments: Any) -> Any:
    """Call a function of NVML and return the result; NvmlError if the call fails."""
    return named(call)(*arguments)


def ask_or_none(call: str, *arguments: Any) -> Any:
    """Call a function of NVML and return the result; None if the call fails."""
    with suppress(NvmlError):
        return ask(call, *arguments)
    return None


def firmware(handle: Any) -> str | None:
    """Return the versions of a GPU's firmware, `VBIOS 96.00.74, GSP 575.57`; None if unknown."""
    calls = {"VBIOS": "nvmlDeviceGetVbiosVersion", "GSP": "nvmlDeviceGetGspFirmwareVersion"}
    found = {part: ask_or_none(call, handle) for part, call in calls.items()}
    # The binding leaves some texts as bytes.
    texts = {p: v.decode() if isinstance(v, bytes) else v for p, v in found.items() if v}
    return ", ".join(map(" ".join, texts.items())) or None


def field_value(field: Any) -> float:
    """Return the number in a result of nvmlDeviceGetFieldValues; NvmlError if the query failed."""
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise NvmlError(field.nvmlReturn)
    return union_value(field.value, field.valueType)


def union_value(value: Any, value_type: int) -> float:
    """Return the number stored in an NVML union, given NVML's code for the value's type."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    number: float = getattr(value, members[value_type])
    return number


def find_handle(uuid: str) -> Any:
    """Return the handle of a GPU or MIG device by UUID; the prefix `GPU-` or `MIG-` is optional.

    A run's device is never looked up by number: NVML counts physical devices, while
    CUDA_VISIBLE_DEVICES renumbers them.
    """
    reason = f"NVML knows no device with UUID {uuid}"
    for prefix in ("",) if uuid.startswith(("GPU-", "MIG-")) else ("", "GPU-", "MIG-"):
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(prefix + uuid)
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            continue
        except NvmlError as error:
            reason = f"NVML cannot reach device {uuid}: {error}"
    raise DeviceAbsentError(reason)


def all_handles() -> Iterator[tuple[int, Any]]:
    """Yield NVML's index and the handle of every GPU of this job, without MIG devices.

    For a GPU that cannot be reached, a DeviceAbsentError takes the place of the handle.
    """
    for number in range(pynvml.nvmlDeviceGetCount()):
        try:
            yield number, pynvml.nvmlDeviceGetHandleByIndex(number)
        except pynvml.NVMLError_NoPermission:
            # NVML also counts GPUs that a scheduler has given to other jobs.
            continue
        except NvmlError as error:
            yield number, DeviceAbsentError(str(error))
