"""An AMD GPU: its energy, the reasons for reduced clocks, and its links to other GPUs."""

from collections.abc import Container
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gpuscale.base.counters import JOULES, WATTS, Field, Query
from gpuscale.base.errors import NeverOfferedError, QueryError
from gpuscale.measure import amdsmi
from gpuscale.measure.amdsmi import AmdGpu, ask
from gpuscale.measure.telemetry.device import Device

_PARTITION = "measured only for the whole GPU, which other partitions ({}) share"
_MODULE = (
    "measured only for the whole module, whose other device ({}) is not in this run or not visible"
)
_REASONS = {
    "prochot": (0xC000_0000_0000, "prochot_residency_acc"),
    "ppt": (0xFFFF, "ppt_residency_acc"),
    "tdc": (0xFFFF_0000, None),
    "socket_thermal": (0x0C3B_0000_0000, "socket_thm_residency_acc"),
    "vr_thermal": (0x33C0_0000_0000, "vr_thm_residency_acc"),
    "hbm_thermal": (0x0004_0000_0000, "hbm_thm_residency_acc"),
}
"""Reasons for reduced clocks: the bits that report them before MI300, in the order of the kernel's
`SMU_THROTTLER_*_BIT`, and the time counters from MI300 on; None if there is no counter."""
_UNKNOWN = 2**64 - 1
_OF_MODULE = (WATTS, JOULES)
"""Quantities that the driver measures for both devices of a module together."""


class AmdDevice(Device):
    """A GPU of AMD, or one of its partitions."""

    is_of_amd = True

    def __init__(self, gpu: AmdGpu, with_addresses: Container[str | None]) -> None:
        """Prepare to read the counters; `with_addresses` has the addresses of all devices read."""
        self._gpu, self._meter = gpu, replace(gpu, handle=gpu.meter)
        self._sharers = 2 if gpu.other else 1
        self.name = amdsmi.known(Query("amdsmi_get_gpu_asic_info", member="market_name"), gpu)
        self.uuid = amdsmi.known(Query("amdsmi_get_gpu_device_uuid"), gpu)
        self.pci_address = f"{gpu.address}.0"
        own = {
            "clock_event_reasons": self._held_back_by,
            "xgmi_active": self._xgmi_active,
            "xgmi_errors": self._xgmi_errors,
        }
        super().__init__(amdsmi, gpu, own)
        if gpu.meter is None or (gpu.other and gpu.other not in with_addresses):
            reason = _MODULE.format(gpu.other or "unknown")
            self.never_ask(reason, lambda field: field.quantity in _OF_MODULE)
        if gpu.partition is not None and not gpu.partition.startswith("SPX"):
            self.never_ask(_PARTITION.format(gpu.partition), lambda field: field.mig)
        self._counted: list[int] = []
        self._at = self._errors = 0
        self._reasons: tuple[str, ...] = ()
        # Reasons are those since the previous reading.
        with suppress(QueryError):
            self._held_back_by()

    def compute_processes(self) -> int:
        """Return the number of processes that are computing on the device."""
        return len(ask("amdsmi_get_gpu_process_list", self._gpu.handle))

    def number(self, field: Field, query: Query) -> Any:
        """Return the answer to a query; the two devices of a module get half of its power each."""
        number = super().number(field, query)
        return number / self._sharers if field.quantity in _OF_MODULE else number

    def asked(self, field: Field) -> Any:
        """Return the GPU to query: for power, the device of the module that measures it."""
        return self._meter if field.quantity in _OF_MODULE else self._gpu

    def _held_back_by(self) -> tuple[str, ...]:
        """Return the reasons for reduced clocks since the last call; before MI300, present ones."""
        table = amdsmi.metrics(self._gpu)
        counted = {reason: name for reason, (_, name) in _REASONS.items() if name}
        now = [int(getattr(table, name, _UNKNOWN)) for name in counted.values()]
        if _UNKNOWN in now:
            bits = int(table.indep_throttle_status)
            if bits == _UNKNOWN:
                raise NeverOfferedError("not reported")
            return tuple(reason for reason, (mask, _) in _REASONS.items() if bits & mask)
        if (at := int(table.accumulation_counter)) != self._at:
            pairs = zip(counted, now, self._counted or now, strict=True)
            self._reasons = tuple(reason for reason, count, before in pairs if count > before)
            self._at, self._counted = at, now
        return self._reasons

    def _xgmi_active(self) -> tuple[bool, ...]:
        """Return True or False for each enabled link to another GPU: whether the link is up."""
        states = ask("amdsmi_get_gpu_xgmi_link_status", self._gpu.handle)["status"]
        if not (used := [state for state in states if state in ("U", "D")]):
            raise NeverOfferedError("no links between GPUs")
        return tuple(state == "U" for state in used)

    def _xgmi_errors(self) -> int:
        """Return the number of errors since the first call; each reading clears the driver's."""
        self._errors += ask("amdsmi_gpu_xgmi_error_status", self._gpu.handle)
        return self._errors
