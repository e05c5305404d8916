"""Baselines from measured runs: what runs of one entry share, and what a baseline keeps."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from gpuscale.errors import UsageError
from gpuscale.records import (
    Baseline,
    Configuration,
    EntryKey,
    Environment,
    GpuDevice,
    Hardware,
    Results,
    Run,
    without_windows,
)

MINIMUM_RUNS = 6
"""Valid runs that an entry needs to be judged against."""
_NO_TIME = "1970-01-01T00:00:00+00:00"


class Entry(NamedTuple):
    """The properties that the runs of one entry of a baseline share."""

    configuration: Configuration
    gpus: int

    @classmethod
    def of(cls, run: Run) -> "Entry":
        """The entry that a run belongs to."""
        return cls(run.configuration, run.gpus)

    @property
    def key(self) -> EntryKey:
        """The table row that it belongs to."""
        return EntryKey(self.configuration.case, self.configuration.strategy, self.gpus)


def entries_of(runs: Iterable[Run]) -> dict[Entry, list[Run]]:
    """The runs of each entry, in their order."""
    entries: dict[Entry, list[Run]] = {}
    for run in runs:
        entries.setdefault(Entry.of(run), []).append(run)
    return entries


def valid_runs(results: Sequence[Results]) -> list[Run]:
    """The valid runs of all results as a baseline keeps them, each with its allocation."""
    return [
        replace(without_windows(run), allocation=result.allocation_of(run))
        for result in results
        for run in result.runs
        if run.is_valid
    ]


def baseline_from_results(
    results: Sequence[Results],
    *,
    name: str,
    cluster: str,
    minimum_runs: int = MINIMUM_RUNS,
    cases: Collection[str] | None = None,
    gpus: Collection[int] | None = None,
    recorded_by: str | None = None,
    expires_on: str | None = None,
) -> Baseline:
    """The baseline that the valid runs of some results make, in the order they were measured.

    Runs are put together by configuration and number of GPUs. Those of one scheduler job (or
    of one invocation, where there was no scheduler) count as one allocation.

    Args:
        results: Of one machine; several nights make a better baseline than one.
        name: The baseline's name in every report.
        cluster: The machine, in words.
        minimum_runs: Valid runs that each entry needs.
        cases: Take only these, each as `mnist_cnn` or `mnist_cnn/ddp`; None is all.
        gpus: Take only these numbers of GPUs; None is all.
        recorded_by: Login name of whoever records it.
        expires_on: The last day on which it is valid, as `2027-05-01`; None is never.

    Raises:
        UsageError: faults made on purpose, no valid runs, too few for some entry, different
            hardware, or runs of one entry with different batch sizes or sample shapes.
    """
    refuse_injections(results)
    if not any(run.is_valid for result in results for run in result.runs):
        raise UsageError("the results hold no valid run, so there is nothing to make a baseline of")
    hardware = _common_hardware([result.environment for result in results])
    entries: dict[Entry, list[Run]] = {
        Entry.of(run): [] for result in results for run in result.runs
    } | entries_of(valid_runs(results))
    entries = _chosen(entries, cases, gpus)
    _refuse_short(entries, minimum_runs)
    for entry, runs in entries.items():
        refuse_mixed_workloads(entry, runs, entries)
    used = {run.allocation for runs in entries.values() for run in runs}
    return Baseline(
        name=name,
        cluster=cluster,
        hardware=hardware,
        runs=tuple(run for runs in entries.values() for run in runs),
        environments={
            allocation: environment
            for allocation, environment in environments_of(results).items()
            if allocation in used
        },
        recorded_at=measured_at(results),
        recorded_by=recorded_by,
        gpuscale_version=versions_of(results),
        expires_on=expires_on,
    )


def refuse_injections(results: Sequence[Results]) -> None:
    """Checks that the results are real ones.

    Raises:
        UsageError: faults were made on purpose in them.
    """
    injections = dict.fromkeys(text for result in results for text in result.injections)
    if injections:
        raise UsageError(
            f"the results have faults made on purpose ({', '.join(injections)}); a baseline is "
            "made of real ones, measured without --inject"
        )


def how_to_measure_more(minimum_runs: int = MINIMUM_RUNS) -> str:
    """What a user does about an entry that has too few valid runs."""
    return (
        f"give the results of all nights together, or go on with one of them: 'pytest … --runs "
        f"{minimum_runs} --resume FILE' makes what it lacks, runs that were not steady included"
    )


def measured_at(results: Sequence[Results]) -> str:
    """When the latest of the (at least one) results were measured: ISO 8601 with offset."""
    return max((result.created_at for result in results), key=datetime.fromisoformat)


def versions_of(results: Sequence[Results]) -> str:
    """The gpuscale that measured the results, or several of them."""
    return ", ".join(dict.fromkeys(result.gpuscale_version for result in results))


def environments_of(results: Sequence[Results]) -> dict[str, Environment]:
    """Of each allocation; a job that resumed a file found all in it the same but job and host."""
    found = {result.allocation: result.environment for result in results}
    for result in results:
        for run in result.runs:
            host = run.ranks[0].host if run.ranks else result.environment.host
            resumed = replace(result.environment, job_id=run.allocation, host=host)
            found.setdefault(result.allocation_of(run), resumed)
    return found


def refuse_mixed_workloads(entry: Entry, runs: Sequence[Run], entries: Collection[Entry]) -> None:
    """Checks that the runs of an entry have one batch size and sample shape.

    Raises:
        UsageError: they differ.
    """
    workloads = Counter((run.batch_per_gpu, run.sample_shape) for run in runs)
    if len(workloads) > 1:
        found = ", ".join(f"batch {batch} of shape {shape}" for batch, shape in workloads)
        raise UsageError(
            f"{entry_label(entry, entries)} was measured with different samples ({found}); "
            "make one baseline for each"
        )


def entry_label(entry: Entry, entries: Iterable[Entry]) -> str:
    """The entry's name; where other configurations share it, also what tells it apart."""
    configuration, gpus = entry
    label = entry.key.label
    namesakes = [
        other.configuration
        for other in entries
        if other.gpus == gpus and other.configuration.label == configuration.label
    ]
    apart = [
        f"{name} {getattr(configuration, name)}"
        for name in Configuration.__struct_fields__
        if len({getattr(namesake, name) for namesake in namesakes}) > 1
    ]
    return f"{label} ({', '.join(apart)})" if apart else label


