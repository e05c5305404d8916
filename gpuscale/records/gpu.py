"""What NVML saw of a device while a run was timed."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """How a device is attached; None is what it did not offer."""

    generation: int | None = None
    width: int | None = None
    """Lanes."""
    max_generation: int | None = None
    """The most that this device can have in this slot."""
    max_width: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWindow:
    """What NVML saw of one device during one window; None is what it did not offer."""

    samples: int
    """With none, everything else is None."""
    utilization_mean: float | None = None
    memory_used_peak_bytes: int | None = None
    power_mean_w: float | None = None
    sm_clock_mean_mhz: float | None = None
    temperature_max_c: float | None = None
    energy_j: float | None = None
    """From the device's counter, at the window's two ends."""
    clock_event_reasons: Mapping[str, float] | None = None
    """As in `GpuSummary`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSummary:
    """What NVML saw of one device during a run's windows; None is what it did not offer."""

    uuid: str
    name: str | None
    samples: int
    utilization_mean: float | None
    """Share of time with a kernel running, 0 to 1."""
    memory_used_peak_bytes: int | None
    power_mean_w: float | None
    sm_clock_mean_mhz: float | None
    absent: tuple[str, ...] = ()
    """Fields that could not be read, each with NVML's reason."""
    memory_clock_mean_mhz: float | None = None
    temperature_max_c: float | None = None
    energy_j: float | None = None
    """Joules of all windows together, from the device's counter."""
    power_limit_w: float | None = None
    """The lowest that was enforced."""
    clock_event_reasons: Mapping[str, float] | None = None
    """Why clocks were held back, as nvidia-smi names it (`sw_power_cap`), each with its share
    of the samples; a reason that never held is left out, so none at all is an empty mapping."""
    pcie: PcieLink | None = None
    """The lowest generation and width between the first window's begin and the last one's end."""
    nvlink_links: int | None = None
    nvlink_active_min: int | None = None
    """The fewest active links at any time of the run."""
    nvlink_errors: Mapping[str, int] | None = None
    """New `replay`, `recovery` and `crc` errors over all links, from warm-up to the run's end,
    like the counts below."""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    xids: tuple[int, ...] | None = None
    """The driver's error events, in order; empty where it reported none."""
    windows: tuple[GpuWindow, ...] = ()
    """One for each window of the run, in order."""
