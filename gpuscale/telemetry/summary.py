"""From the samples file to what a run records: one summary a device, over the timed windows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuscale.records import GpuSummary
from gpuscale.run_directory import stderr_path
from gpuscale.telemetry.reduction import DeviceSamples, summarize_device
from gpuscale.telemetry.samples import Header, SampledDevice, read_samples


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
        intervals: (begin, end) of each timed window in unix time, both included, in order.

    Returns:
        One summary a device, in the order of `uuids`, with one `GpuWindow` an interval; a
        device that the driver does not offer has one with no samples and the reason. Where
        no device has a sample, no summaries and one reason.
    """
    header, ticks = read_samples(samples)
    if header is None:
        return TelemetryReport(absent=_sampler_ended(samples))
    if header.absent is not None:
        return TelemetryReport(absent=header.absent, driver_version=header.driver_version)
    samples_of = {uuid: DeviceSamples() for uuid in uuids}
    taken = 0
    for tick in ticks:
        taken += 1
        for uuid, seen in samples_of.items():
            if uuid in tick.readings:
                seen.readings.append((tick.time_s, tick.readings[uuid]))
            if uuid in tick.conditions:
                seen.conditions.append((tick.time_s, tick.conditions[uuid]))
    if not any(seen.read_in(i) for seen in samples_of.values() for i in intervals):
        reason = _no_samples(header, samples, uuids, taken=taken, windows=len(intervals))
        return TelemetryReport(absent=reason, driver_version=header.driver_version)
    unknown = SampledDevice(absent="the sampler was not asked for it")
    return TelemetryReport(
        gpu_summaries=tuple(
            summarize_device(uuid, header.devices.get(uuid, unknown), seen, intervals)
            for uuid, seen in samples_of.items()
        ),
        driver_version=header.driver_version,
    )


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
