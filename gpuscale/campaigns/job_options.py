"""Options of `gpuscale submit` and `gpuscale fleet run` that override fields of a profile."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from gpuscale.base.errors import DecodeError, UsageError
from gpuscale.campaigns.cluster_profile import ClusterProfile
from gpuscale.records.record import from_builtins


class JobOption(NamedTuple):
    """A command-line option that overrides a field of the cluster profile."""

    place: str
    """Table and field in the profile, such as `job.partition`."""
    metavar: str
    words: str
    parse: Callable[[str], object] = str


JOB_OPTIONS: Mapping[str, JobOption] = {
    "--cases": JobOption("measure.cases", "'PATH …'", "files and folders to measure", str.split),
    "--runs": JobOption("measure.runs", "R", "runs (new processes) of each row", int),
    "--baseline": JobOption("judge.baseline", "FILE", "baseline to judge against"),
    "--partition": JobOption("job.partition", "P", "partition or queue"),
    "--account": JobOption("job.account", "A", "account or project"),
    "--nodelist": JobOption("job.nodelist", "NODES", "run on these nodes, under Slurm"),
    "--time": JobOption("job.time_limit", "HH:MM:SS", "time limit of the job"),
    "--modules": JobOption("job.modules", "'M M …'", "modules to load", str.split),
    "--gpus-per-node": JobOption(
        "node.gpus", "N", "GPUs of a node, for profiles such as generic-slurm", int
    ),
}


def with_options(profile: ClusterProfile, values: Mapping[str, object]) -> ClusterProfile:
    """Return a profile with the given `JOB_OPTIONS` applied; raise UsageError if one is invalid.

    `--cases` drops the profile's `judge.baseline`, `judge.cases` and `judge.gpus`, which belong to
    the profile's own cases. `--baseline` replaces the baseline and drops `judge.gpus`.
    """
    tables: dict[str, Any] = msgspec.to_builtins(profile)
    given = {name: values[name] for name in JOB_OPTIONS if values.get(name) not in (None, [])}
    judge = tables.setdefault("judge", {})
    foreign = ["baseline", "cases", "gpus"] if "--cases" in given else ["gpus"]
    for name in foreign if given.keys() & {"--cases", "--baseline"} else ():
        judge.pop(name, None)
    for name, value in given.items():
        table, _, place = JOB_OPTIONS[name].place.partition(".")
        tables.setdefault(table, {})[place] = value
    try:
        return from_builtins(ClusterProfile, tables)
    except DecodeError as error:
        wrong = next(name for name in given if error.place.startswith(JOB_OPTIONS[name].place))
        raise UsageError(f"{wrong}: {error.problem}") from None
