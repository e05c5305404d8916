"""The devices of a run or of this machine, of either vendor."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpuscale.base.errors import DeviceAbsentError, QueryError
from gpuscale.measure.amdsmi import AmdGpu
from gpuscale.measure.smi import Smi
from gpuscale.measure.telemetry.amd_device import AmdDevice
from gpuscale.measure.telemetry.device import Device
from gpuscale.measure.telemetry.nvml_device import NvmlDevice


def find_devices(
    smi: Smi, addresses: Mapping[str, str | None]
) -> dict[str, Device | DeviceAbsentError]:
    """Return the devices of a run by UUID, or the reason why the driver does not offer one.

    `addresses` has their PCI addresses, by which AMD's devices are found.
    """
    handles: list[Any] = []
    for uuid, address in addresses.items():
        try:
            handles.append(smi.find_handle(uuid, address))
        except DeviceAbsentError as error:
            handles.append(error)
        except QueryError as error:
            handles.append(DeviceAbsentError(f"{smi.NAME} cannot list the GPUs: {error}"))
    return dict(zip(addresses, _devices(handles), strict=True))


def all_devices(smi: Smi) -> Iterator[tuple[int, Device | DeviceAbsentError]]:
    """Yield the driver's number of each GPU of this job with its device, or why it is absent."""
    try:
        handles = dict(smi.all_handles())
    except QueryError as error:
        handles = {0: DeviceAbsentError(f"{smi.NAME} cannot list the GPUs: {error}")}
    yield from zip(handles, _devices([*handles.values()]), strict=True)


def foreign_processes(smi: Smi, addresses: Mapping[str, str | None]) -> int | None:
    """Count the processes that compute on these devices; only meaningful before a run starts.

    Returns None if a device does not report this number.
    """
    found = find_devices(smi, addresses).values()
    devices = [device for device in found if isinstance(device, Device)]
    with suppress(QueryError):
        if len(devices) == len(addresses):
            return sum(device.compute_processes() for device in devices)
    return None


def _devices(handles: Sequence[Any]) -> Iterator[Device | DeviceAbsentError]:
    together = {handle.address for handle in handles if isinstance(handle, AmdGpu)}
    for handle in handles:
        if isinstance(handle, AmdGpu):
            yield AmdDevice(handle, together)
        else:
            yield handle if isinstance(handle, DeviceAbsentError) else NvmlDevice(handle)
