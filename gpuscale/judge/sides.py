"""The two sides of a comparison (baseline and results), with their runs, origins and outliers."""

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property

import msgspec
from msgspec import structs
from msgspec.structs import replace

from gpuscale.analysis.outliers import far_apart, outlying_allocations
from gpuscale.analysis.scaling import Entry, grouped, published_points
from gpuscale.base.grouping import by_key
from gpuscale.base.text import joined, without_options
from gpuscale.judge.baseline import baseline_from_results
from gpuscale.records import (
    Baseline,
    Configuration,
    EntryKey,
    Environment,
    GpuDevice,
    NodeEvidence,
    Origin,
    PointKey,
    Probe,
    Results,
    Run,
    ScalingPoint,
)
from gpuscale.records.run import deduplicated, nodes_of

_UNKNOWN_HOST = "unknown host"
"""Cluster name in a baseline whose host is unknown; reports omit this name."""


class Side(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All runs of one side of a comparison (baseline or results), grouped into entries."""

    entries: Sequence[Entry]
    environments: Sequence[Environment]
    """All environments: one for each results file, or for each allocation of a baseline."""
    by_allocation: Mapping[str, Environment]
    written_at: Sequence[str]
    """Creation times of the files (ISO 8601); reports use the UTC offset of the first."""
    probes: Sequence[Probe] = ()
    injections: tuple[str, ...] = ()
    """Faults injected into the runs on purpose."""
    started_as: str | None = None
    """Command that measured all results; None if unknown or if there were several."""

    @cached_property
    def by_row(self) -> Mapping[EntryKey, Sequence[Entry]]:
        """Entries by table row: case, strategy and number of GPUs."""
        return by_key((entry.key.row, entry) for entry in self.entries)

    @cached_property
    def by_point(self) -> Mapping[PointKey, Entry]:
        """Entries that have at least one valid run, by scaling point."""
        return {entry.key: entry for entry in self.entries if entry.logs}

    @property
    def runs(self) -> list[Run]:
        """All runs, valid and failed."""
        return [run for entry in self.entries for _, run in entry.placed]

    def runs_of(self, row: EntryKey, configuration: Configuration | None) -> list[Run]:
        """Return the row's runs, valid and failed, that have this configuration."""
        found = [e for e in self.by_row.get(row, ()) if e.key.configuration == configuration]
        return [run for entry in found for _, run in entry.placed]

    @property
    def nodes(self) -> list[NodeEvidence]:
        """Evidence collected on the nodes of all valid runs."""
        return nodes_of(run for entry in self.entries for run in entry.valid)

    def environments_of(self, entry: Entry) -> tuple[Environment, ...]:
        """Return the known environments in which the entry's valid runs were made."""
        return tuple(where for name in entry.runs if (where := self.by_allocation.get(name)))

    def origin_of(self, entries: Sequence[Entry]) -> Origin:
        """Return where and when these entries were measured."""
        counts = [len(entry.valid) for entry in entries if entry.logs]
        valid = [run for entry in entries for run in entry.valid]
        hosts = dict.fromkeys(rank.host for run in valid for rank in run.ranks)
        runs = (pair for entry in entries for pair in entry.runs.items())
        began = by_key((name, run.started_at_s or math.inf) for name, made in runs for run in made)
        all_starts = sorted(at for starts in began.values() for at in starts if at < math.inf)
        # If no run is valid, only the side's files show where it was measured.
        ordered = sorted(began, key=lambda name: min(began[name])) or [*self.by_allocation]
        found = {name: where for name in ordered if (where := self.by_allocation.get(name))}
        known = [*found.values()]
        written_at = next(iter(self.written_at), None)
        zone = None if written_at is None else datetime.fromisoformat(written_at).tzinfo
        times = [
            datetime.fromtimestamp(start, zone).isoformat(timespec="seconds")
            for start in (*all_starts[:1], *all_starts[-1:])
            if zone is not None
        ] or ([written_at] if written_at is not None and counts else [])
        return Origin(
            hosts=tuple(hosts) or tuple(dict.fromkeys(where.host for where in known if where.host)),
            jobs=tuple(name for name, where in found.items() if where.job_id is not None),
            began_at=times[0] if times else None,
            last_at=times[-1] if times else None,
            fewest_runs=min(counts, default=None),
            most_runs=max(counts, default=None),
            torch=tuple(dict.fromkeys(w.torch_version for w in known if w.torch_version)),
            driver=tuple(dict.fromkeys(w.driver_version for w in known if w.driver_version)),
        )


class Sides(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A baseline and the results that are compared with it."""

    baseline: Baseline
    """The baseline that defines tolerances, hardware and name; its runs are in `before`."""
    published: Mapping[EntryKey, ScalingPoint]
    before: Side
    after: Side
    is_of_nights: bool = False
    """True if the baseline was made from a history of nights."""

    @property
    def keys(self) -> tuple[EntryKey, ...]:
        """Keys of the rows of both sides, baseline rows first."""
        return tuple(dict.fromkeys((*self.before.by_row, *self.published, *self.after.by_row)))

    @cached_property
    def usual(self) -> "Sides":
        """Both sides, with outlying runs and allocations removed from the baseline."""
        left_out = set[object]()
        for key, entry in self.before.by_point.items():
            tonight = self.after.by_point.get(key)
            for name, place in outlying_runs(entry, tonight):
                left_out.add(entry.runs[name][place].identity)
            for name in outlying_allocations(usual_means(entry, tonight)):
                left_out |= {run.identity for run in entry.runs[name]}
        if not left_out:
            return self
        runs = (run for run in self.baseline.runs if run.identity not in left_out)
        baseline = structs.replace(self.baseline, runs=tuple(runs))
        return replace(self, baseline=baseline, before=side_of_baseline(baseline))


def outlying_runs(before: Entry, after: Entry | None) -> Mapping[tuple[str, int], float]:
    """Return outlying baseline runs, with their log step time minus their allocation's median.

    Keys are (allocation, index of the run in it). A baseline run is not outlying if a run in
    `after` is nearer to it than to the median, because the machine still produces such times.
    """
    tonight = [] if after is None else [log for logs in after.logs.values() for log in logs]
    found = {}
    for name, logs in before.logs.items():
        for place, apart in far_apart(logs).items():
            half_way = logs[place] - apart / 2
            if not any((log - half_way) * apart > 0 for log in tonight):
                found[name, place] = apart
    return found


def usual_logs(before: Entry, after: Entry | None) -> Mapping[str, tuple[float, ...]]:
    """Return log step times of `before` by allocation, without runs outlying beside `after`."""
    far = outlying_runs(before, after)
    return {
        name: tuple(log for place, log in enumerate(logs) if (name, place) not in far)
        for name, logs in before.logs.items()
    }


def usual_means(before: Entry, after: Entry | None) -> dict[str, float]:
    """Map a baseline entry's allocations to their mean log step times, without outlying runs."""
    return {name: statistics.fmean(logs) for name, logs in usual_logs(before, after).items()}


def sides_of(baseline: Baseline, results: Sequence[Results]) -> Sides:
    """Build both sides of a comparison: the baseline, and all results taken together."""
    return Sides(
        baseline=baseline,
        before=side_of_baseline(baseline),
        after=side_of_results(results),
        published=published_points(baseline),
    )


def side_of_baseline(baseline: Baseline) -> Side:
    """Build the baseline side of a comparison from the measured runs of a baseline."""
    return Side(
        entries=grouped([(run.allocation or baseline.name, run) for run in baseline.runs]),
        environments=[*baseline.environments.values()],
        by_allocation=baseline.environments,
        written_at=[*filter(None, [baseline.recorded_at])],
        probes=baseline.probes,
    )


def side_of_results(results: Sequence[Results]) -> Side:
    """Build the results side of a comparison from the runs of all results."""
    placed = [(result, run) for result in results for run in result.runs]
    started = {result.started_as: result.started_as for result in results}
    if len(started) > 1:
        # Commands that differ in where the results went, or in how many, measured the same.
        options = ("--results", "--resume", "--runs")
        started = {joined(without_options(shlex.split(c or ""), options)): c for c in started}
    return Side(
        entries=grouped([(result.allocation_of(run), run) for result, run in placed]),
        environments=[result.environment for result in results],
        by_allocation={result.allocation_of(run): result.environment for result, run in placed},
        written_at=[result.created_at for result in results],
        probes=[probe for result in results for probe in result.probes],
        injections=tuple(dict.fromkeys(each for r in results for each in r.injections)),
        started_as=next(iter(started.values())) if len(started) == 1 else None,
    )


def as_baseline(content: Results | Baseline, name: str) -> Baseline:
    """Return a baseline unchanged; convert results to a baseline, however few their runs."""
    if isinstance(content, Baseline):
        return content
    return baseline_of_results(deduplicated([content]), name=name)


def baseline_of_results(results: Sequence[Results], *, name: str) -> Baseline:
    """Make a temporary baseline from results for a comparison, however few their runs."""
    cluster = results[0].environment.host or _UNKNOWN_HOST
    return baseline_from_results(results, name=name, cluster=cluster, minimum_runs=0)


def results_of(baseline: Baseline) -> tuple[Results, ...]:
    """Convert a baseline's measured runs to `Results`, one record for each allocation."""
    runs = by_key((run.allocation or baseline.name, run) for run in baseline.runs)
    hardware = baseline.hardware
    count = (hardware.gpus_per_node or 1) if hardware.gpu_name else 0
    gpus = tuple(GpuDevice(index=index, name=hardware.gpu_name or "") for index in range(count))
    unknown = Environment(device=hardware.device, cpu_model=hardware.cpu_model, gpus=gpus)
    return tuple(
        Results(
            created_at=baseline.recorded_at or "1970-01-01T00:00:00+00:00",
            gpuscale_version=baseline.gpuscale_version or "unknown",
            environment=structs.replace(baseline.environments.get(name, unknown), job_id=name),
            runs=tuple(made),
        )
        for name, made in runs.items()
    )


def machine_label(baseline: Baseline) -> str:
    """Return a label for the baseline's machine, such as `ARC4, 4× V100`."""
    cluster, hardware = baseline.cluster, baseline.hardware
    if len(labels := {where.hardware_label for where in baseline.environments.values()}) == 1:
        (machine,) = labels
    elif hardware.system is None and hardware.gpu_name and hardware.gpus_per_node:
        machine = f"{hardware.gpus_per_node}× {hardware.gpu_name} per node"
    else:
        machine = hardware.system or hardware.gpu_name or hardware.cpu_model or ""
    return ", ".join(filter(None, ("" if cluster == _UNKNOWN_HOST else cluster, machine)))
