"""NVIDIA's driver and its devices; nothing else here imports the NVML binding."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpuscale.base.counters import MOMENTS, Field, Query, Reading, clock_events
from gpuscale.base.errors import GpuscaleError

_DEVICE_GONE = (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired)
"""Answers after which nothing is asked of the device: calls to a lost GPU can take seconds."""
_NEVER_OFFERED = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLError_InvalidArgument,
    pynvml.NVMLError_ArgumentVersionMismatch,
)
"""Answers that will be the same at the next tick, so the question is not put again."""

_SHARED = "measured only for the whole GPU, which other MIG devices share"
_WHOLE_GPU = "the UUID is that of a whole GPU in MIG mode; name the MIG device by its own UUID"
_OTHER_CLOCK_US = 3600e6
"""Samples further than this from now carry times that are not Unix times."""
_AMD_DRIVER = Path("/dev/kfd")
"""There if the kernel has AMD's driver for computing."""
_MOST_XIDS = 100  # of a device between two ticks: more say nothing new

_AT_EVERY_TICK = [moment for moment, field in MOMENTS.items() if field.when == "windows"]
# A counter is set against the time, so it is read as soon as the clock was.
_AT_EVERY_TICK.sort(key=lambda moment: MOMENTS[moment].reduce != "increase")
_SELDOM = [moment for moment in MOMENTS if moment not in _AT_EVERY_TICK]

# Hopper and Blackwell count errors of NVLink in fields, each in its own; before, in counters.
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


class DriverAbsentError(GpuscaleError):
    """There is no usable driver on this machine; the message is the reason to record."""


class DriverBrokenError(DriverAbsentError):
    """There is a driver on this machine, but it does not work."""


class DeviceAbsentError(GpuscaleError):
    """The driver does not offer the device that was asked for; the message says why."""


@contextmanager
def open_nvml() -> Iterator[str | None]:
    """Keep NVML started in this process; gives the driver's version, if it tells it."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        why = "no NVIDIA driver: libnvidia-ml.so.1 not found"
        if _AMD_DRIVER.exists():
            why = "NVML is NVIDIA's, and the counters of AMD's GPUs are not read yet"
        raise DriverAbsentError(why) from None
    except pynvml.NVMLError_DriverNotLoaded:
        raise DriverAbsentError("no NVIDIA driver: its kernel module is not loaded") from None
    except pynvml.NVMLError as error:
        raise DriverBrokenError(f"NVML does not start: {error}") from None
    try:
        yield _or_none(pynvml.nvmlSystemGetDriverVersion)
    finally:
        # A driver that fails in this has nothing more to tell.
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def find_device(uuid: str) -> "NvmlDevice":
    """The GPU or MIG device with that UUID: `GPU-…`, `MIG-…`, or bare as CUDA gives it.

    NVML counts physical devices while CUDA_VISIBLE_DEVICES renumbers ours, so a device of a
    run is never looked up by its number.
    """
    reason = f"NVML knows no device with UUID {uuid}"
    for prefix in ("",) if uuid.startswith(("GPU-", "MIG-")) else ("", "GPU-", "MIG-"):
        try:
            return NvmlDevice(pynvml.nvmlDeviceGetHandleByUUID(prefix + uuid))
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            continue
        except pynvml.NVMLError as error:
            reason = f"NVML cannot reach device {uuid}: {error}"
    raise DeviceAbsentError(reason)


def foreign_processes(uuids: Sequence[str]) -> int | None:
    """Processes that compute on these devices, before a run has any of its own.

    None where a device does not tell.
    """
    try:
        devices = [find_device(uuid) for uuid in dict.fromkeys(uuids)]
        return sum(device.compute_processes() for device in devices)
    except (DeviceAbsentError, pynvml.NVMLError):
        return None


def all_devices() -> "Iterator[tuple[int, NvmlDevice | DeviceAbsentError]]":
    """Every GPU of this job by NVML's number, or why it cannot be reached; no MIG devices."""
    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        yield 0, DeviceAbsentError(f"NVML cannot count the GPUs: {error}")
        return
    for number in range(count):
        try:
            yield number, NvmlDevice(pynvml.nvmlDeviceGetHandleByIndex(number))
        except pynvml.NVMLError_NoPermission:
            # NVML counts those that a scheduler has given to other jobs as well.
            continue
        except pynvml.NVMLError as error:
            yield number, DeviceAbsentError(str(error))


