"""Export to a Chrome trace of hosts, ranks and windows, for Perfetto and chrome://tracing.

The file follows Chrome's "Trace Event Format": each host is a process, each rank a thread, and the
slices of a thread are nested. Phases are known only for the slowest rank, as sums over a window, so
each phase is drawn once per window, with its total time.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuscale.base.counters import NUMBERS
from gpuscale.base.errors import UsageError
from gpuscale.records import Results, Run, Window
from gpuscale.records.environment import gpu_places
from gpuscale.reports.phrases import gpus_text, injection_warning, set_apart
from gpuscale.store import write_report

Event = dict[str, object]
_FIRST_THREAD = 1000
"""Thread number of rank 0, above all process numbers: an equal one would mark the main thread."""


class _Mark(NamedTuple):
    """An event on a host; times are Unix times."""

    kind: str
    """Type of event in the trace format: `X` is a slice, `C` a counter, `i` an instant."""
    name: str
    host: str
    rank: int
    begin_s: float
    end_s: float
    facts: Mapping[str, object]


def write(target: Path, results: Sequence[Results]) -> str:
    """Write all runs whose start time is known; return a text that says where to open the file."""
    marks = [mark for result in results for mark in _marks(result)]
    if not marks:
        raise UsageError("no run has a start time, so there is nothing to trace")
    document = {"traceEvents": list(_events(marks)), "displayTimeUnit": "ms"}
    write_report(target, f"{json.dumps(document, separators=(',', ':'), allow_nan=False)}\n")
    return f"wrote {target}; open it in https://ui.perfetto.dev or chrome://tracing"


def _marks(result: Results) -> Iterator[_Mark]:
    labels = set_apart([run.configuration for run in result.runs])
    places = gpu_places([result.environment])
    warning = f"{injection_warning(result.injections)}, " if result.injections else ""
    for run in result.runs:
        if run.started_at_s is not None:
            row = f"{labels[run.configuration]} on {gpus_text(run.gpus)}"
            name = f"{warning}{row}, run {run.index}"
            host = result.environment.host or "unknown host"
            yield from _of_run(run, name, host, run.started_at_s)
            yield from _telemetry(run, host, places)


def _of_run(run: Run, name: str, host: str, started_at_s: float) -> Iterator[_Mark]:
    """Yield a run's events for each rank that reported, or else for the failed rank or rank 0."""
    drawn = [(window, "window") for window in run.windows]
    drawn += [(window, "window without synchronisation") for window in run.unsynced_windows]
    drawn.sort(key=lambda each: each[0].started_at_s)
    ended_at_s = started_at_s + (run.wall_s or 0.0)
    ended_at_s = max([ended_at_s, *(each.started_at_s + each.time_s for each, _ in drawn)])
    limits_s = [*(each.started_at_s for each, _ in drawn), ended_at_s][1:]
    first = host, 0
    if run.failure is not None:
        first = run.failure.host or host, run.failure.rank or 0
        why = {"kind": run.failure.kind, "message": run.failure.message}
        yield _Mark("i", "failed", *first, ended_at_s, ended_at_s, why)
    ranks = [(report.host, report.rank) for report in run.ranks_in_order] or [first]
    slowest = max(run.ranks, key=lambda report: report.pace_s or 0.0, default=None)
    for position, (its_host, rank) in enumerate(ranks):
        facts = {"batch_per_gpu": run.batch_per_gpu, "steps_per_window": run.steps_per_window}
        yield _Mark("X", name, its_host, rank, started_at_s, ended_at_s, facts)
        if run.startup_s is not None:
            end_s = min([started_at_s + run.startup_s, *(w.started_at_s for w, _ in drawn[:1])])
            yield _Mark("X", "start-up", its_host, rank, started_at_s, end_s, {})
        shows_phases = slowest is not None and slowest.rank == rank
        for (window, kind), limit_s in zip(drawn, limits_s, strict=False):
            for inside, begin_s, end_s in _inside(window, kind, position, shows_phases):
                yield _Mark("X", inside, its_host, rank, begin_s, min(end_s, limit_s), {})


def _inside(
    window: Window, kind: str, position: int, shows_phases: bool
) -> Iterator[tuple[str, float, float]]:
    """Yield a window, then its phases if the rank is the slowest, or else the rank's busy time."""
    begin_s, end_s = window.started_at_s, window.started_at_s + window.time_s
    yield kind, begin_s, end_s
    if window.phases is None or not shows_phases:
        for busy_s in window.busy_s[position : position + 1]:
            yield "busy", begin_s, min(end_s, begin_s + busy_s)
        return
    for name, time_s in msgspec.structs.asdict(window.phases).items():
        yield name.removesuffix("_s"), begin_s, min(end_s, begin_s + time_s)
        begin_s = min(end_s, begin_s + time_s)


def _telemetry(run: Run, host: str, places: Mapping[str, str]) -> Iterator[_Mark]:
    """Yield the counters of each device at the start of the window that they describe."""
    hosts = {uuid: report.host for report in run.ranks for uuid in report.device_uuids}
    for summary in run.gpu_summaries:
        where, place = hosts.get(summary.uuid, host), places.get(summary.uuid, summary.uuid)
        for window, counters in zip(run.windows, summary.windows, strict=False):
            at_s = window.started_at_s
            for counter, value in counters.values.items():
                field = NUMBERS[counter]
                shown = {field.quantity.unit or field.label: value}
                yield _Mark("C", f"{field.label}, {place}", where, 0, at_s, at_s, shown)


def _events(marks: Sequence[_Mark]) -> Iterator[Event]:
    """Yield events that name hosts and ranks, then all marks, timed in µs since the first mark."""
    hosts = {host: i for i, host in enumerate(dict.fromkeys(m.host for m in marks), start=1)}
    for host, process in hosts.items():
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": host}}
    for host, rank in dict.fromkeys((m.host, m.rank) for m in marks if m.kind != "C"):
        place = {"pid": hosts[host], "tid": _FIRST_THREAD + rank}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": f"rank {rank}"}}
    origin_s = min(mark.begin_s for mark in marks)
    for mark in marks:
        begin, end = (round((time_s - origin_s) * 1e6) for time_s in (mark.begin_s, mark.end_s))
        place = {"pid": hosts[mark.host], "tid": _FIRST_THREAD + mark.rank}
        event = {"ph": mark.kind, "name": mark.name, "ts": begin, **place, "args": mark.facts}
        if mark.kind == "i":
            yield {**event, "s": "t"}
        elif mark.kind == "C":
            yield event
        elif end > begin:
            yield {**event, "dur": end - begin}
