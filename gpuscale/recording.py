"""A baseline from measured runs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import NamedTuple

from gpuscale.errors import UsageError
from gpuscale.evidence import evidence_of
from gpuscale.records import (
    Baseline,
    Configuration,
    EntryKey,
    Environment,
    Hardware,
    MeasuredEntry,
    MeasuredRun,
    Results,
    Run,
)


class _Entry(NamedTuple):
    configuration: Configuration
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    run: Run
    allocation: str


def baseline_from_results(
    results: Sequence[Results], *, name: str, cluster: str, minimum_runs: int = 6
) -> Baseline:
    """The baseline that the valid runs of some results make, in the order they were measured.

    Runs are put together by configuration and number of GPUs. Those of one scheduler job (or
    of one invocation, where there was no scheduler) count as one allocation.

    Args:
        results: Of one machine; several nights make a better baseline than one.
        name: The baseline's name in every report.
        cluster: The machine, in words.
        minimum_runs: Valid runs that each entry needs.

    Raises:
        UsageError: faults made on purpose, no valid runs, too few for some entry, different
            hardware, or runs of one entry with different batch sizes or sample shapes.
    """
    injections = dict.fromkeys(text for result in results for text in result.injections)
    if injections:
        raise UsageError(
            f"the results have faults made on purpose ({', '.join(injections)}); a baseline is "
            "made of real ones, measured without --inject"
        )
    if not any(run.is_valid for result in results for run in result.runs):
        raise UsageError("the results hold no valid run, so there is nothing to make a baseline of")
    hardware = _common_hardware([result.environment for result in results])
    entries = _by_entry(results)
    _refuse_short(entries, minimum_runs)
    return Baseline(
        name=name,
        cluster=cluster,
        hardware=hardware,
        measured=tuple(_measured_entry(entry, runs, entries) for entry, runs in entries.items()),
        environments={result.allocation: result.environment for result in results},
        recorded_at=max((result.created_at for result in results), key=datetime.fromisoformat),
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


def _by_entry(results: Sequence[Results]) -> dict[_Entry, list[_Measured]]:
    entries: dict[_Entry, list[_Measured]] = {}
    for result in results:
        for run in result.runs:
            measured = entries.setdefault(_Entry(run.configuration, run.gpus), [])
            if run.is_valid:
                measured.append(_Measured(run=run, allocation=result.allocation))
    return entries


def _refuse_short(entries: dict[_Entry, list[_Measured]], minimum_runs: int) -> None:
    short = [
        f"{_label(entry, entries)} has {len(runs)}"
        for entry, runs in entries.items()
        if len(runs) < minimum_runs
    ]
    if short:
        raise UsageError(
            f"too few valid runs for a baseline, which needs {minimum_runs} of each: "
            f"{'; '.join(short)}; measure more with --runs, and give all results together"
        )


def _measured_entry(
    entry: _Entry, measured: list[_Measured], entries: dict[_Entry, list[_Measured]]
) -> MeasuredEntry:
    workloads = Counter((m.run.batch_per_gpu, m.run.sample_shape) for m in measured)
    if len(workloads) > 1:
        found = ", ".join(f"batch {batch} of shape {shape}" for batch, shape in workloads)
        raise UsageError(
            f"{_label(entry, entries)} was measured with different samples ({found}); "
            "make one baseline for each"
        )
    ((batch_per_gpu, sample_shape),) = workloads
    return MeasuredEntry(
        configuration=entry.configuration,
        gpus=entry.gpus,
        batch_per_gpu=batch_per_gpu,
        sample_shape=sample_shape,
        runs=tuple(
            MeasuredRun(
                step_time_s=m.run.median_step_time_s,
                allocation=m.allocation,
                evidence=evidence_of(m.run),
            )
            for m in measured
        ),
    )


def _label(entry: _Entry, entries: dict[_Entry, list[_Measured]]) -> str:
    """The entry's name; where other configurations share it, also what tells it apart."""
    configuration, gpus = entry
    label = EntryKey(configuration.case, configuration.strategy, gpus).label
    namesakes = [
        other.configuration
        for other in entries
        if other.gpus == gpus and other.configuration.label == configuration.label
    ]
    apart = [
        f"{field.name} {getattr(configuration, field.name)}"
        for field in fields(Configuration)
        if len({getattr(namesake, field.name) for namesake in namesakes}) > 1
    ]
    return f"{label} ({', '.join(apart)})" if apart else label