class NvmlDevice:
    """One GPU or MIG device; name and UUID are None where the driver does not tell them."""

    def __init__(self, handle: Any) -> None:
        self.name: str | None = _or_none(lambda: pynvml.nvmlDeviceGetName(handle))
        self.uuid: str | None = _or_none(lambda: pynvml.nvmlDeviceGetUUID(handle))
        self._handle = self._gpu = handle
        self._never_offered: dict[str, str] = {}
        self._gone: str | None = None
        self._links = 0
        self._events: Any = None
        if _or_none(lambda: pynvml.nvmlDeviceIsMigDeviceHandle(handle)):
            # A MIG device has memory of its own. Its SMs run at the clock of the GPU, behind the
            # GPU's PCIe link and heat sink, so the GPU is asked for those. Power and errors are
            # counted for the whole GPU only, and its other instances may belong to other jobs:
            # their watts and errors are not ours to report.
            self._never_ask("shared", _SHARED)
            gpu = _or_none(lambda: pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
            self._gpu = handle if gpu is None else gpu
        elif (_or_none(lambda: pynvml.nvmlDeviceGetMigMode(handle)) or [0])[0]:
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
        """Processes that compute on the device now."""
        call = "nvmlDeviceGetComputeRunningProcesses"

        def listed(version: str) -> Any:
            return _named(call + version)(self._handle)

        # By version: on a driver before R510 the plain call raises what is no NVMLError.
        return len(_Forms(partial(listed, "_v3"), partial(listed, "_v2"))())

    def read(self) -> Reading:
        """The fast-changing part of the state; a question without an answer has its reason."""
        return self._read(_AT_EVERY_TICK)

    def inspect(self, reading: Reading) -> Reading:
        """The reading, and what changes seldom beside it."""
        seldom, buffered = self._read(_SELDOM), Reading()
        for moment, forms in self._forms.items():
            field = MOMENTS[moment]
            if buffer := field.queries[forms.number].buffer:
                # What the driver did not buffer is in the answers: no reason to name.
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
        # Events are the driver's, not the device's, and the loss of a GPU is one of them.
        gone = None if name == "xids" else self._gone
        reason = gone or self._never_offered.get(name)
        if reason is None:
            try:
                into.answers[name] = question()
                return
            except pynvml.NVMLError as error:
                reason = str(error)
                if isinstance(error, _DEVICE_GONE):
                    self._gone = reason
                elif isinstance(error, _NEVER_OFFERED):
                    self._never_offered[name] = reason
        into.absent[name] = reason

    def _number(self, field: Field, query: Query) -> Any:
        handle = self._asked(field)
        if query.call.startswith("NVML_FI_"):
            (answered,) = pynvml.nvmlDeviceGetFieldValues(handle, [_named(query.call)])
            answer = _field_value(answered)
        else:
            answer = _named(query.call)(handle, *map(_named, query.arguments))
        if query.member is not None:
            answer = getattr(answer, query.member)
        if field.reduce == "shares":
            return clock_events(int(answer))
        return int(answer) if field.quantity.whole else float(answer) / field.divisor

    def _samples(self, field: Field, buffer: str) -> list[tuple[float, float]]:
        """The driver's own samples since the last time, with their Unix times."""
        since_us = self._last_sample_us.get(buffer, self._opened_us)
        try:
            asked, name = self._asked(field), _named(buffer)
            kind, samples = pynvml.nvmlDeviceGetSamples(asked, name, since_us)
        except pynvml.NVMLError_NotFound:
            return []
        # A buffer that is not full yet ends in empty places.
        new = [(s.timeStamp, s.sampleValue) for s in samples if s.timeStamp > since_us]
        now_us = time.time() * 1e6
        if any(abs(at_us - now_us) > _OTHER_CLOCK_US for at_us, _ in new):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._last_sample_us[buffer] = max((at_us for at_us, _ in new), default=since_us)
        return [(at_us / 1e6, _member(value, kind) / field.divisor) for at_us, value in new]

    def _asked(self, field: Field) -> Any:
        return self._handle if "own" in field.mig else self._gpu

    def _nvlink_active(self) -> tuple[bool, ...]:
        """Of each NVLink, in the order of their numbers."""
        states: list[bool] = []
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                states.append(bool(pynvml.nvmlDeviceGetNvLinkState(self._gpu, link)))
            except (pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_NotSupported):
                # The first number that no link has; without link 0 there is no NVLink.
                if not states:
                    raise
                break
        self._links = len(states)
        return tuple(states)

    def _nvlink_errors(self) -> dict[str, int]:
        """Counters by kind, over all links."""
        if not self._links:
            self._nvlink_active()
        errors: dict[str, int] = self._errors()
        return errors

    def _errors_in_fields(self, names: Mapping[str, str]) -> dict[str, int]:
        fields = {kind: int(_named(name)) for kind, name in names.items()}
        asked = [(field, link) for field in fields.values() for link in range(self._links)]
        answers = dict(zip(asked, pynvml.nvmlDeviceGetFieldValues(self._gpu, asked), strict=True))

        def count(link: int, field: int) -> float:
            return _field_value(answers[field, link])

        return {kind: self._over_links(count, field) for kind, field in fields.items()}

    def _errors_in_counters(self) -> dict[str, int]:
        count = partial(pynvml.nvmlDeviceGetNvLinkErrorCounter, self._gpu)
        return {
            kind: sum(self._over_links(count, getattr(pynvml, name)) for name in names)
            for kind, names in _NVLINK_COUNTERS.items()
        }

    def _over_links(self, count: Callable[[int, int], float], kind: int) -> int:
        """The sum over the links that count errors of a kind; an inactive one may not."""
        counts: list[int] = []
        for link in range(self._links):
            try:
                counts.append(int(count(link, kind)))
            except _NEVER_OFFERED:
                # As long as any link may count, this is no answer of the device.
                if not counts and link == self._links - 1:
                    raise
        return sum(counts)

    def _new_xids(self) -> tuple[int, ...]:
        """The driver's error events since the last time, of which the first only starts them."""
        if self._events is None:
            # A set for each device tells whose event it is; NVML's shutdown frees them.
            events = pynvml.nvmlEventSetCreate()
            kind = pynvml.nvmlEventTypeXidCriticalError
            try:
                pynvml.nvmlDeviceRegisterEvents(self._gpu, kind, events)
            except pynvml.NVMLError:
                pynvml.nvmlEventSetFree(events)
                raise
            self._events = events
        found: list[int] = []
        while len(found) < _MOST_XIDS:
            try:
                found.append(int(pynvml.nvmlEventSetWait_v2(self._events, 0).eventData))
            except pynvml.NVMLError as error:
                # What was taken out of the set is told only now; the next time fails as well.
                if not found and not isinstance(error, pynvml.NVMLError_Timeout):
                    raise
                break
        return tuple(found)


class _Forms:
    """One question in several forms, the newest first; the first that is answered is kept."""

    def __init__(self, *forms: Callable[[], Any]) -> None:
        self._forms = forms
        self.number = 0
        """Of the form that is asked now; 0 is the newest."""

    def __call__(self) -> Any:
        while self.number < len(self._forms) - 1:
            try:
                return self._forms[self.number]()
            except _NEVER_OFFERED:
                self.number += 1
        return self._forms[self.number]()


def _named(name: str) -> Any:
    """A call or constant of the binding, which an older release may lack as a driver may."""
    found = getattr(pynvml, name, None)
    if found is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return found


def _field_value(field: Any) -> float:
    """The number in an answer of nvmlDeviceGetFieldValues."""
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(field.nvmlReturn)
    return _member(field.value, field.valueType)


def _member(value: Any, value_type: int) -> float:
    """The number in NVML's union of number types."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    number: float = getattr(value, members[value_type])
    return number


def _or_none(query: Callable[[], Any]) -> Any:
    """The answer, or None for an error."""
    try:
        return query()
    except pynvml.NVMLError:
        return None
