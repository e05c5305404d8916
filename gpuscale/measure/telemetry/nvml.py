"""NVIDIA's driver and GPUs; the only module that imports the Python binding of NVML."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

import pynvml  # type: ignore[import-untyped]

from gpuscale.base.errors import (
    DeviceAbsentError,
    DeviceGoneError,
    DriverAbsentError,
    DriverBrokenError,
    NotSupportedError,
    QueryError,
)
from gpuscale.measure.telemetry.device import Device
from gpuscale.records.gpu_and_port_counters import Query

NAME = "NVML"
_NO_SUCH_LINK = (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED)

_KINDS = {
    pynvml.NVML_ERROR_GPU_IS_LOST: DeviceGoneError,
    pynvml.NVML_ERROR_RESET_REQUIRED: DeviceGoneError,
    pynvml.NVML_ERROR_NOT_SUPPORTED: NotSupportedError,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: NotSupportedError,
    pynvml.NVML_ERROR_NO_PERMISSION: NotSupportedError,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: NotSupportedError,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: NotSupportedError,
}
"""Exception class for each NVML code with a permanent cause; other codes raise QueryError."""
_FIELD, _COUNTER = "NVML_FI_DEV_NVLINK", "NVML_NVLINK_ERROR_DL"
_NVLINK_ERRORS = (
    # Field IDs on Hopper, other field IDs on Blackwell, and error counters on older GPUs.
    [f"{_FIELD}_ERROR_DL_{kind}" for kind in ("REPLAY", "RECOVERY", "CRC")],
    # Effective errors are those that error correction could not correct; corrected ones are normal.
    [f"{_FIELD}_COUNT_{kind}" for kind in ("LINK_RECOVERY_EVENTS", "EFFECTIVE_ERRORS")],
    [f"{_COUNTER}_{kind}" for kind in ("REPLAY", "RECOVERY", "CRC_FLIT", "CRC_DATA")],
)


def start() -> None:
    """Open NVML; raise DriverAbsentError if that is impossible."""
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
    version: str | None = _ask_or_none("nvmlSystemGetDriverVersion")
    return version


def _failure(code: int) -> QueryError:
    return _KINDS.get(code, QueryError)(str(pynvml.NVMLError(code)), code)


def _named(name: str) -> Any:
    """Return a function or constant of the binding; raise NotSupportedError if missing."""
    if (found := getattr(pynvml, name, None)) is None:
        raise _failure(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return found


def _ask(call: str, *arguments: Any) -> Any:
    try:
        return _named(call)(*arguments)
    except pynvml.NVMLError as error:
        raise _failure(error.value) from None


def _ask_or_none(call: str, *arguments: Any) -> Any:
    with suppress(QueryError):
        return _ask(call, *arguments)
    return None


def find_device(uuid: str, address: str | None) -> Device:
    """Return the GPU with this UUID (the prefix `GPU-` is optional), or raise DeviceAbsentError.

    A run's device is never looked up by number: NVML counts physical devices, while
    CUDA_VISIBLE_DEVICES renumbers them.
    """
    reason = f"NVML knows no device with UUID {uuid}"
    for prefix in ("",) if uuid.startswith(("GPU-", "MIG-")) else ("", "GPU-", "MIG-"):
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(prefix + uuid)
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            continue
        except pynvml.NVMLError as error:
            reason = f"NVML cannot reach device {uuid}: {error}"
            continue
        is_instance = _ask_or_none("nvmlDeviceIsMigDeviceHandle", handle)
        if is_instance or (_ask_or_none("nvmlDeviceGetMigMode", handle) or [0])[0]:
            # Old CUDA versions report the UUID of the whole GPU for a MIG instance.
            raise DeviceAbsentError("in MIG mode, in which NVML counts for the whole GPU")
        return NvmlDevice(handle)
    raise DeviceAbsentError(reason)


def all_devices() -> Iterator[tuple[int, Device | DeviceAbsentError]]:
    """Yield each GPU this job may use: NVML's index, and the device, or an error if NVML fails."""
    for number in range(_ask("nvmlDeviceGetCount")):
        try:
            yield number, NvmlDevice(pynvml.nvmlDeviceGetHandleByIndex(number))
        except pynvml.NVMLError_NoPermission:
            # NVML also counts GPUs that a scheduler has given to other jobs.
            continue
        except pynvml.NVMLError as error:
            yield number, DeviceAbsentError(str(error))


