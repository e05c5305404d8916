"""Read the counters of an NVIDIA device, each by the newest NVML call that the driver supports."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from gpuscale.base.counters import MOMENTS, Field, Query, Reading, clock_events
from gpuscale.measure import nvml
from gpuscale.measure.nvml import NEVER_OFFERED, DeviceAbsentError, NvmlError, ask, ask_or_none

_SHARED = "measured only for the whole GPU, which other MIG devices share"
_WHOLE_GPU = "the UUID is that of a whole GPU in MIG mode; name the MIG device by its own UUID"
_OTHER_CLOCK_US = 3600e6
"""Samples with timestamps further than this from now, in microseconds, are not in Unix time."""
_MOST_XIDS = 100
"""Maximum number of XID events read per device and tick; more would add no information."""

_AT_EVERY_TICK = [moment for moment, field in MOMENTS.items() if field.when == "windows"]
# A counter is set against the time, so it is read as soon as the clock was.
_AT_EVERY_TICK.sort(key=lambda moment: MOMENTS[moment].reduce != "increase")
_SELDOM = [moment for moment in MOMENTS if moment not in _AT_EVERY_TICK]

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


def find_device(uuid: str) -> "NvmlDevice":
    """Return the GPU or MIG device with this UUID; DeviceAbsentError if the driver lacks it."""
    return NvmlDevice(nvml.find_handle(uuid))


def foreign_processes(uuids: Sequence[str]) -> int | None:
    """Count the processes that compute on these devices; only meaningful before a run starts.

    Returns None if a device does not report this number.
    """
    try:
        devices = [find_device(uuid) for uuid in dict.fromkeys(uuids)]
        return sum(device.compute_processes() for device in devices)
    except (DeviceAbsentError, NvmlError):
        return None


def all_devices() -> "Iterator[tuple[int, NvmlDevice | DeviceAbsentError]]":
    """Yield the NVML index of each GPU of this job with its device, or an error if unreachable."""
    try:
        for number, handle in nvml.all_handles():
            is_absent = isinstance(handle, DeviceAbsentError)
            yield number, handle if is_absent else NvmlDevice(handle)
    except NvmlError as error:
        yield 0, DeviceAbsentError(f"NVML cannot count the GPUs: {error}")


class NvmlDevice:
    """A GPU or MIG device; its name and UUID are None if the driver does not report them."""

    def __init__(self, handle: Any) -> None:
        self.name: str | None = ask_or_none("nvmlDeviceGetName", handle)
        self.uuid: str | None = ask_or_none("nvmlDeviceGetUUID", handle)
        self.firmware = nvml.firmware(handle)
        self._handle = self._gpu = handle
        self._never_offered: dict[str, str] = {}
        self._gone: str | None = None
        self._links = 0
        self._events: Any = None
        if ask_or_none("nvmlDeviceIsMigDeviceHandle", handle):
            # A MIG device has memory of its own. Its SMs run at the clock of the GPU, behind the
            # GPU's PCIe link and heat sink, so the GPU is asked for those. Power and errors are
            # counted for the whole GPU only, and its other instances may belong to other jobs:
            # their watts and errors are not ours to report.
            self._never_ask("shared", _SHARED)
            gpu = ask_or_none("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
            self._gpu = handle if gpu is None else gpu
        elif (ask_or_none("nvmlDeviceGetMigMode", handle) or [0])[0]:
            # A process can only train on one MIG device of such a GPU, but an old CUDA gives the
            # UUID of the whole: its sums over all MIG devices say nothing about that one.
            self._never_ask("summed", _WHOLE_GPU)
        self._forms = {
            moment: _Forms(*(partial(self._number, field, query) for query in field.queries))
            for moment, field in MOMENTS.items()
            if field.queries
        }
        in_fields = [partial(self._errors_in_fields, names) for names in _NVLINK_FIELDS]
        self._errors = _Forms(*in_fields, self._errors_in_counters)
        self._questions: Mapping[str, Callable[[], Any]] = {
            "nvlink_active": self._nvlink_active,
            "nvlink_errors": self._nvlink_errors,
            "xids": self._new_xids,
            **self._forms,
        }
        self._opened_us = int(time.time() * 1e6)
        self._last_sample_us: dict[str, int] = {}

    def _never_ask(self, on_mig: str, reason: str) -> None:
        for moment, field in MOMENTS.items():
            if on_mig in field.mig:
                buffers = [query.buffer for query in field.queries if query.buffer]
                self._never_offered |= dict.fromkeys((moment, *buffers), reason)

    def compute_processes(self) -> int:
        """Return the number of processes that are computing on the device."""
        call = "nvmlDeviceGetComputeRunningProcesses"
        # On a driver before R510 the call without a version raises something else than NvmlError.
        versions = (partial(ask, call + version, self._handle) for version in ("_v3", "_v2"))
        return len(_Forms(*versions)())

    def read(self) -> Reading:
        """Read the fast-changing counters; give a reason for each that cannot be read."""
        return self._read(_AT_EVERY_TICK)

    def inspect(self, reading: Reading) -> Reading:
        """Return the given reading plus slowly changing counters and the driver's own samples."""
        seldom, buffered = self._read(_SELDOM), Reading()
        for moment, forms in self._forms.items():
            field = MOMENTS[moment]
            if buffer := field.queries[forms.number].buffer:
                # A number that the driver does not buffer is in the answers, and not absent.
                self._ask(buffer, partial(self._samples, field, buffer), buffered)
        return Reading(
            answers=reading.answers | seldom.answers,
            absent=reading.absent | seldom.absent,
            buffered=buffered.answers,
        )

    def _read(self, moments: Sequence[str]) -> Reading:
        reading = Reading()
        for moment in moments:
            self._ask(moment, self._questions[moment], reading)
        return reading

    def _ask(self, name: str, question: Callable[[], Any], into: Reading) -> None:
        # Events come from the driver and not from the device, and one says that a GPU is lost.
        gone = None if name == "xids" else self._gone
        reason = gone or self._never_offered.get(name)
        if reason is None:
            try:
                into.answers[name] = question()
                return
            except NvmlError as error:
                reason = str(error)
                if isinstance(error, nvml.DEVICE_GONE):
                    self._gone = reason
                elif isinstance(error, NEVER_OFFERED):
                    self._never_offered[name] = reason
        into.absent[name] = reason

    def _number(self, field: Field, query: Query) -> Any:
        handle = self._asked(field)
        if query.call.startswith("NVML_FI_"):
            (answered,) = ask("nvmlDeviceGetFieldValues", handle, [nvml.named(query.call)])
            answer: Any = nvml.field_value(answered)
        else:
            answer = ask(query.call, handle, *map(nvml.named, query.arguments))
        if query.member is not None:
            answer = getattr(answer, query.member)
        if field.reduce == "shares":
            return clock_events(int(answer))
        return int(answer) if field.quantity.whole else float(answer) / field.divisor

    def _samples(self, field: Field, buffer: str) -> list[tuple[float, float]]:
        """Return (Unix time, value) of each sample taken by the driver since the last call."""
        since_us = self._last_sample_us.get(buffer, self._opened_us)
        handle, kind_of_samples = self._asked(field), nvml.named(buffer)
        try:
            kind, samples = ask("nvmlDeviceGetSamples", handle, kind_of_samples, since_us)
        except nvml.NOT_FOUND:
            return []
        # A buffer that is not full yet ends in empty places.
        new = [(s.timeStamp, s.sampleValue) for s in samples if s.timeStamp > since_us]
        now_us = time.time() * 1e6
        if any(abs(at_us - now_us) > _OTHER_CLOCK_US for at_us, _ in new):
            raise NvmlError(nvml.named("NVML_ERROR_NOT_SUPPORTED"))
        self._last_sample_us[buffer] = max((at_us for at_us, _ in new), default=since_us)
        return [
            (at_us / 1e6, nvml.union_value(value, kind) / field.divisor) for at_us, value in new
        ]

    def _asked(self, field: Field) -> Any:
        return self._handle if "own" in field.mig else self._gpu

    def _nvlink_active(self) -> tuple[bool, ...]:
        """Return for each NVLink, in the order of link numbers, whether the link is active."""
        states: list[bool] = []
        for link in range(nvml.named("NVML_NVLINK_MAX_LINKS")):
            try:
                states.append(bool(ask("nvmlDeviceGetNvLinkState", self._gpu, link)))
            except nvml.NO_SUCH_LINK:
                # The first number that no link has; without link 0 there is no NVLink.
                if not states:
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
            except NEVER_OFFERED:
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
            except NvmlError:
                ask("nvmlEventSetFree", events)
                raise
            self._events = events
        found: list[int] = []
        while len(found) < _MOST_XIDS:
            try:
                found.append(int(ask("nvmlEventSetWait_v2", self._events, 0).eventData))
            except NvmlError as error:
                # Events taken out of the set are returned only now; the next call fails as well.
                if not found and not isinstance(error, nvml.TIMED_OUT):
                    raise
                break
        return tuple(found)


class _Forms:
    """Alternative NVML calls, newest first, of which the first that works is used."""

    def __init__(self, *forms: Callable[[], Any]) -> None:
        self._forms = forms
        self.number = 0
        """Index of the call in use; 0 is the newest."""

    def __call__(self) -> Any:
        while self.number < len(self._forms) - 1:
            try:
                return self._forms[self.number]()
            except NEVER_OFFERED:
                self.number += 1
        return self._forms[self.number]()