def results_of(baseline: Baseline) -> tuple[Results, ...]:
    """The measured runs of a baseline as results, one for each allocation."""
    runs: dict[str, list[Run]] = {}
    for run in baseline.runs:
        runs.setdefault(run.allocation or baseline.name, []).append(run)
    return tuple(
        Results(
            created_at=baseline.recorded_at or _NO_TIME,
            gpuscale_version=baseline.gpuscale_version or "unknown",
            environment=replace(
                baseline.environments.get(allocation) or _bare_environment(baseline.hardware),
                job_id=allocation,
            ),
            runs=tuple(its),
        )
        for allocation, its in runs.items()
    )


def _bare_environment(hardware: Hardware) -> Environment:
    name, count = hardware.gpu_name, hardware.gpus_per_node or 1
    return Environment(
        device=hardware.device,
        cpu_model=hardware.cpu_model,
        gpus=tuple(GpuDevice(index=i, name=name) for i in range(count)) if name else (),
    )


def _common_hardware(environments: Sequence[Environment]) -> Hardware:
    devices = {environment.device for environment in environments}
    gpu_names = {name for environment in environments for name in environment.gpu_names}
    cpu_models = {e.cpu_model for e in environments if e.cpu_model is not None}
    for found in (devices, gpu_names if "cuda" in devices else set(), cpu_models):
        if len(found) > 1:
            raise UsageError(
                f"the results come from different hardware ({', '.join(sorted(found))}); "
                "make one baseline for each"
            )
    (device,) = devices
    return Hardware(
        device=device,
        gpu_name=next(iter(gpu_names)) if device == "cuda" and gpu_names else None,
        gpus_per_node=_gpus_per_node(environments) if device == "cuda" else None,
        cpu_model=next(iter(cpu_models), None),
    )


def _gpus_per_node(environments: Sequence[Environment]) -> int | None:
    # A job may see fewer GPUs than its node has, never more.
    return max(len(environment.gpus) for environment in environments) or None


def _chosen(
    entries: dict[Entry, list[Run]],
    cases: Collection[str] | None,
    gpus: Collection[int] | None,
) -> dict[Entry, list[Run]]:
    chosen = {
        entry: runs
        for entry, runs in entries.items()
        if (gpus is None or entry.gpus in gpus)
        and (cases is None or {entry.configuration.case, entry.configuration.label} & {*cases})
    }
    where = "" if gpus is None else " on those GPUs"
    for case in cases or ():
        if not any(case in (e.configuration.case, e.configuration.label) for e in chosen):
            raise UsageError(f"the results hold no '{case}'{where}; {_held(entries)}")
    for count in sorted(gpus or ()):
        if not any(entry.gpus == count for entry in chosen):
            raise UsageError(f"the results hold nothing on {count} GPUs; {_held(entries)}")
    return chosen


def _held(entries: Iterable[Entry]) -> str:
    return f"they hold {', '.join(dict.fromkeys(entry.key.label for entry in entries))}"


def _refuse_short(entries: dict[Entry, list[Run]], minimum_runs: int) -> None:
    short = [
        f"{entry_label(entry, entries)} has {len(runs)}"
        for entry, runs in entries.items()
        if len(runs) < minimum_runs
    ]
    if short:
        raise UsageError(
            f"too few valid runs for a baseline, which needs {minimum_runs} of each: "
            f"{'; '.join(short)}; {how_to_measure_more(minimum_runs)}"
        )
