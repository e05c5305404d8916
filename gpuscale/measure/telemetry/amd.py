"""AMD's driver and GPUs; the only module that imports the Python binding of AMD SMI."""

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout, suppress
from functools import cache, reduce
from importlib import import_module
from io import StringIO
from itertools import starmap
from operator import attrgetter, getitem
from pathlib import Path
from typing import Any, ClassVar

from gpuscale.base.errors import (
    DeviceAbsentError,
    DriverAbsentError,
    DriverBrokenError,
    NotSupportedError,
    QueryError,
)
from gpuscale.measure.telemetry.device import Device
from gpuscale.records.gpu_and_port_counters import JOULES, MOMENTS, WATTS, Query

NAME = "AMD SMI"
_NOT_SUPPORTED = ("INVAL", "NOT_SUPPORTED", "NOT_YET_IMPLEMENTED", "NO_PERM", "NO_DATA")
"""Names, without the prefix `AMDSMI_STATUS_`, of AMD SMI's errors with a permanent cause."""
_NOT_COUNTED = 2**64 - 1
_UNKNOWN = (None, "N/A", 2**32 - 1, _NOT_COUNTED)
_HALVES = ("0x7408", "0x740c")
"""PCI device IDs of MI250 and MI250X, whose modules are two devices each."""
_PARTITION = "AMD SMI counts for the whole GPU, which other partitions ({}) share"
_MODULE = "AMD SMI measures it for both devices of a module together"
_REASONS = {
    "prochot": (0xC000_0000_0000, "prochot_residency_acc"),
    "ppt": (0xFFFF, "ppt_residency_acc"),
    "tdc": (0xFFFF_0000, None),
    "socket_thermal": (0x0C3B_0000_0000, "socket_thm_residency_acc"),
    "vr_thermal": (0x33C0_0000_0000, "vr_thm_residency_acc"),
    "hbm_thermal": (0x0004_0000_0000, "hbm_thm_residency_acc"),
}
"""How GPUs report each reason for reduced clocks: bits, in the order of the kernel's
`SMU_THROTTLER_*_BIT`, before MI300, and a time counter (None if there is none) from MI300 on."""


@cache
def _binding() -> Any:
    """Import AMD SMI's binding, preferably that of ROCm; raise DriverAbsentError on failure."""
    root = Path(os.environ.get("ROCM_HOME") or os.environ.get("ROCM_PATH") or "/opt/rocm")
    sys.path.insert(0, str(root / "share" / "amd_smi"))
    try:
        # If the library is missing, the binding prints a line and then raises a KeyError.
        with redirect_stdout(StringIO()):
            return import_module("amdsmi")
    except ImportError:
        why = "AMD SMI's Python binding is not installed; pip install 'gpuscale[amd]'"
    except KeyError:
        why = "no AMD driver: libamd_smi.so not found in $ROCM_PATH/lib or by the loader"
    except AttributeError as error:
        why = f"AMD SMI's binding and library are of different releases: {error}"
    finally:
        sys.path.pop(0)
    raise DriverAbsentError(why)


def start() -> None:
    """Open AMD SMI; raise DriverAbsentError if that is impossible."""
    binding = _binding()
    try:
        binding.amdsmi_init()
    except binding.AmdSmiException as error:
        broken = f"AMD SMI does not start: {_reason(error)}"
        is_absent = _status(error) == "DRIVER_NOT_LOADED"
        raise (DriverAbsentError if is_absent else DriverBrokenError)(broken) from None


def stop() -> None:
    """Close AMD SMI."""
    with suppress(QueryError):
        _ask("amdsmi_shut_down")


def driver_version() -> str | None:
    """Return the driver's version; None if unknown."""
    query = Query("amdsmi_get_gpu_driver_info", member="driver_version")
    with suppress(QueryError):
        return next((_known(query, handle) for handle, _ in _gpus()), None)
    return None


def _ask(call: str, *arguments: Any) -> Any:
    binding = _binding()
    try:
        return _named(call)(*arguments)
    except binding.AmdSmiException as error:
        kind = NotSupportedError if _status(error) in _NOT_SUPPORTED else QueryError
        raise kind(_reason(error), getattr(error, "err_code", None)) from None


def _answer(query: Query, handle: Any) -> Any:
    """Return the answer to a query, in AMD SMI's unit."""
    found = _ask(query.call, handle, *map(_named, query.arguments))
    with suppress(KeyError, TypeError):
        found = query.take(reduce(getitem, query.member.split(".") if query.member else (), found))
        if found not in _UNKNOWN:
            return found
    raise NotSupportedError("not reported")


def _known(query: Query, handle: Any) -> Any:
    with suppress(QueryError):
        return _answer(query, handle)
    return None


def find_device(uuid: str, address: str | None) -> Device:
    """Find a GPU by its PCI address, because UUIDs and indices differ between AMD SMI and HIP.

    Raise DeviceAbsentError if `address` is None or the GPU cannot be sampled.
    """
    if address is None:
        raise DeviceAbsentError(
            f"torch does not report the PCI address of {uuid}, by which AMD SMI would find it; "
            "torch 2.8 does"
        )
    for handle, key in _gpus():
        if key == _without_function(address):
            device = AmdDevice(handle, key)
            if device.partition is not None and not device.partition.startswith("SPX"):
                raise DeviceAbsentError(_PARTITION.format(device.partition))
            return device
    raise DeviceAbsentError(f"AMD SMI knows no device at {address}")


