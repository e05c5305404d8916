"""What NVML saw of a device while a run was timed."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from gpuscale.records.record import Bytes, Count, Line, Name, Record

Share = Annotated[float, Meta(ge=0, le=1)]
Watts = Annotated[float, Meta(ge=0, le=1e6)]
Megahertz = Annotated[float, Meta(ge=0, le=1e6)]
Celsius = Annotated[float, Meta(ge=-273.15, le=1000)]
Joules = Annotated[float, Meta(ge=0, le=1e15)]
Errors = Annotated[int, Meta(ge=0)]


class PcieLink(Record, frozen=True, kw_only=True):
    """How a device is attached; None is what it did not offer."""

    generation: Count | None = None
    width: Count | None = None
    """Lanes."""
    max_generation: Count | None = None
    """The most that this device can have in this slot."""
    max_width: Count | None = None


class GpuWindow(Record, frozen=True, kw_only=True):
    """What NVML saw of one device during one window; None is what it did not offer."""

    samples: Count
    """With none, everything else is None."""
    utilization_mean: Share | None = None
    memory_used_peak_bytes: Bytes | None = None
    power_mean_w: Watts | None = None
    sm_clock_mean_mhz: Megahertz | None = None
    temperature_max_c: Celsius | None = None
    energy_j: Joules | None = None
    """From the device's counter, at the window's two ends."""
    clock_event_reasons: Mapping[Line, Share] | None = None
    """As in `GpuSummary`."""


class GpuSummary(Record, frozen=True, kw_only=True):
    """What NVML saw of one device during a run's windows; None is what it did not offer."""

    uuid: Name
    name: Line | None = None
    samples: Count
    utilization_mean: Share | None = None
    """Share of time with a kernel running, 0 to 1."""
    memory_used_peak_bytes: Bytes | None = None
    power_mean_w: Watts | None = None
    sm_clock_mean_mhz: Megahertz | None = None
    absent: tuple[Line, ...] = ()
    """Fields that could not be read, each with NVML's reason."""
    memory_clock_mean_mhz: Megahertz | None = None
    temperature_max_c: Celsius | None = None
    energy_j: Joules | None = None
    """Joules of all windows together, from the device's counter."""
    power_limit_w: Watts | None = None
    """The lowest that was enforced."""
    clock_event_reasons: Mapping[Line, Share] | None = None
    """Why clocks were held back, as nvidia-smi names it (`sw_power_cap`), each with its share
    of the samples; a reason that never held is left out, so none at all is an empty mapping."""
    pcie: PcieLink | None = None
    """The lowest generation and width between the first window's begin and the last one's end."""
    nvlink_links: Count | None = None
    nvlink_active_min: Count | None = None
    """The fewest active links at any time of the run."""
    nvlink_errors: Mapping[Line, Errors] | None = None
    """New `replay`, `recovery` and `crc` errors over all links, from warm-up to the run's end,
    like the counts below."""
    ecc_corrected: Errors | None = None
    ecc_uncorrected: Errors | None = None
    xids: tuple[Count, ...] | None = None
    """The driver's error events, in order; empty where it reported none."""
    windows: tuple[GpuWindow, ...] = ()
    """One for each window of the run, in order."""
