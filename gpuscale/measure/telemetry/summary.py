"""Summarise the samples of a run: one record per device, over the timed windows."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from gpuscale.measure.run_directory import RunDirectory
from gpuscale.measure.telemetry.sampler import SampledDevice, read_samples
from gpuscale.records import GpuSummary, Run, with_measured
from gpuscale.records.gpu_and_port_counters import (
    FIELDS,
    NUMBERS,
    Field,
    Reading,
    fold,
    values_problem,
)

Interval = tuple[float, float]

_SAMPLER_ENDED = "the GPU sampler ended before its first sample, as after a hang in the driver"
_NONE_WITHIN = "no sample fell into the run's windows"


class TelemetryReport(msgspec.Struct, frozen=True):
    """Summaries of one node's GPUs in one run, or the reason why there are none."""

    gpu_summaries: tuple[GpuSummary, ...] = ()
    absent: str | None = None
    """The reason why there are no summaries; None if there are."""


def with_telemetry(run: Run, directory: RunDirectory) -> Run:
    """Return the run with GPU summaries over its timed windows, and with its metrics computed.

    Windows are timed by the clock of rank 0's node, and samples by the clock of their own node.
    Clocks in a cluster differ by a few milliseconds, little compared with a window's duration.
    """
    gpus, summaries = directory.gpus.read(), list[GpuSummary]()
    absent = [] if gpus else ["no GPU: measured on CPU"]
    windows = [(w.started_at_s, w.started_at_s + w.time_s) for w in run.windows]
    for host in gpus:
        report = summarize(directory.samples(host), windows)
        summaries += report.gpu_summaries
        if report.absent:
            absent.append(f"{host}: {report.absent}" if len(gpus) > 1 else report.absent)
    reason = "; ".join(absent) or None
    return with_measured(replace(run, gpu_summaries=tuple(summaries), telemetry_absent=reason))


def summarize(samples: Path, windows: Sequence[Interval]) -> TelemetryReport:
    """Summarise a samples file, which may be truncated, over timed windows, device by device.

    For a device that cannot be sampled, the summary gives the reason and has no samples. If
    no device has samples, the report contains only a reason. Each window is a start and an end in
    Unix time, both inclusive; windows are in chronological order.
    """
    header, ticks = read_samples(samples)
    if header is None:
        return TelemetryReport(absent=_SAMPLER_ENDED)
    devices = []
    for uuid, device in header.items():
        mine = [tick for tick in ticks if uuid in tick.readings]
        times, readings = [tick.time_s for tick in mine], [tick.readings[uuid] for tick in mine]
        devices.append(_Seen(uuid, device, windows, times, readings))
    if any(seen.in_windows for seen in devices):
        return TelemetryReport(tuple(map(_summary, devices)))
    otherwise = _NONE_WITHIN if ticks else _SAMPLER_ENDED
    reasons = dict.fromkeys(seen.device.absent or otherwise for seen in devices)
    return TelemetryReport(absent="; ".join(reasons))


class _Seen(msgspec.Struct, frozen=True):
    """All readings of one device in a run, with their Unix times and the run's timed windows."""

    uuid: str
    device: SampledDevice
    windows: Sequence[Interval]
    times: list[float]
    readings: list[Reading]

    @property
    def in_windows(self) -> list[Reading]:
        """The readings within the windows, including those exactly at either end of a window."""
        return [reading for window in self.windows for reading in self._within(*window)]

    def _within(self, begin_s: float, end_s: float) -> list[Reading]:
        return self.readings[bisect_left(self.times, begin_s) : bisect_right(self.times, end_s)]

    def counting(self, counter: Field) -> list[Reading]:
        """Return the readings over which a counter is summarised, as `Field.when` specifies."""
        if counter.when == "run":
            return self.readings
        is_load = counter.when == "load"
        return self._within(self.windows[0][0], self.windows[-1][1]) if is_load else self.in_windows

    def number(self, counter: Field) -> float | None:
        """Return the summarised value of a counter; None if unknown."""
        if counter.when == "windows" and counter.reduce == "increase":
            rises = self._rises(counter)
            return None if None in rises else fold(counter.name, rises)
        answers = (reading.answers.get(counter.moment) for reading in self.counting(counter))
        numbers = [None if answer is None else counter.take(answer) for answer in answers]
        return _increase(numbers) if counter.reduce == "increase" else fold(counter.name, numbers)

    def _rises(self, counter: Field) -> list[float | None]:
        """Return the increase of a counter in each window, interpolated at both ends of the window.

        Interpolation is needed because a window contains few readings, which are 0.1 s apart. An
        increase is None if the counter restarted, or if its readings do not span the whole window.
        """
        points = [
            (time_s, reading.answers[counter.moment])
            for time_s, reading in zip(self.times, self.readings, strict=True)
            if counter.moment in reading.answers
        ]
        return [_increase([_at(begin, points), _at(end, points)]) for begin, end in self.windows]


def _at(moment: float, points: Sequence[tuple[float, float]]) -> float | None:
    before = bisect_right(points, moment, key=lambda point: point[0]) - 1
    after = bisect_left(points, moment, key=lambda point: point[0])
    if before < 0 or after == len(points):
        return None
    (earlier, low), (later, high) = points[before], points[after]
    if earlier >= later:
        return low
    return low + (moment - earlier) / (later - earlier) * (high - low)


def _increase(counts: Sequence[float | None]) -> float | None:
    """Return the increase of a counter; None if it restarted or has fewer than two known counts."""
    known = [count for count in counts if count is not None]
    return known[-1] - known[0] if len(known) > 1 and known[-1] >= known[0] else None


def _summary(seen: _Seen) -> GpuSummary:
    readings, values = seen.in_windows, dict[str, float]()
    absent = [*_absences(seen)]
    for counter in NUMBERS.values():
        number = seen.number(counter)
        if number is not None and (problem := values_problem({counter.name: number})):
            absent.append(f"{counter.label}: {problem}")
        elif number is not None:
            values[counter.name] = number
    return GpuSummary(
        uuid=seen.uuid,
        name=seen.device.name,
        samples=len(readings),
        absent=tuple(dict.fromkeys(absent)),
        values=values,
        clock_event_reasons=_shares(readings),
    )


def _shares(readings: Sequence[Reading]) -> Mapping[str, float] | None:
    """Return the share of readings with each clock event reason; None if reasons are unknown."""
    name = "clock_event_reasons"
    known = [reading.answers[name] for reading in readings if name in reading.answers]
    if not known:
        return None
    counts = Counter(reason for reasons in known for reason in reasons)
    return {reason: counts[reason] / len(known) for reason in sorted(counts)}


def _absences(seen: _Seen) -> Iterator[str]:
    """Yield the reasons for missing counters, such as `power: GPU is lost`."""
    if seen.device.absent or not seen.in_windows:
        yield f"device: {seen.device.absent or _NONE_WITHIN}"
        return
    for counter in FIELDS:
        counting = seen.counting(counter)
        # Readings outside the windows also show whether the driver offers a counter.
        asked = counting if counter.when == "windows" else seen.readings
        asked = [reading for reading in asked if counter.moment in reading]
        for reading in asked:
            if reason := reading.absent.get(counter.moment):
                yield f"{counter.label}: {reason}"
        if asked and not any(counter.moment in reading for reading in counting):
            yield f"{counter.label}: not read between the windows' begin and end"