class NvmlDevice(Device):
    """An NVIDIA GPU, queried through NVML."""

    limits: ClassVar[Mapping[str, Query]] = {
        "power_limit_w": Query("nvmlDeviceGetEnforcedPowerLimit", divisor=1000),
        "application_clock_mhz": Query("nvmlDeviceGetApplicationsClock", ("NVML_CLOCK_SM",)),
        "max_clock_mhz": Query("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_SM",)),
    }

    def __init__(self, handle: Any) -> None:
        self._handle, self._links = handle, 0
        self.name = _ask_or_none("nvmlDeviceGetName", handle)
        self.uuid = _ask_or_none("nvmlDeviceGetUUID", handle)
        self.key = str(self.uuid).removeprefix("GPU-")
        self.firmware = _firmware(handle)
        place = _ask_or_none("nvmlDeviceGetPciInfo", handle)
        self.pci_address = None if place is None else str(place.busId)
        errors = [partial(self._nvlink_errors, names) for names in _NVLINK_ERRORS]
        super().__init__({"nvlink_active": [self._nvlink_active], "nvlink_errors": errors})

    def compute_processes(self) -> int:
        call = "nvmlDeviceGetComputeRunningProcesses"
        # Before driver R510, the call without a version raises an error other than NVMLError.
        with suppress(NotSupportedError):
            return len(_ask(f"{call}_v3", self._handle))
        return len(_ask(f"{call}_v2", self._handle))

    def answer(self, query: Query) -> Any:
        if query.call.startswith("NVML_FI_"):
            return self._field_value(_named(query.call))
        answered = _ask(query.call, self._handle, *map(_named, query.arguments))
        return answered if query.member is None else attrgetter(query.member)(answered)

    def _nvlink_active(self) -> tuple[bool, ...]:
        """Return, for each NVLink in the order of link numbers, whether the link is active."""
        states: list[bool] = []
        for link in range(_named("NVML_NVLINK_MAX_LINKS")):
            try:
                states.append(bool(_ask("nvmlDeviceGetNvLinkState", self._handle, link)))
            except QueryError as error:
                # This link number is one past the last link; without link 0 there is no NVLink.
                if not states or error.code not in _NO_SUCH_LINK:
                    raise
                break
        self._links = len(states)
        return tuple(states)

    def _nvlink_errors(self, names: Sequence[str]) -> int:
        """Sum counters `names` over all NVLinks; raise NotSupportedError if one is on no link."""
        if not self._links:
            self._nvlink_active()
        errors = 0
        for name in names:
            counts: list[int] = []
            for link in range(self._links):
                with suppress(NotSupportedError):
                    counts.append(self._errors_of(link, name))
            if not counts:
                raise _failure(pynvml.NVML_ERROR_NOT_SUPPORTED)
            errors += sum(counts)
        return errors

    def _errors_of(self, link: int, name: str) -> int:
        kind = _named(name)
        if name.startswith("NVML_FI_"):
            return int(self._field_value((kind, link)))
        return int(_ask("nvmlDeviceGetNvLinkErrorCounter", self._handle, link, kind))

    def _field_value(self, field: int | tuple[int, int]) -> float:
        """Return an NVML field's value, given its ID or (ID, link); raise QueryError on failure."""
        (answer,) = _ask("nvmlDeviceGetFieldValues", self._handle, [field])
        if answer.nvmlReturn != pynvml.NVML_SUCCESS:
            raise _failure(answer.nvmlReturn)
        members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
        number: float = getattr(answer.value, members[answer.valueType])
        return number


def _firmware(handle: Any) -> str | None:
    """Return a GPU's firmware versions, such as `VBIOS 96.00.74, GSP 575.57`; None if unknown."""
    calls = {"VBIOS": "nvmlDeviceGetVbiosVersion", "GSP": "nvmlDeviceGetGspFirmwareVersion"}
    found = {part: _ask_or_none(call, handle) for part, call in calls.items()}
    # The binding returns some strings as bytes.
    texts = {p: v.decode() if isinstance(v, bytes) else v for p, v in found.items() if v}
    return ", ".join(map(" ".join, texts.items())) or None
