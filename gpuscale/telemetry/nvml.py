"""NVIDIA's driver as a probe: the only module that imports the NVML binding."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import pynvml  # type: ignore[import-untyped]

from gpuscale.records import PcieLink
from gpuscale.telemetry.clock_events import reason_names
from gpuscale.telemetry.probe import (
    Condition,
    DeviceAbsentError,
    DriverAbsentError,
    DriverBrokenError,
    Reading,
)

_T = TypeVar("_T")
_Handle = Any  # an opaque ctypes pointer, in a binding without types

_NEVER_OFFERED = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLError_InvalidArgument,
    pynvml.NVMLError_ArgumentVersionMismatch,
)
"""Answers that will be the same at the next tick, so the question is not put again."""

_DEVICE_GONE = (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired)
"""Answers after which nothing is asked of the device: calls to a lost GPU can take seconds."""

_SHARED = "measured only for the whole GPU, which other MIG devices share"
_WHOLE_GPU = "the UUID is that of a whole GPU in MIG mode; name the MIG device by its own UUID"
_COUNTERS = ("nvlink_errors", "ecc_corrected", "ecc_uncorrected", "xids")
_MOST_XIDS = 100  # of a device between two ticks: more say nothing new
_OTHER_CLOCK_S = 3600.0
"""Samples further than this from now carry times that are not Unix times."""


def open_nvml() -> "NvmlProbe":
    """Starts NVML in this process.

    Raises:
        DriverAbsentError: there is no driver, or (`DriverBrokenError`) it cannot be talked to.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        raise DriverAbsentError("no NVIDIA driver: libnvidia-ml.so.1 not found") from None
    except pynvml.NVMLError_DriverNotLoaded:
        raise DriverAbsentError("no NVIDIA driver: its kernel module is not loaded") from None
    except pynvml.NVMLError as error:
        raise DriverBrokenError(f"NVML does not start: {error}") from None
    return NvmlProbe()


class NvmlProbe:
    """NVML, started; implements `Probe`."""

    def __init__(self) -> None:
        self.driver_version: str | None = _or_none(pynvml.nvmlSystemGetDriverVersion)

    def find(self, uuid: str) -> "NvmlDevice":
        """The GPU or MIG device with that UUID: `GPU-…`, `MIG-…`, or bare as CUDA gives it.

        NVML counts physical devices while CUDA_VISIBLE_DEVICES renumbers ours, so a device
        of a run is never looked up by its number.

        Raises:
            DeviceAbsentError: NVML does not know it or cannot reach it.
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

    def all_devices(self) -> Sequence["NvmlDevice | DeviceAbsentError"]:
        """Every GPU by NVML's number, or why it cannot be reached; MIG devices are not listed."""
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            return [DeviceAbsentError(f"NVML cannot count the GPUs: {error}")]
        return [self._numbered(number) for number in range(count)]

    def _numbered(self, number: int) -> "NvmlDevice | DeviceAbsentError":
        try:
            return NvmlDevice(pynvml.nvmlDeviceGetHandleByIndex(number))
        except pynvml.NVMLError as error:
            return DeviceAbsentError(str(error))

    def close(self) -> None:
        """Shuts NVML down; a driver that fails in this has nothing more to tell."""
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


