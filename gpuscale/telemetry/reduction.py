"""From the samples of one device to what a run records of it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeVar

from gpuscale.records import GpuSummary, GpuWindow, PcieLink
from gpuscale.telemetry.energy import EnergyCounter
from gpuscale.telemetry.probe import LABELS, Condition, Reading
from gpuscale.telemetry.samples import SampledDevice

Interval = tuple[float, float]
_Number = TypeVar("_Number", int, float)


@dataclass(slots=True)
class DeviceSamples:
    """Everything that was read of one device, with the Unix time of each, in order."""

    readings: list[tuple[float, Reading]] = field(default_factory=list)
    conditions: list[tuple[float, Condition]] = field(default_factory=list)

    def utilization_in(self, intervals: Sequence[Interval]) -> float | None:
        """Mean share of time with a kernel running: the driver's own samples, else readings."""
        buffered = _inside(intervals, [c.utilization_samples for _, c in self.conditions])
        return _mean(buffered or (r.utilization for i in intervals for r in self.read_in(i)))

    def power_in(self, intervals: Sequence[Interval]) -> float | None:
        """Mean power in watts: the driver's own samples, else readings."""
        buffered = _inside(intervals, [c.power_samples for _, c in self.conditions])
        return _mean(buffered or (r.power_w for i in intervals for r in self.read_in(i)))

    def read_in(self, interval: Interval) -> list[Reading]:
        """The readings of that time, both ends included."""
        begin, end = interval
        return [reading for time_s, reading in self.readings if begin <= time_s <= end]


def summarize_device(
    uuid: str, device: SampledDevice, samples: DeviceSamples, intervals: Sequence[Interval]
) -> GpuSummary:
    """What a run records of a device.

    What changes from moment to moment counts inside `intervals` only. The state of the PCIe
    link and the power limit are read seldom, so they count from the first interval's begin to
    the last one's end; errors count from the first sample to the last.
    """
    counter = EnergyCounter(
        [(time_s, r.energy_j) for time_s, r in samples.readings if r.energy_j is not None]
    )
    by_window = [samples.read_in(interval) for interval in intervals]
    readings = [reading for window in by_window for reading in window]
    energies = [counter.between(*interval) for interval in intervals]
    known_energies = [energy for energy in energies if energy is not None]
    begin, end = intervals[0][0], intervals[-1][1]
    under_load = [c for time_s, c in samples.conditions if begin <= time_s <= end]
    conditions = [condition for _, condition in samples.conditions]
    active = [sum(c.nvlink_active) for c in conditions if c.nvlink_active is not None]
    return GpuSummary(
        uuid=uuid,
        name=device.name,
        samples=len(readings),
        utilization_mean=samples.utilization_in(intervals) if readings else None,
        memory_used_peak_bytes=_highest(r.memory_used_bytes for r in readings),
        power_mean_w=samples.power_in(intervals) if readings else None,
        sm_clock_mean_mhz=_mean(r.sm_clock_mhz for r in readings),
        absent=_absences(device, readings, under_load, conditions),
        memory_clock_mean_mhz=_mean(r.memory_clock_mhz for r in readings),
        temperature_max_c=_highest(r.temperature_c for r in readings),
        energy_j=sum(known_energies) if len(known_energies) == len(intervals) else None,
        power_limit_w=_lowest(c.power_limit_w for c in under_load),
        clock_event_reasons=_shares(readings),
        pcie=_lowest_link([c.pcie for c in under_load if c.pcie is not None]),
        nvlink_links=_highest(len(c.nvlink_active) for c in conditions if c.nvlink_active),
        nvlink_active_min=min(active, default=None),
        nvlink_errors=_new_by_kind([c.nvlink_errors for c in conditions]),
        ecc_corrected=_new([c.ecc_corrected for c in conditions]),
        ecc_uncorrected=_new([c.ecc_uncorrected for c in conditions]),
        xids=_all_xids(conditions),
        windows=tuple(
            _window(samples, *seen) for seen in zip(intervals, by_window, energies, strict=True)
        ),
    )


