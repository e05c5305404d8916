"""The two sides of a comparison (baseline and results): their runs by entry, and their origins."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from gpuscale.analysis.scaling import Entry, grouped, published_points
from gpuscale.judge.baseline import baseline_from_results
from gpuscale.records import (
    Baseline,
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
from gpuscale.records.environment import UNKNOWN_HOST
from gpuscale.records.run import deduplicated, nodes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The runs of one side of a comparison, by entry."""

    entries: Sequence[Entry]
    by_row: Mapping[EntryKey, Sequence[Entry]]
    by_point: Mapping[PointKey, Entry]
    """Entries with at least one valid run."""
    environments: Sequence[Environment]
    """All environments: one for each results file, or for each allocation of a baseline."""
    environments_of: Mapping[PointKey, Sequence[Environment]]
    """Environments in which the valid runs of each entry were measured."""
    by_allocation: Mapping[str, Environment]
    written_at: str | None
    """Creation time of the first file (ISO 8601); reports use its UTC offset. None if unknown."""
    probes: Sequence[Probe] = ()

    @property
    def nodes(self) -> list[NodeEvidence]:
        """Evidence collected on the nodes of all valid runs."""
        return nodes_of(run for entry in self.entries for run in entry.valid)

    def origin_of(self, entries: Iterable[Entry]) -> Origin:
        """Return where and when these entries were measured."""
        counts: list[int] = []
        began: dict[str, float] = {}
        hosts: dict[str, None] = {}
        for entry in entries:
            counts += [entry.point.valid_runs] if entry.logs else []
            for name, runs in entry.runs.items():
                hosts.update(dict.fromkeys(rank.host for run in runs for rank in run.ranks))
                starts = [run.started_at_s for run in runs if run.started_at_s is not None]
                began[name] = min([began.get(name, float("inf")), *starts])
        # If no run is valid, only the side's files show where it was measured.
        ordered = sorted(began, key=began.__getitem__) or [*self.by_allocation]
        known = [where for name in ordered if (where := self.by_allocation.get(name)) is not None]
        written_at = self.written_at
        zone = None if written_at is None else datetime.fromisoformat(written_at).tzinfo
        times = [
            datetime.fromtimestamp(start, zone).isoformat(timespec="seconds")
            for start in sorted(began.values())
            if start < float("inf") and zone is not None
        ] or ([written_at] if written_at is not None and counts else [])
        jobs = (
            name
            for name in ordered
            if name in self.by_allocation and self.by_allocation[name].job_id is not None
        )
        return Origin(
            hosts=tuple(hosts) or tuple(dict.fromkeys(where.host for where in known if where.host)),
            jobs=tuple(jobs),
            began_at=times[0] if times else None,
            last_at=times[-1] if times else None,
            fewest_runs=min(counts, default=None),
            most_runs=max(counts, default=None),
            torch=tuple(dict.fromkeys(w.torch_version for w in known if w.torch_version)),
            driver=tuple(dict.fromkeys(w.driver_version for w in known if w.driver_version)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """A baseline and the results that are compared with it."""

    baseline: Baseline
    """Source of tolerances, hardware and name; the runs of the baseline are in `before`."""
    published: Mapping[EntryKey, ScalingPoint]
    before: Side
    after: Side

    @property
    def keys(self) -> tuple[EntryKey, ...]:
        """Keys of the rows of both sides, baseline rows first."""
        return tuple(dict.fromkeys((*self.before.by_row, *self.published, *self.after.by_row)))


def sides_of(baseline: Baseline, results: Sequence[Results]) -> Sides:
    """Build both sides of a comparison: the baseline, and all results taken together."""
    return Sides(
        baseline=baseline,
        before=side_of_baseline(baseline),
        after=side_of_results(results),
        published=published_points(baseline),
    )


def side_of_baseline(baseline: Baseline) -> Side:
    """Build one side from the measured runs of a baseline."""
    known = baseline.environments
    placed = [
        (run, run.allocation or baseline.name, known.get(run.allocation or ""))
        for run in baseline.runs
    ]
    return _side(placed, [*known.values()], known, baseline.recorded_at, baseline.probes)


def side_of_results(results: Sequence[Results]) -> Side:
    """Build one side from the runs of all results."""
    placed = [
        (run, result.allocation_of(run), result.environment)
        for result in results
        for run in result.runs
    ]
    return _side(
        placed,
        [result.environment for result in results],
        {name: where for _, name, where in placed},
        results[0].created_at if results else None,
        [probe for result in results for probe in result.probes],
    )


def _side(
    placed: Sequence[tuple[Run, str, Environment | None]],
    environments: Sequence[Environment],
    by_allocation: Mapping[str, Environment],
    written_at: str | None,
    probes: Sequence[Probe],
) -> Side:
    """Build one side from its runs, each with its allocation and its environment if known."""
    entries = grouped([run for run, _, _ in placed], [name for _, name, _ in placed])
    by_row: dict[EntryKey, list[Entry]] = {}
    for entry in entries:
        by_row.setdefault(entry.point.key, []).append(entry)
    where_of = {id(run): where for run, _, where in placed if where is not None}
    found = {entry.key: [where_of.get(id(run)) for run in entry.valid] for entry in entries}
    return Side(
        entries=entries,
        by_row=by_row,
        by_point={entry.key: entry for entry in entries if entry.logs},
        environments=environments,
        environments_of={
            key: [*{id(where): where for where in used if where is not None}.values()]
            for key, used in found.items()
        },
        by_allocation=by_allocation,
        written_at=written_at,
        probes=probes,
    )


def as_baseline(content: Results | Baseline, name: str) -> Baseline:
    """Return a baseline unchanged, or make one with this name from results, even from few runs."""
    if isinstance(content, Baseline):
        return content
    return baseline_of_results(deduplicated([content]), name=name)


def baseline_of_results(results: Sequence[Results], *, name: str) -> Baseline:
    """Make a temporary baseline from results, even from few runs, to compare other results with."""
    cluster = results[0].environment.host or UNKNOWN_HOST
    return baseline_from_results(results, name=name, cluster=cluster, minimum_runs=0)


def results_of(baseline: Baseline) -> tuple[Results, ...]:
    """Convert a baseline's measured runs to one `Results` record for each allocation."""
    runs: dict[str, list[Run]] = {}
    for run in baseline.runs:
        runs.setdefault(run.allocation or baseline.name, []).append(run)
    hardware = baseline.hardware
    count = (hardware.gpus_per_node or 1) if hardware.gpu_name else 0
    gpus = tuple(GpuDevice(index=index, name=hardware.gpu_name or "") for index in range(count))
    unknown = Environment(device=hardware.device, cpu_model=hardware.cpu_model, gpus=gpus)
    return tuple(
        Results(
            created_at=baseline.recorded_at or "1970-01-01T00:00:00+00:00",
            gpuscale_version=baseline.gpuscale_version or "unknown",
            environment=replace(baseline.environments.get(name, unknown), job_id=name),
            runs=tuple(made),
        )
        for name, made in runs.items()
    )