def all_devices() -> Iterator[tuple[int, Device | DeviceAbsentError]]:
    """Yield each GPU or partition of a GPU: AMD SMI's index, and the `Device` (never an error)."""
    return enumerate(starmap(AmdDevice, _gpus()))


class AmdDevice(Device):
    """An AMD GPU, or one of its partitions."""

    is_amd = True
    limits: ClassVar[Mapping[str, Query]] = {
        "power_limit_w": Query("amdsmi_get_power_cap_info", member="power_cap", divisor=10**6),
        "max_clock_mhz": Query("amdsmi_get_clock_info", ("AmdSmiClkType.GFX",), member="max_clk"),
    }

    def __init__(self, handle: Any, key: str) -> None:
        self._handle, self.key, self.pci_address = handle, key, f"{key}.0"
        self.name = _known(Query("amdsmi_get_gpu_asic_info", member="market_name"), handle)
        self.uuid = _known(Query("amdsmi_get_gpu_device_uuid"), handle)
        calls = ("amdsmi_get_gpu_compute_partition", "amdsmi_get_gpu_memory_partition")
        modes = filter(None, (_known(Query(call), handle) for call in calls))
        # Compute and memory partition modes, such as CPX/NPS4.
        self.partition = "/".join(modes) or None
        super().__init__(
            {
                "clock_event_reasons": [self._throttle_reasons],
                "xgmi_active": [self._xgmi_active],
                "xgmi_errors": [self._xgmi_errors],
            }
        )
        if _known(Query("amdsmi_get_gpu_asic_info", member="device_id"), handle) in _HALVES:
            power = (name for name, field in MOMENTS.items() if field.quantity in (WATTS, JOULES))
            self.never_offered = dict.fromkeys(power, _MODULE)
        self._counted: list[int] = []
        self._at = self._errors = 0
        self._reasons: tuple[str, ...] = ()
        # Set the baseline: later calls return the reasons since the previous call.
        with suppress(QueryError):
            self._throttle_reasons()

    def compute_processes(self) -> int:
        return len(_ask("amdsmi_get_gpu_process_list", self._handle))

    def answer(self, query: Query) -> Any:
        return _answer(query, self._handle)

    def _throttle_reasons(self) -> tuple[str, ...]:
        """Return why clocks are reduced or, from MI300 on, were reduced since the previous call."""
        # The binding's own function omits some of the driver's status bits.
        wrapper = _named("amdsmi_interface.amdsmi_wrapper")
        table = wrapper.amdsmi_gpu_metrics_t()
        if code := wrapper.amdsmi_get_gpu_metrics_info(self._handle, ctypes.byref(table)):
            raise NotSupportedError(_reason(_binding().AmdSmiLibraryException(code)), code)
        counted = {reason: name for reason, (_, name) in _REASONS.items() if name}
        now = [int(getattr(table, name, _NOT_COUNTED)) for name in counted.values()]
        if _NOT_COUNTED in now:
            bits = int(table.indep_throttle_status)
            if bits == _NOT_COUNTED:
                raise NotSupportedError("not reported")
            return tuple(reason for reason, (mask, _) in _REASONS.items() if bits & mask)
        if (at := int(table.accumulation_counter)) != self._at:
            pairs = zip(counted, now, self._counted or now, strict=True)
            self._reasons = tuple(reason for reason, count, before in pairs if count > before)
            self._at, self._counted = at, now
        return self._reasons

    def _xgmi_active(self) -> tuple[bool, ...]:
        """Return, for each enabled XGMI link to another GPU, whether the link is up."""
        states = _ask("amdsmi_get_gpu_xgmi_link_status", self._handle)["status"]
        if not (used := [state for state in states if state in ("U", "D")]):
            raise NotSupportedError("no links between GPUs")
        return tuple(state == "U" for state in used)

    def _xgmi_errors(self) -> int:
        """Return how often this method has found new XGMI errors; AMD SMI gives no exact count."""
        # The status is 0 without errors, 1 for one error and 2 for several.
        self._errors += _ask("amdsmi_gpu_xgmi_error_status", self._handle) != 0
        return self._errors


def _named(name: str) -> Any:
    try:
        return attrgetter(name)(_binding())
    except AttributeError:
        raise NotSupportedError(f"this AMD SMI has no {name}") from None


def _status(error: Any) -> str:
    return str(getattr(error, "err_info", "")).partition(" - ")[0].removeprefix("AMDSMI_STATUS_")


def _reason(error: Any) -> str:
    """Return the human-readable text of the binding's error, without the error's code and name."""
    return str(getattr(error, "err_info", error)).rpartition(" - ")[2].strip()


def _without_function(address: str) -> str:
    """Remove a PCI address's function number, which differs between the partitions of a GPU."""
    return address.lower().partition(".")[0]


def _gpus() -> list[tuple[Any, str]]:
    """Return the handle and `Device.key` of each GPU or partition of a GPU."""
    handles = _ask("amdsmi_get_processor_handles")
    return [(one, _without_function(_ask("amdsmi_get_gpu_device_bdf", one))) for one in handles]