def _window(
    samples: DeviceSamples, interval: Interval, readings: Sequence[Reading], energy_j: float | None
) -> GpuWindow:
    if not readings:
        return GpuWindow(samples=0)
    return GpuWindow(
        samples=len(readings),
        utilization_mean=samples.utilization_in([interval]),
        memory_used_peak_bytes=_highest(r.memory_used_bytes for r in readings),
        power_mean_w=samples.power_in([interval]),
        sm_clock_mean_mhz=_mean(r.sm_clock_mhz for r in readings),
        temperature_max_c=_highest(r.temperature_c for r in readings),
        energy_j=energy_j,
        clock_event_reasons=_shares(readings),
    )


def _inside(
    intervals: Sequence[Interval], buffers: Iterable[Sequence[tuple[float, float]] | None]
) -> list[float]:
    """The values whose times lie in one of the intervals, both ends included."""
    return [
        value
        for buffer in buffers
        for time_s, value in buffer or ()
        if any(begin <= time_s <= end for begin, end in intervals)
    ]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _highest(values: Iterable[_Number | None]) -> _Number | None:
    return max((value for value in values if value is not None), default=None)


def _lowest(values: Iterable[_Number | None]) -> _Number | None:
    return min((value for value in values if value is not None), default=None)


def _shares(readings: Sequence[Reading]) -> Mapping[str, float] | None:
    known = [r.clock_event_reasons for r in readings if r.clock_event_reasons is not None]
    if not known:
        return None
    counts = Counter(reason for reasons in known for reason in reasons)
    return {reason: counts[reason] / len(known) for reason in sorted(counts)}


def _lowest_link(links: Sequence[PcieLink]) -> PcieLink | None:
    if not links:
        return None
    return PcieLink(
        generation=_lowest(link.generation for link in links),
        width=_lowest(link.width for link in links),
        max_generation=_highest(link.max_generation for link in links),
        max_width=_highest(link.max_width for link in links),
    )


def _new(counts: Sequence[int | None]) -> int | None:
    """How far a counter went up; None where it was not read twice, or began anew."""
    known = [count for count in counts if count is not None]
    if len(known) < 2 or known[-1] < known[0]:
        return None
    return known[-1] - known[0]


def _new_by_kind(counts: Sequence[Mapping[str, int] | None]) -> Mapping[str, int] | None:
    known = [count for count in counts if count is not None]
    kinds = known[0] if known else {}
    new = {kind: _new([count.get(kind) for count in known]) for kind in kinds}
    return {kind: count for kind, count in new.items() if count is not None} or None


def _all_xids(conditions: Sequence[Condition]) -> tuple[int, ...] | None:
    known = [condition.xids for condition in conditions if condition.xids is not None]
    return tuple(xid for xids in known for xid in xids) if known else None


def _absences(
    device: SampledDevice,
    readings: Sequence[Reading],
    under_load: Sequence[Condition],
    conditions: Sequence[Condition],
) -> tuple[str, ...]:
    if device.absent:
        return (f"device: {device.absent}",)
    if not readings:
        return ("device: no sample fell into the run's windows",)
    found = [*_reasons([r.absent for r in readings]), *_reasons([c.absent for c in conditions])]
    if not under_load:
        found.append("PCIe, power limit: not read between the windows' begin and end")
    return tuple(dict.fromkeys(found))


def _reasons(absent: Sequence[Mapping[str, str]]) -> Iterable[str]:
    """`power: Not Supported`, or `power: GPU is lost (in 12 of 40 samples)`."""
    for name, label in LABELS.items():
        reasons = Counter(reasons[name] for reasons in absent if name in reasons)
        for reason, count in reasons.items():
            share = "" if count == len(absent) else f" (in {count} of {len(absent)} samples)"
            yield f"{label}: {reason}{share}"
