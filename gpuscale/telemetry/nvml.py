"""NVIDIA's driver and its devices. Only the modules `nvml*` here import the NVML binding."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpuscale.errors import GpuscaleError
from gpuscale.telemetry.fields import MOMENTS, Field, Query, Reading, clock_events
from gpuscale.telemetry.nvml_binding import (
    NEVER_OFFERED,
    Forms,
    Handle,
    NvLinks,
    XidEvents,
    field_value,
    member,
    named,
    or_none,
)

_DEVICE_GONE = (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired)
"""Answers after which nothing is asked of the device: calls to a lost GPU can take seconds."""

_SHARED = "measured only for the whole GPU, which other MIG devices share"
_WHOLE_GPU = "the UUID is that of a whole GPU in MIG mode; name the MIG device by its own UUID"
_OTHER_CLOCK_US = 3600e6
"""Samples further than this from now carry times that are not Unix times."""

_AT_EVERY_TICK = [moment for moment, field in MOMENTS.items() if field.when == "windows"]
# A counter is set against the time, so it is read as soon as the clock was.
_AT_EVERY_TICK.sort(key=lambda moment: MOMENTS[moment].reduce != "increase")


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
        raise DriverAbsentError("no NVIDIA driver: libnvidia-ml.so.1 not found") from None
    except pynvml.NVMLError_DriverNotLoaded:
        raise DriverAbsentError("no NVIDIA driver: its kernel module is not loaded") from None
    except pynvml.NVMLError as error:
        raise DriverBrokenError(f"NVML does not start: {error}") from None
    try:
        yield or_none(pynvml.nvmlSystemGetDriverVersion)
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
    prefixes = ("",) if uuid.startswith(("GPU-", "MIG-")) else ("", "GPU-", "MIG-")
    for prefix in prefixes:
        try:
            return NvmlDevice(pynvml.nvmlDeviceGetHandleByUUID(prefix + uuid))
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            continue
        except pynvml.NVMLError as error:
            reason = f"NVML cannot reach device {uuid}: {error}"
    raise DeviceAbsentError(reason)


def all_devices() -> "Iterator[NvmlDevice | DeviceAbsentError]":
    """Every GPU by NVML's number, or why it cannot be reached; MIG devices are not listed."""
    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        yield DeviceAbsentError(f"NVML cannot count the GPUs: {error}")
        return
    for number in range(count):
        try:
            yield NvmlDevice(pynvml.nvmlDeviceGetHandleByIndex(number))
        except pynvml.NVMLError as error:
            yield DeviceAbsentError(str(error))


class NvmlDevice:
    """One GPU or MIG device; name and UUID are None where the driver does not tell them."""

    def __init__(self, handle: Handle) -> None:
        self.name: str | None = or_none(lambda: pynvml.nvmlDeviceGetName(handle))
        self.uuid: str | None = or_none(lambda: pynvml.nvmlDeviceGetUUID(handle))
        self._handle = self._gpu = handle
        self._never_offered: dict[str, str] = {}
        self._gone: str | None = None
        if or_none(lambda: pynvml.nvmlDeviceIsMigDeviceHandle(handle)):
            # A MIG device has memory of its own. Its SMs run at the clock of the GPU, behind the
            # GPU's PCIe link and heat sink, so the GPU is asked for those. Power and errors are
            # counted for the whole GPU only, and its other instances may belong to other jobs:
            # their watts and errors are not ours to report.
            self._never_ask("shared", _SHARED)
            gpu = or_none(lambda: pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
            self._gpu = handle if gpu is None else gpu
        elif (or_none(lambda: pynvml.nvmlDeviceGetMigMode(handle)) or [0])[0]:
            # A process can only train on one MIG device of such a GPU, but an old CUDA gives the
            # UUID of the whole: its sums over all MIG devices say nothing about that one.
            self._never_ask("summed", _WHOLE_GPU)
        links = NvLinks(self._gpu)
        self._forms = {
            moment: Forms(*(partial(self._number, field, query) for query in field.queries))
            for moment, field in MOMENTS.items()
            if field.queries
        }
        self._questions: Mapping[str, Callable[[], Any]] = {
            "nvlink_active": links.active,
            "nvlink_errors": links.errors,
            "xids": XidEvents(self._gpu).new,
            **self._forms,
        }
        self._opened_us = int(time.time() * 1e6)
        self._last_sample_us: dict[str, int] = {}

    def _never_ask(self, on_mig: str, reason: str) -> None:
        for moment, field in MOMENTS.items():
            if on_mig in field.mig:
                buffers = [query.buffer for query in field.queries if query.buffer]
                self._never_offered |= dict.fromkeys((moment, *buffers), reason)

    def read(self) -> Reading:
        """The fast-changing part of the state; a question without an answer has its reason."""
        return self._read(_AT_EVERY_TICK)

    def inspect(self, reading: Reading) -> Reading:
        """The reading, and what changes seldom beside it."""
        seldom = self._read([moment for moment in MOMENTS if moment not in _AT_EVERY_TICK])
        buffered = Reading()
        for moment, forms in self._forms.items():
            field = MOMENTS[moment]
            if buffer := field.queries[forms.number].buffer:
                # What the driver did not buffer is in the answers: no reason to name.
                self._ask(buffer, partial(self._samples, field, buffer), buffered)
        return Reading(
            answers={**reading.answers, **seldom.answers},
            absent={**reading.absent, **seldom.absent},
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
                elif isinstance(error, NEVER_OFFERED):
                    self._never_offered[name] = reason
        into.absent[name] = reason

    def _number(self, field: Field, query: Query) -> Any:
        handle = self._asked(field)
        if query.call.startswith("NVML_FI_"):
            (answered,) = pynvml.nvmlDeviceGetFieldValues(handle, [named(query.call)])
            answer = field_value(answered)
        else:
            answer = named(query.call)(handle, *map(named, query.arguments))
        if query.member is not None:
            answer = getattr(answer, query.member)
        if field.reduce == "shares":
            return clock_events(int(answer))
        return int(answer) if field.quantity.whole else float(answer) / field.divisor

    def _samples(self, field: Field, buffer: str) -> list[tuple[float, float]]:
        """The driver's own samples since the last time, with their Unix times."""
        since_us = self._last_sample_us.get(buffer, self._opened_us)
        try:
            value_type, samples = pynvml.nvmlDeviceGetSamples(
                self._asked(field), named(buffer), since_us
            )
        except pynvml.NVMLError_NotFound:
            return []
        # A buffer that is not full yet ends in empty places.
        new = [sample for sample in samples if sample.timeStamp > since_us]
        now_us = time.time() * 1e6
        if any(abs(sample.timeStamp - now_us) > _OTHER_CLOCK_US for sample in new):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._last_sample_us[buffer] = max((s.timeStamp for s in new), default=since_us)
        return [
            (sample.timeStamp / 1e6, member(sample.sampleValue, value_type) / field.divisor)
            for sample in new
        ]

    def _asked(self, field: Field) -> Handle:
        return self._handle if "own" in field.mig else self._gpu
