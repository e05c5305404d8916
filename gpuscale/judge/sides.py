"""The two sides of a comparison (baseline and results): their runs by entry, and their origins."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuscale.analysis.scaling import Entry, grouped, published_points
from gpuscale.records import (
    Baseline,
    EntryKey,
    Environment,
    NodeEvidence,
    Origin,
    PointKey,
    Probe,
    Results,
    Run,
    ScalingPoint,
)
from gpuscale.records.run import nodes_of


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
    """Time at which the file was written (ISO 8601); reports use its UTC offset for all times."""
    probes: Sequence[Probe] = ()

    @property
    def nodes(self) -> list[NodeEvidence]:
        """Evidence of the nodes of all valid runs."""
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
        # If no run is valid, the side is known by its files alone.
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
        """Keys of the rows of both sides, those of the baseline first."""
        return tuple(dict.fromkeys((*self.before.by_row, *self.published, *self.after.by_row)))

    @property
    def environments(self) -> tuple[list[Environment], list[Environment]]:
        """All environments of the baseline, and all environments of the results."""
        return [*self.before.environments], [*self.after.environments]


def sides_of(baseline: Baseline, results: Sequence[Results]) -> Sides:
    """Build both sides of a comparison; several results form one side."""
    return Sides(
        baseline=baseline,
        before=side_of_baseline(baseline),
        after=side_of_results(results),
        published=published_points(baseline),
    )


def side_of_baseline(baseline: Baseline) -> Side:
    """Build one side from the measured runs of a baseline."""
    return _side(
        baseline.runs,
        [run.allocation or baseline.name for run in baseline.runs],
        files=[
            (where, [run for run in baseline.runs if run.allocation == name])
            for name, where in baseline.environments.items()
        ],
        by_allocation=baseline.environments,
        written_at=baseline.recorded_at,
        probes=baseline.probes,
    )


def side_of_results(results: Sequence[Results]) -> Side:
    """Build one side from the runs of all results."""
    placed = [
        (result.allocation_of(run), run, result.environment)
        for result in results
        for run in result.runs
    ]
    return _side(
        [run for _, run, _ in placed],
        [name for name, _, _ in placed],
        files=[(result.environment, result.runs) for result in results],
        by_allocation={name: where for name, _, where in placed},
        written_at=results[0].created_at if results else None,
        probes=[probe for result in results for probe in result.probes],
    )


def _side(
    runs: Sequence[Run],
    allocations: Sequence[str],
    *,
    files: Sequence[tuple[Environment, Sequence[Run]]],
    by_allocation: Mapping[str, Environment],
    written_at: str | None,
    probes: Sequence[Probe],
) -> Side:
    entries = grouped(runs, allocations)
    by_row: dict[EntryKey, list[Entry]] = {}
    for entry in entries:
        by_row.setdefault(entry.point.key, []).append(entry)
    made_in = [(where, frozenset(map(id, made))) for where, made in files]
    used = {entry.key: set(map(id, entry.valid)) for entry in entries}
    return Side(
        entries=entries,
        by_row=by_row,
        by_point={entry.key: entry for entry in entries if entry.logs},
        environments=[where for where, _ in files],
        environments_of={
            key: [where for where, made in made_in if not runs.isdisjoint(made)]
            for key, runs in used.items()
        },
        by_allocation=by_allocation,
        written_at=written_at,
        probes=probes,
    )
