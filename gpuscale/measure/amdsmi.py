"""Access to AMD's driver and GPUs; the only module that imports the Python binding of AMD SMI."""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import cache, reduce
from importlib import import_module
from io import StringIO
from itertools import pairwise
from operator import attrgetter, getitem
from pathlib import Path
from typing import Any

from gpuscale.base.counters import MOMENTS, Query
from gpuscale.base.errors import (
    DeviceAbsentError,
    DriverAbsentError,
    DriverBrokenError,
    NeverOfferedError,
    QueryError,
)

NAME = "AMD SMI"
_NEVER_OFFERED = ("INVAL", "NOT_SUPPORTED", "NOT_YET_IMPLEMENTED", "NO_PERM", "NO_DATA")
"""Errors that repeating a query would not avoid; their names without `AMDSMI_STATUS_`."""
_UNKNOWN = (None, "N/A", 2**32 - 1, 2**64 - 1)
"""Values that AMD SMI returns for an unknown quantity."""
_LIMITS = {
    "power_limit_w": Query("amdsmi_get_power_cap_info", member="power_cap", divisor=10**6),
    "max_clock_mhz": Query("amdsmi_get_clock_info", ("AmdSmiClkType.GFX",), member="max_clk"),
}
(_ENERGY,) = (query for query in MOMENTS["energy_j"].queries if query.is_of_amd)
_TWO_DEVICES = ("0x7408", "0x740c")
"""PCI device IDs of MI250 and MI250X. Each module is two devices: the first one measures the power
of both, and the second one reports 0."""


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """The handle of a GPU, or of one of its partitions, and how it shares hardware."""

    handle: Any
    address: str = ""
    """PCI address without the function number, which differs between partitions."""
    partition: str | None = None
    """Compute and memory partition modes, such as `CPX/NPS4`; None if there are none."""
    meter: Any = None
    """Handle to query for the GPU's power: in a module of two devices, the handle of the first;
    None if only one of them is visible."""
    other: str | None = None
    """Address of the module's other device; None if unknown, or if the GPU has no module."""


@cache
def _binding() -> Any:
    """Import the binding, preferably the one that ROCm ships with the library."""
    root = Path(os.environ.get("ROCM_HOME") or os.environ.get("ROCM_PATH") or "/opt/rocm")
    sys.path.insert(0, str(root / "share" / "amd_smi"))
    try:
        # Without the library it prints a line, and then fails on what it did not load.
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
    """Open AMD SMI; DriverAbsentError if that is impossible."""
    binding = _binding()
    try:
        binding.amdsmi_init()
    except binding.AmdSmiException as error:
        broken = f"AMD SMI does not start: {_reason(error)}"
        is_absent = _status(error) == "DRIVER_NOT_LOADED"
        raise (DriverAbsentError if is_absent else DriverBrokenError)(broken) from None


def stop() -> None:
    """Close AMD SMI."""
    _gpus.cache_clear()
    with suppress(QueryError):
        ask("amdsmi_shut_down")


def driver_version() -> str | None:
    """Return the driver's version; None if unknown."""
    query = Query("amdsmi_get_gpu_driver_info", member="driver_version")
    with suppress(QueryError):
        return next((known(query, gpu) for gpu in _gpus()), None)
    return None


def ask(call: str, *arguments: Any) -> Any:
    """Call a function of AMD SMI and return the result; QueryError if the call fails."""
    binding = _binding()
    try:
        return _named(call)(*arguments)
    except binding.AmdSmiException as error:
        kind = NeverOfferedError if _status(error) in _NEVER_OFFERED else QueryError
        raise kind(_reason(error), getattr(error, "err_code", None)) from None


def answer(query: Query, gpu: AmdGpu) -> Any:
    """Return the answer to a query, in AMD SMI's unit."""
    found = ask(query.call, gpu.handle, *map(_named, query.arguments))
    with suppress(KeyError, TypeError):
        found = query.take(reduce(getitem, query.member.split(".") if query.member else (), found))
        if found not in _UNKNOWN:
            return found
    raise NeverOfferedError("not reported")


