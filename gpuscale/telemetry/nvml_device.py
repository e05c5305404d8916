"""One GPU or MIG device, as NVML sees it now."""

import time
from collections.abc import Callable
from typing import TypeVar

import pynvml  # type: ignore[import-untyped]

from gpuscale.records import PcieLink
from gpuscale.telemetry.clock_events import reason_names
from gpuscale.telemetry.nvml_binding import (
    NEVER_OFFERED,
    Forms,
    Handle,
    field_value,
    member,
    named,
    or_none,
)
from gpuscale.telemetry.nvml_errors import NvLinks, XidEvents, ecc_corrected, ecc_uncorrected
from gpuscale.telemetry.probe import Condition, Reading

_T = TypeVar("_T")

_DEVICE_GONE = (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired)
"""Answers after which nothing is asked of the device: calls to a lost GPU can take seconds."""

_SHARED = "measured only for the whole GPU, which other MIG devices share"
_WHOLE_GPU = "the UUID is that of a whole GPU in MIG mode; name the MIG device by its own UUID"
_COUNTERS = ("nvlink_errors", "ecc_corrected", "ecc_uncorrected", "xids")
_OTHER_CLOCK_S = 3600.0
"""Samples further than this from now carry times that are not Unix times."""


class NvmlDevice:
    """One GPU or MIG device; implements `DeviceProbe`."""

    def __init__(self, handle: Handle) -> None:
        self.name: str | None = or_none(lambda: pynvml.nvmlDeviceGetName(handle))
        self.uuid: str | None = or_none(lambda: pynvml.nvmlDeviceGetUUID(handle))
        self._handle = handle
        self._gpu = handle
        self._never_offered: dict[str, str] = {}
        self._gone: str | None = None
        if or_none(lambda: pynvml.nvmlDeviceIsMigDeviceHandle(handle)):
            self._use_mig_device()
        elif (or_none(lambda: pynvml.nvmlDeviceGetMigMode(handle)) or [0])[0]:
            self._use_gpu_in_mig_mode()
        self._pcie_limits: tuple[int | None, int | None] = (
            or_none(lambda: int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(self._gpu))),
            or_none(lambda: int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(self._gpu))),
        )
        self._memory_used_bytes = Forms(self._memory_v2, self._memory_v1)
        self._power_w = Forms(self._power_instant_w, self._power_usage_w)
        self._temperature_c = Forms(self._temperature_v1_c, self._temperature_v0_c)
        self._reason_bits = Forms(
            lambda: int(named("nvmlDeviceGetCurrentClocksEventReasons")(self._gpu)),
            lambda: int(named("nvmlDeviceGetCurrentClocksThrottleReasons")(self._gpu)),
        )
        self._links = NvLinks(self._gpu)
        self._xids = XidEvents(self._gpu)
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
        gpu = or_none(lambda: pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._handle))
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
        active = self._ask("nvlink_active", self._links.active, absent)
        if active is None:
            errors = None
            absent["nvlink_errors"] = absent["nvlink_active"]
        else:
            errors = self._ask("nvlink_errors", self._links.errors, absent)
        return Condition(
            pcie=self._ask("pcie", self._pcie, absent),
            power_limit_w=self._ask("power_limit_w", self._power_limit_w, absent),
            nvlink_active=active,
            nvlink_errors=errors,
            ecc_corrected=self._ask("ecc_corrected", lambda: ecc_corrected(self._gpu), absent),
            ecc_uncorrected=self._ask(
                "ecc_uncorrected", lambda: ecc_uncorrected(self._gpu), absent
            ),
            xids=self._ask("xids", self._xids.new, absent),
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
                elif isinstance(error, NEVER_OFFERED):
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
            (sample.timeStamp / 1e6, member(sample.sampleValue, value_type) / unit)
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
        ask = named("nvmlDeviceGetTemperatureV")
        return float(ask(self._gpu, pynvml.NVML_TEMPERATURE_GPU))

    def _temperature_v0_c(self) -> float:
        ask = named("nvmlDeviceGetTemperature")
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

    def _field(self, field: int) -> float:
        return field_value(pynvml.nvmlDeviceGetFieldValues(self._gpu, [field])[0])
