"""Where and when each side of a comparison was measured."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from gpuscale.judge.compare.matching import Entry
from gpuscale.records import Baseline, Environment, Origin, Results


def origin_of_baseline(baseline: Baseline, entries: Sequence[Entry]) -> Origin:
    """The origin of a baseline's entries."""
    return _origin(entries, baseline.environments, baseline.recorded_at)


def origin_of_results(results: Sequence[Results], entries: Sequence[Entry]) -> Origin:
    """The origin of the entries of some results."""
    environments = {
        result.allocation_of(run): result.environment for result in results for run in result.runs
    }
    return _origin(entries, environments, results[0].created_at if results else None)


def _origin(
    entries: Sequence[Entry], environments: Mapping[str, Environment], moment: str | None
) -> Origin:
    """The origin of entries; `moment`, when they were written, tells the zone of their times."""
    counts = [count for entry in entries if (count := entry.point.valid_runs)]
    began: dict[str, float] = {}
    hosts: dict[str, None] = {}
    for entry in entries:
        for name, runs in entry.runs.items():
            hosts.update(dict.fromkeys(rank.host for run in runs for rank in run.ranks))
            starts = [run.started_at_s for run in runs if run.started_at_s is not None]
            began[name] = min([began.get(name, float("inf")), *starts])
    # Where no run is valid, the side is known by its files alone.
    ordered = sorted(began, key=began.__getitem__) or [*environments]
    known = [its for name in ordered if (its := environments.get(name)) is not None]
    zone = None if moment is None else datetime.fromisoformat(moment).tzinfo
    times = [
        datetime.fromtimestamp(its, zone).isoformat(timespec="seconds")
        for its in sorted(began.values())
        if its < float("inf") and zone is not None
    ] or ([moment] if moment is not None and counts else [])
    return Origin(
        hosts=tuple(hosts) or tuple(dict.fromkeys(its.host for its in known if its.host)),
        jobs=tuple(n for n in ordered if n in environments and environments[n].job_id is not None),
        began_at=times[0] if times else None,
        last_at=times[-1] if times else None,
        fewest_runs=min(counts, default=None),
        most_runs=max(counts, default=None),
        torch=tuple(dict.fromkeys(its.torch_version for its in known if its.torch_version)),
        driver=tuple(dict.fromkeys(its.driver_version for its in known if its.driver_version)),
    )