def known(query: Query, gpu: AmdGpu) -> Any:
    """Return the answer to a query; None if there is none."""
    with suppress(QueryError):
        return answer(query, gpu)
    return None


def metrics(gpu: AmdGpu) -> Any:
    """Return the driver's own table of a GPU's metrics, which has bits that the binding omits."""
    wrapper = _named("amdsmi_interface.amdsmi_wrapper")
    table = wrapper.amdsmi_gpu_metrics_t()
    code = wrapper.amdsmi_get_gpu_metrics_info(gpu.handle, ctypes.byref(table))
    if code:
        raise NeverOfferedError(_reason(_binding().AmdSmiLibraryException(code)), code)
    return table


def find_handle(uuid: str, pci_address: str | None) -> AmdGpu:
    """Return a GPU by its PCI address: its UUIDs and numbers differ between AMD SMI and HIP."""
    if pci_address is None:
        raise DeviceAbsentError(
            f"torch does not report the PCI address of {uuid}, by which AMD SMI would find it; "
            "torch 2.8 does"
        )
    for gpu in _gpus():
        if gpu.address == _without_function(pci_address):
            return gpu
    raise DeviceAbsentError(f"AMD SMI knows no device at {pci_address}")


def all_handles() -> Iterator[tuple[int, AmdGpu]]:
    """Yield AMD SMI's number and the handle of every GPU."""
    return enumerate(_gpus())


def key(gpu: AmdGpu) -> str:
    """Return the PCI address of a GPU."""
    return gpu.address


def description(gpu: AmdGpu) -> dict[str, Any]:
    """Return the partition modes and the power and clock limits that AMD SMI reports for a GPU."""
    found: dict[str, Any] = {"partition": gpu.partition} if gpu.partition else {}
    for name, query in _LIMITS.items():
        with suppress(QueryError):
            found[name] = answer(query, gpu) / query.divisor
    return found


def _named(name: str) -> Any:
    try:
        return attrgetter(name)(_binding())
    except AttributeError:
        raise NeverOfferedError(f"this AMD SMI has no {name}") from None


def _status(error: Any) -> str:
    return str(getattr(error, "err_info", "")).partition(" - ")[0].removeprefix("AMDSMI_STATUS_")


def _reason(error: Any) -> str:
    """Return the text for people in an error of the binding, which has a code and a name too."""
    return str(getattr(error, "err_info", error)).rpartition(" - ")[2].strip()


def _without_function(address: str) -> str:
    return address.lower().partition(".")[0]


@cache
def _gpus() -> Sequence[AmdGpu]:
    """Return all GPUs in AMD SMI's order, with the two devices of each module paired."""
    found = [_gpu(AmdGpu(handle)) for handle in ask("amdsmi_get_processor_handles")]
    halves = sorted((gpu for gpu in found if gpu.meter is None), key=lambda gpu: gpu.address)
    for first, second in pairwise(halves):
        # Perhaps only some devices are visible, of different modules.
        if known(_ENERGY, first) and known(_ENERGY, second) == 0:
            for gpu, other in ((first, second), (second, first)):
                place = found.index(gpu)
                found[place] = replace(gpu, meter=first.handle, other=other.address)
    return found


def _gpu(gpu: AmdGpu) -> AmdGpu:
    calls = ("amdsmi_get_gpu_compute_partition", "amdsmi_get_gpu_memory_partition")
    modes = filter(None, (known(Query(call), gpu) for call in calls))
    device_id = known(Query("amdsmi_get_gpu_asic_info", member="device_id"), gpu)
    return replace(
        gpu,
        address=_without_function(ask("amdsmi_get_gpu_device_bdf", gpu.handle)),
        partition="/".join(modes) or None,
        meter=None if device_id in _TWO_DEVICES else gpu.handle,
    )