class NvmlDevice:
    """One GPU or MIG device; implements `DeviceProbe`."""

    def __init__(self, handle: _Handle) -> None:
        self.name: str | None = _or_none(lambda: pynvml.nvmlDeviceGetName(handle))
        self.uuid: str | None = _or_none(lambda: pynvml.nvmlDeviceGetUUID(handle))
        self._handle = handle
        self._gpu = handle
        self._never_offered: dict[str, str] = {}
        self._gone: str | None = None
        self._links = 0
        self._events: Any = None
        if _or_none(lambda: pynvml.nvmlDeviceIsMigDeviceHandle(handle)):
            self._use_mig_device()
        elif (_or_none(lambda: pynvml.nvmlDeviceGetMigMode(handle)) or [0])[0]:
            self._use_gpu_in_mig_mode()
        self._pcie_limits: tuple[int | None, int | None] = (
            _or_none(lambda: int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(self._gpu))),
            _or_none(lambda: int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(self._gpu))),
        )
        self._memory_used_bytes = _Forms(self._memory_v2, self._memory_v1)
        self._power_w = _Forms(self._power_instant_w, self._power_usage_w)
        self._temperature_c = _Forms(self._temperature_v1_c, self._temperature_v0_c)
        self._reason_bits = _Forms(
            lambda: int(_function("nvmlDeviceGetCurrentClocksEventReasons")(self._gpu)),
            lambda: int(_function("nvmlDeviceGetCurrentClocksThrottleReasons")(self._gpu)),
        )
        self._nvlink_errors = _Forms(self._nvlink_error_fields, self._nvlink_error_counters)
        now_us = int(time.time() * 1e6)
        self._last_sample_us = {
            pynvml.NVML_GPU_UTILIZATION_SAMPLES: now_us,
            pynvml.NVML_TOTAL_POWER_SAMPLES: now_us,
        }

    def _use_mig_device(self) -> None:
        # A MIG device has memory of its own. Its SMs run at the clock of the GPU, behind the
        # GPU's PCIe link and heat sink, so the GPU is asked for those. Power and errors are
        # counted for the whole GPU only, and its other instances may belong to other jobs:
        # their watts and errors are not ours to report.
        for field in ("power_w", "power_samples", "energy_j", "power_limit_w", *_COUNTERS):
            self._never_offered[field] = _SHARED
        gpu = _or_none(lambda: pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._handle))
        if gpu is not None:
            self._gpu = gpu

    def _use_gpu_in_mig_mode(self) -> None:
        # A process can only train on one MIG device of such a GPU, but an old CUDA gives the
        # UUID of the whole: its sums over all MIG devices say nothing about that one.
        for field in ("memory_used_bytes", "power_w", "power_samples", "energy_j"):
            self._never_offered[field] = _WHOLE_GPU

    def read(self) -> Reading:
        """The present state; `utilization` covers the driver's own period (1/6 to 1 s)."""
        absent: dict[str, str] = {}
        return Reading(
            utilization=self._ask("utilization", self._utilization, absent),
            energy_j=self._ask("energy_j", self._energy_j, absent),
            power_w=self._ask("power_w", self._power_w, absent),
            memory_used_bytes=self._ask("memory_used_bytes", self._memory_used_bytes, absent),
            sm_clock_mhz=self._ask("sm_clock_mhz", self._sm_clock_mhz, absent),
            memory_clock_mhz=self._ask("memory_clock_mhz", self._memory_clock_mhz, absent),
            temperature_c=self._ask("temperature_c", self._temperature_c, absent),
            clock_event_reasons=self._ask("clock_event_reasons", self._reasons, absent),
            absent=absent,
        )

    def inspect(self) -> Condition:
        """The slower part of the present state."""
        absent: dict[str, str] = {}
        active = self._ask("nvlink_active", self._nvlink_active, absent)
        if active is None:
            errors = None
            absent["nvlink_errors"] = absent["nvlink_active"]
        else:
            self._links = len(active)
            errors = self._ask("nvlink_errors", self._nvlink_errors, absent)
        return Condition(
            pcie=self._ask("pcie", self._pcie, absent),
            power_limit_w=self._ask("power_limit_w", self._power_limit_w, absent),
            nvlink_active=active,
            nvlink_errors=errors,
            ecc_corrected=self._ask("ecc_corrected", self._ecc_corrected, absent),
            ecc_uncorrected=self._ask("ecc_uncorrected", self._ecc_uncorrected, absent),
            xids=self._ask("xids", self._new_xids, absent),
            # What the driver did not buffer is in the readings: no reason to name.
            utilization_samples=self._ask("utilization_samples", self._utilization_samples, {}),
            power_samples=(
                self._ask("power_samples", self._power_samples, {})
                if self._power_w.uses_older
                else None
            ),
            absent=absent,
        )

    def _ask(self, field: str, query: Callable[[], _T], absent: dict[str, str]) -> _T | None:
        # Events are the driver's, not the device's, and the loss of a GPU is one of them.
        gone = None if field == "xids" else self._gone
        reason = gone or self._never_offered.get(field)
        if reason is None:
            try:
                return query()
            except pynvml.NVMLError as error:
                reason = str(error)
                if isinstance(error, _DEVICE_GONE):
                    self._gone = reason
                elif isinstance(error, _NEVER_OFFERED):
                    self._never_offered[field] = reason
        absent[field] = reason
        return None

    def _utilization(self) -> float:
        return float(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100

    # The driver samples by itself, more evenly than we can, and keeps some seconds of it.
    def _utilization_samples(self) -> tuple[tuple[float, float], ...]:
        return self._buffered(pynvml.NVML_GPU_UTILIZATION_SAMPLES, 100)

    # Only where there is no power of the moment: from Ampere on the buffer holds smoothed values.
    def _power_samples(self) -> tuple[tuple[float, float], ...]:
        return self._buffered(pynvml.NVML_TOTAL_POWER_SAMPLES, 1000)

    def _buffered(self, kind: int, unit: float) -> tuple[tuple[float, float], ...]:
        """The driver's samples of a kind since the last time, with their Unix times."""
        try:
            value_type, samples = pynvml.nvmlDeviceGetSamples(
                self._handle, kind, self._last_sample_us[kind]
            )
        except pynvml.NVMLError_NotFound:
            return ()
        now_s = time.time()
        found = [
            (sample.timeStamp / 1e6, _member(sample.sampleValue, value_type) / unit)
            for sample in samples
            # A buffer that is not full yet ends in empty places.
            if sample.timeStamp > self._last_sample_us[kind]
        ]
        if any(abs(time_s - now_s) > _OTHER_CLOCK_S for time_s, _ in found):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if found:
            self._last_sample_us[kind] = max(sample.timeStamp for sample in samples)
        return tuple(found)

    # Version 2 leaves out what the driver itself reserves (up to about 1 GiB), as nvidia-smi
    # does; drivers before R510 only have the first version, which counts it.
    def _memory_v2(self) -> int:
        memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2)
        return int(memory.used)

    def _memory_v1(self) -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    # From Ampere on, the older call answers with the mean over the last second, most of which
    # may lie before the window that the sample is put into. The newer field does not smooth.
    def _power_instant_w(self) -> float:
        return float(self._field(pynvml.NVML_FI_DEV_POWER_INSTANT)) / 1000

    def _power_usage_w(self) -> float:
        return float(pynvml.nvmlDeviceGetPowerUsage(self._gpu)) / 1000

    def _energy_j(self) -> float:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu)) / 1000

    def _power_limit_w(self) -> float:
        return float(pynvml.nvmlDeviceGetEnforcedPowerLimit(self._gpu)) / 1000

    def _sm_clock_mhz(self) -> float:
        return float(pynvml.nvmlDeviceGetClockInfo(self._gpu, pynvml.NVML_CLOCK_SM))

    def _memory_clock_mhz(self) -> float:
        return float(pynvml.nvmlDeviceGetClockInfo(self._gpu, pynvml.NVML_CLOCK_MEM))

    def _temperature_v1_c(self) -> float:
        ask = _function("nvmlDeviceGetTemperatureV")
        return float(ask(self._gpu, pynvml.NVML_TEMPERATURE_GPU))

    def _temperature_v0_c(self) -> float:
        ask = _function("nvmlDeviceGetTemperature")
        return float(ask(self._gpu, pynvml.NVML_TEMPERATURE_GPU))

    def _reasons(self) -> tuple[str, ...]:
        return reason_names(self._reason_bits())

    def _pcie(self) -> PcieLink:
        max_generation, max_width = self._pcie_limits
        return PcieLink(
            generation=int(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(self._gpu)),
            width=int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(self._gpu)),
            max_generation=max_generation,
            max_width=max_width,
        )

    def _nvlink_active(self) -> tuple[bool, ...]:
        states: list[bool] = []
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                states.append(bool(pynvml.nvmlDeviceGetNvLinkState(self._gpu, link)))
            except (pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_NotSupported):
                # The first number that no link has; without link 0 there is no NVLink.
                if not states:
                    raise
                break
        return tuple(states)

    # Hopper and later count errors in fields; for earlier ones there is a call for each counter.
    def _nvlink_error_fields(self) -> Mapping[str, int]:
        fields = {
            "replay": pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
            "recovery": pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
            "crc": pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
        }
        asked = [(field, link) for field in fields.values() for link in range(self._links)]
        answers = dict(zip(asked, pynvml.nvmlDeviceGetFieldValues(self._gpu, asked), strict=True))

        def count(field: int, link: int) -> int:
            return int(_field_value(answers[field, link]))

        return {kind: self._over_links(count, field) for kind, field in fields.items()}

    def _nvlink_error_counters(self) -> Mapping[str, int]:
        def count(counter: int, link: int) -> int:
            return int(pynvml.nvmlDeviceGetNvLinkErrorCounter(self._gpu, link, counter))

        flit = self._over_links(count, pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT)
        return {
            "replay": self._over_links(count, pynvml.NVML_NVLINK_ERROR_DL_REPLAY),
            "recovery": self._over_links(count, pynvml.NVML_NVLINK_ERROR_DL_RECOVERY),
            "crc": flit + self._over_links(count, pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA),
        }

    def _over_links(self, count: Callable[[int, int], int], kind: int) -> int:
        """The sum over the links that count errors of a kind; an inactive one may not."""
        counts: list[int] = []
        for link in range(self._links):
            try:
                counts.append(count(kind, link))
            except _NEVER_OFFERED:
                # As long as any link may count, this is no answer of the device.
                if not counts and link == self._links - 1:
                    raise
        return sum(counts)

    def _ecc_corrected(self) -> int:
        return self._ecc(pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)

    def _ecc_uncorrected(self) -> int:
        return self._ecc(pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)

    def _ecc(self, kind: int) -> int:
        return int(pynvml.nvmlDeviceGetTotalEccErrors(self._gpu, kind, pynvml.NVML_VOLATILE_ECC))

    def _new_xids(self) -> tuple[int, ...]:
        if self._events is None:
            self._events = self._register_events()
        found: list[int] = []
        with suppress(pynvml.NVMLError_Timeout):
            while len(found) < _MOST_XIDS:
                found.append(int(pynvml.nvmlEventSetWait_v2(self._events, 0).eventData))
        return tuple(found)

    def _register_events(self) -> Any:
        # A set for each device tells whose event it is; NVML's shutdown frees them.
        events = pynvml.nvmlEventSetCreate()
        try:
            pynvml.nvmlDeviceRegisterEvents(self._gpu, pynvml.nvmlEventTypeXidCriticalError, events)
        except pynvml.NVMLError:
            pynvml.nvmlEventSetFree(events)
            raise
        return events

    def _field(self, field: int) -> float:
        return _field_value(pynvml.nvmlDeviceGetFieldValues(self._gpu, [field])[0])


class _Forms(Generic[_T]):
    """One question in its newer and its older form; the first that is answered is kept."""

    def __init__(self, newer: Callable[[], _T], older: Callable[[], _T]) -> None:
        self._newer: Callable[[], _T] | None = newer
        self._older = older

    @property
    def uses_older(self) -> bool:
        """Whether the newer form was asked and is not offered."""
        return self._newer is None

    def __call__(self) -> _T:
        if self._newer is not None:
            try:
                return self._newer()
            except _NEVER_OFFERED:
                self._newer = None
        return self._older()


def _function(name: str) -> Callable[..., Any]:
    """A call of the binding, which an older release of it may lack as an older driver may."""
    found: Callable[..., Any] | None = getattr(pynvml, name, None)
    if found is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return found


def _field_value(field: Any) -> float:
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(field.nvmlReturn)
    return _member(field.value, field.valueType)


def _member(value: Any, value_type: int) -> float:
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    number: float = getattr(value, members[value_type])
    return number


def _or_none(query: Callable[[], _T]) -> _T | None:
    try:
        return query()
    except pynvml.NVMLError:
        return None
