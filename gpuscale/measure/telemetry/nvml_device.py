"""A GPU or MIG device of NVIDIA: NVLink, events, and the driver's own samples."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gpuscale.base.counters import MOMENTS, Field, Reading
from gpuscale.base.errors import NeverOfferedError, QueryError
from gpuscale.measure import nvml
from gpuscale.measure.nvml import ask, ask_or_none
from gpuscale.measure.telemetry.device import Device, Forms

_SHARED = "measured only for the whole GPU, which other MIG devices share"
_WHOLE_GPU = "the UUID is that of a whole GPU in MIG mode; name the MIG device by its own UUID"
_OTHER_CLOCK_US = 3600e6
"""Samples with timestamps further than this from now, in microseconds, are not in Unix time."""
_MOST_XIDS = 100
"""Maximum number of XID events read per device and tick; more would add no information."""

# Errors of NVLink: in fields on Hopper, in other fields on Blackwell, in counters before.
_NVLINK_FIELDS = (
    {
        "replay": "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY",
        "recovery": "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
        "crc": "NVML_FI_DEV_NVLINK_ERROR_DL_CRC",
    },
    {
        "recovery": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
        # Packets with errors that error correction, which always has some to do, has left.
        "effective": "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS",
    },
)
_NVLINK_COUNTERS = {
    "replay": ("NVML_NVLINK_ERROR_DL_REPLAY",),
    "recovery": ("NVML_NVLINK_ERROR_DL_RECOVERY",),
    "crc": ("NVML_NVLINK_ERROR_DL_CRC_FLIT", "NVML_NVLINK_ERROR_DL_CRC_DATA"),
}


class NvmlDevice(Device):
    """A GPU or MIG device of NVIDIA."""

    def __init__(self, handle: Any) -> None:
        self.name: str | None = ask_or_none("nvmlDeviceGetName", handle)
        self.uuid: str | None = ask_or_none("nvmlDeviceGetUUID", handle)
        self.firmware = nvml.firmware(handle)
        place = ask_or_none("nvmlDeviceGetPciInfo", handle)
        self.pci_address = None if place is None else str(place.busId)
        self._gpu = handle
        self._links = 0
        self._events: Any = None
        own = {
            "nvlink_active": self._nvlink_active,
            "nvlink_errors": self._nvlink_errors,
            "xids": self._new_xids,
        }
        super().__init__(nvml, handle, own)
        if ask_or_none("nvmlDeviceIsMigDeviceHandle", handle):
            # A MIG device has memory of its own. Its SMs run at the clock of the GPU, behind the
            # GPU's PCIe link and heat sink, so the GPU is asked for those. Power and errors are
            # counted for the whole GPU only, and its other instances may belong to other jobs:
            # their watts and errors are not ours to report.
            self.never_ask(_SHARED, lambda field: "shared" in field.mig)
            gpu = ask_or_none("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
            self._gpu = handle if gpu is None else gpu
        elif (ask_or_none("nvmlDeviceGetMigMode", handle) or [0])[0]:
            # A process can only train on one MIG device of such a GPU, but an old CUDA gives the
            # UUID of the whole: its sums over all MIG devices say nothing about that one.
            self.never_ask(_WHOLE_GPU, lambda field: "summed" in field.mig)
        in_fields = [partial(self._errors_in_fields, names) for names in _NVLINK_FIELDS]
        self._errors = Forms(*in_fields, self._errors_in_counters)
        self._opened_us = int(time.time() * 1e6)
        self._last_sample_us: dict[str, int] = {}

    def compute_processes(self) -> int:
        """Return the number of processes that are computing on the device."""
        call = "nvmlDeviceGetComputeRunningProcesses"
        # On a driver before R510 the call without a version raises something else than NVMLError.
        versions = (partial(ask, call + version, self._handle) for version in ("_v3", "_v2"))
        return len(Forms(*versions)())

    def samples(self) -> dict[str, list[tuple[float, float]]]:
        """Return the samples that the driver took since the last call, by buffer."""
        buffered = Reading()
        for moment, forms in self.forms.items():
            query = self.queries[moment][forms.number]
            if query.buffer:
                # A number that the driver does not buffer is in the answers, and not absent.
                samples = partial(self._samples, MOMENTS[moment], query.buffer, query.divisor)
                self.ask(query.buffer, samples, buffered)
        return buffered.answers

    def asked(self, field: Field) -> Any:
        """Return the handle to ask for a counter: the MIG device or its whole GPU."""
        return self._handle if "own" in field.mig else self._gpu

    def _samples(self, field: Field, buffer: str, divisor: int) -> list[tuple[float, float]]:
        """Return (Unix time, value) of each sample taken by the driver since the last call."""
        since_us = self._last_sample_us.get(buffer, self._opened_us)
        handle, kind_of_samples = self.asked(field), nvml.named(buffer)
        try:
            kind, samples = ask("nvmlDeviceGetSamples", handle, kind_of_samples, since_us)
        except QueryError as error:
            if error.code == nvml.NOT_FOUND:
                return []
            raise
        # A buffer that is not full yet ends in empty places.
        new = [(s.timeStamp, s.sampleValue) for s in samples if s.timeStamp > since_us]
        now_us = time.time() * 1e6
        if any(abs(at_us - now_us) > _OTHER_CLOCK_US for at_us, _ in new):
            raise NeverOfferedError("the driver's samples are not in Unix time")
        self._last_sample_us[buffer] = max((at_us for at_us, _ in new), default=since_us)
        return [(at_us / 1e6, nvml.union_value(value, kind) / divisor) for at_us, value in new]

    def _nvlink_active(self) -> tuple[bool, ...]:
        """Return for each NVLink, in the order of link numbers, whether the link is active."""
        states: list[bool] = []
        for link in range(nvml.named("NVML_NVLINK_MAX_LINKS")):
            try:
                states.append(bool(ask("nvmlDeviceGetNvLinkState", self._gpu, link)))
            except QueryError as error:
                # The first number that no link has; without link 0 there is no NVLink.
                if not states or error.code not in nvml.NO_SUCH_LINK:
                    raise
                break
        self._links = len(states)
        return tuple(states)

    def _nvlink_errors(self) -> dict[str, int]:
        """Return error counts summed over all NVLinks, keyed by kind of error."""
        if not self._links:
            self._nvlink_active()
        errors: dict[str, int] = self._errors()
        return errors

    def _errors_in_fields(self, names: Mapping[str, str]) -> dict[str, int]:
        fields = {kind: int(nvml.named(name)) for kind, name in names.items()}
        asked = [(field, link) for field in fields.values() for link in range(self._links)]
        values = ask("nvmlDeviceGetFieldValues", self._gpu, asked)
        answers = dict(zip(asked, values, strict=True))

        def count(link: int, field: int) -> float:
            return nvml.field_value(answers[field, link])

        return {kind: self._over_links(count, field) for kind, field in fields.items()}

    def _errors_in_counters(self) -> dict[str, int]:
        count = partial(ask, "nvmlDeviceGetNvLinkErrorCounter", self._gpu)
        return {
            kind: sum(self._over_links(count, nvml.named(name)) for name in names)
            for kind, names in _NVLINK_COUNTERS.items()
        }

    def _over_links(self, count: Callable[[int, int], float], kind: int) -> int:
        """Return the total of one kind of error, over all links that count such errors."""
        counts: list[int] = []
        for link in range(self._links):
            try:
                counts.append(int(count(link, kind)))
            except NeverOfferedError:
                # An error of the last link speaks for the device only if no link has counted.
                if not counts and link == self._links - 1:
                    raise
        return sum(counts)

    def _new_xids(self) -> tuple[int, ...]:
        """Return the XID errors since the last call; the first call only starts recording."""
        if self._events is None:
            # A set for each device shows whose event it is; NVML's shutdown frees them.
            events = ask("nvmlEventSetCreate")
            kind = nvml.named("nvmlEventTypeXidCriticalError")
            try:
                ask("nvmlDeviceRegisterEvents", self._gpu, kind, events)
            except QueryError:
                ask("nvmlEventSetFree", events)
                raise
            self._events = events
        found: list[int] = []
        while len(found) < _MOST_XIDS:
            try:
                found.append(int(ask("nvmlEventSetWait_v2", self._events, 0).eventData))
            except QueryError as error:
                # Events taken out of the set are returned only now; the next call fails as well.
                if not found and not error.code == nvml.TIMED_OUT:
                    raise
                break
        return tuple(found)
