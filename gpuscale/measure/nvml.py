"""Access to NVIDIA's driver and GPUs; the only module that imports the Python binding of NVML."""

from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpuscale.base.counters import Query
from gpuscale.base.errors import (
    DeviceAbsentError,
    DeviceGoneError,
    DriverAbsentError,
    DriverBrokenError,
    NeverOfferedError,
    QueryError,
)

NAME = "NVML"
NOT_FOUND, TIMED_OUT = pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_TIMEOUT
NO_SUCH_LINK = (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED)

_KINDS = {
    pynvml.NVML_ERROR_GPU_IS_LOST: DeviceGoneError,
    pynvml.NVML_ERROR_RESET_REQUIRED: DeviceGoneError,
    pynvml.NVML_ERROR_NOT_SUPPORTED: NeverOfferedError,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: NeverOfferedError,
    pynvml.NVML_ERROR_NO_PERMISSION: NeverOfferedError,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: NeverOfferedError,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: NeverOfferedError,
}
"""Type of error for each NVML code whose cause is permanent; other codes are a plain QueryError."""
_LIMITS = {
    "power_limit_w": Query("nvmlDeviceGetEnforcedPowerLimit", divisor=1000),
    "application_clock_mhz": Query("nvmlDeviceGetApplicationsClock", ("NVML_CLOCK_SM",)),
    "max_clock_mhz": Query("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_SM",)),
}


def start() -> None:
    """Open NVML; DriverAbsentError if that is impossible."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        raise DriverAbsentError("no NVIDIA driver: libnvidia-ml.so.1 not found") from None
    except pynvml.NVMLError_DriverNotLoaded:
        raise DriverAbsentError("no NVIDIA driver: its kernel module is not loaded") from None
    except pynvml.NVMLError as error:
        raise DriverBrokenError(f"NVML does not start: {error}") from None


def stop() -> None:
    """Close NVML."""
    # A driver that fails to shut down has nothing more to report.
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


def driver_version() -> str | None:
    """Return the driver's version; None if unknown."""
    version: str | None = ask_or_none("nvmlSystemGetDriverVersion")
    return version


def failure(code: int) -> QueryError:
    """Return the error for one of NVML's codes."""
    return _KINDS.get(code, QueryError)(str(pynvml.NVMLError(code)), code)


def named(name: str) -> Any:
    """Return a function or constant of the binding; NeverOfferedError if this release lacks it."""
    found = getattr(pynvml, name, None)
    if found is None:
        raise failure(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return found


def ask(call: str, *arguments: Any) -> Any:
    """Call a function of NVML and return the result; QueryError if the call fails."""
    try:
        return named(call)(*arguments)
    except pynvml.NVMLError as error:
        raise failure(error.value) from None


def ask_or_none(call: str, *arguments: Any) -> Any:
    """Call a function of NVML and return the result; None if the call fails."""
    with suppress(QueryError):
        return ask(call, *arguments)
    return None


def firmware(handle: Any) -> str | None:
    """Return the versions of a GPU's firmware, `VBIOS 96.00.74, GSP 575.57`; None if unknown."""
    calls = {"VBIOS": "nvmlDeviceGetVbiosVersion", "GSP": "nvmlDeviceGetGspFirmwareVersion"}
    found = {part: ask_or_none(call, handle) for part, call in calls.items()}
    # The binding leaves some texts as bytes.
    texts = {p: v.decode() if isinstance(v, bytes) else v for p, v in found.items() if v}
    return ", ".join(map(" ".join, texts.items())) or None


def answer(query: Query, handle: Any) -> Any:
    """Return the number that answers a query, in NVML's unit."""
    if query.call.startswith("NVML_FI_"):
        (answered,) = ask("nvmlDeviceGetFieldValues", handle, [named(query.call)])
        return field_value(answered)
    answered = ask(query.call, handle, *map(named, query.arguments))
    return answered if query.member is None else attrgetter(query.member)(answered)


def field_value(field: Any) -> float:
    """Return the number in a result of nvmlDeviceGetFieldValues; QueryError if the query failed."""
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise failure(field.nvmlReturn)
    return union_value(field.value, field.valueType)


def union_value(value: Any, value_type: int) -> float:
    """Return the number stored in an NVML union, given NVML's code for the value's type."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    number: float = getattr(value, members[value_type])
    return number


def find_handle(uuid: str, pci_address: str | None = None) -> Any:
    """Return the handle of a GPU or MIG device by UUID; the prefix `GPU-` or `MIG-` is optional.

    A run's device is never looked up by number: NVML counts physical devices, while
    CUDA_VISIBLE_DEVICES renumbers them. A MIG device has no PCI address of its own.
    """
    reason = f"NVML knows no device with UUID {uuid}"
    for prefix in ("",) if uuid.startswith(("GPU-", "MIG-")) else ("", "GPU-", "MIG-"):
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(prefix + uuid)
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            continue
        except pynvml.NVMLError as error:
            reason = f"NVML cannot reach device {uuid}: {error}"
    raise DeviceAbsentError(reason)


def all_handles() -> Iterator[tuple[int, Any]]:
    """Yield NVML's index and the handle of every GPU of this job, without MIG devices."""
    for number in range(ask("nvmlDeviceGetCount")):
        try:
            yield number, pynvml.nvmlDeviceGetHandleByIndex(number)
        except pynvml.NVMLError_NoPermission:
            # NVML also counts GPUs that a scheduler has given to other jobs.
            continue
        except pynvml.NVMLError as error:
            yield number, DeviceAbsentError(str(error))


def key(handle: Any) -> str:
    """Return the UUID of a GPU in CUDA's form."""
    return str(ask("nvmlDeviceGetUUID", handle)).removeprefix("GPU-")


def description(handle: Any) -> dict[str, Any]:
    """Return the PCI address, firmware and power and clock limits that NVML reports for a GPU."""
    found: dict[str, Any] = {"pci_address": str(ask("nvmlDeviceGetPciInfo", handle).busId)}
    found["firmware"] = firmware(handle)
    for name, query in _LIMITS.items():
        with suppress(QueryError):
            found[name] = answer(query, handle) / query.divisor
    return found
