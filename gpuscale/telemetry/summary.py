"""From samples to what a run records: one summary a device, over the timed windows only."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from gpuscale.records import GpuSummary
from gpuscale.telemetry.probe import Reading
from gpuscale.telemetry.samples import Header, SampledDevice, read_samples, stderr_path

_LABELS = {
    "utilization": "utilization",
    "memory_used_bytes": "memory",
    "power_w": "power",
    "sm_clock_mhz": "SM clock",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryReport:
    """What a run records of its devices."""

    gpu_summaries: tuple[GpuSummary, ...] = ()
    absent: str | None = None
    """Why there are no summaries at all; None where there are."""
    driver_version: str | None = None


def summarize(
    samples: Path, *, uuids: Sequence[str], intervals: Sequence[tuple[float, float]]
) -> TelemetryReport:
    """Reduces a samples file, whole or cut short at any point, to the times that count.

    Args:
        samples: the file that the sampler wrote, or is still writing.
        uuids: the devices of the run, as the sampler was given them.
        intervals: (begin, end) of each timed window in unix time, both included.

    Returns:
        One summary a device, in the order of `uuids`; a device that the driver does not
        offer has one with no samples and the reason. Where no device has a sample, no
        summaries and one reason.
    """
    header, ticks = read_samples(samples)
    if header is None:
        return TelemetryReport(absent=_sampler_ended(samples))
    if header.absent is not None:
        return TelemetryReport(absent=header.absent, driver_version=header.driver_version)
    readings: dict[str, list[Reading]] = {uuid: [] for uuid in uuids}
    taken = 0
    for tick in ticks:
        taken += 1
        if any(begin <= tick.time_s <= end for begin, end in intervals):
            for uuid in readings.keys() & tick.readings.keys():
                readings[uuid].append(tick.readings[uuid])
    if not any(readings.values()):
        reason = _no_samples(header, samples, uuids, taken=taken, windows=len(intervals))
        return TelemetryReport(absent=reason, driver_version=header.driver_version)
    unknown = SampledDevice(absent="the sampler was not asked for it")
    return TelemetryReport(
        gpu_summaries=tuple(
            _device_summary(uuid, header.devices.get(uuid, unknown), seen)
            for uuid, seen in readings.items()
        ),
        driver_version=header.driver_version,
    )


def _device_summary(uuid: str, device: SampledDevice, readings: Sequence[Reading]) -> GpuSummary:
    memory_used = [r.memory_used_bytes for r in readings if r.memory_used_bytes is not None]
    return GpuSummary(
        uuid=uuid,
        name=device.name,
        samples=len(readings),
        utilization_mean=_mean(r.utilization for r in readings),
        memory_used_peak_bytes=max(memory_used, default=None),
        power_mean_w=_mean(r.power_w for r in readings),
        sm_clock_mean_mhz=_mean(r.sm_clock_mhz for r in readings),
        absent=(f"device: {device.absent}",) if device.absent else _absences(readings),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _absences(readings: Sequence[Reading]) -> tuple[str, ...]:
    """`power: Not Supported`, or `power: GPU is lost (in 12 of 40 samples)`."""
    if not readings:
        return ("device: no sample fell into the run's windows",)
    found = []
    for field, label in _LABELS.items():
        reasons = Counter(r.absent[field] for r in readings if field in r.absent)
        for reason, count in reasons.items():
            share = "" if count == len(readings) else f" (in {count} of {len(readings)} samples)"
            found.append(f"{label}: {reason}{share}")
    return tuple(found)


def _no_samples(
    header: Header, samples: Path, uuids: Sequence[str], *, taken: int, windows: int
) -> str:
    """Why no device has a sample, although there is a driver."""
    if not uuids:
        return "the run used no GPU"
    reasons = [header.devices[uuid].absent for uuid in uuids if uuid in header.devices]
    if not any(reason is None for reason in reasons):
        known = dict.fromkeys(reason for reason in reasons if reason)
        return "; ".join(known) or "the sampler was not asked for the GPUs of the run"
    if not taken:
        return _sampler_ended(samples)
    if not windows:
        return "the run has no timed windows"
    return f"none of the sampler's {taken} samples fell into the run's windows"


def _sampler_ended(samples: Path) -> str:
    try:
        text = stderr_path(samples).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        text = ""
    lines = text.strip().splitlines()
    message = lines[-1].strip() if lines else "no message, as after a hang in the driver"
    return f"the GPU sampler ended before its first sample: {message}"
