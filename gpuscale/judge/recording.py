"""Make baselines from measured runs, and update them with approved later runs."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from gpuscale.analysis.history import left_out_of
from gpuscale.base.errors import UsageError
from gpuscale.base.units import counted
from gpuscale.records import Configuration, EntryKey, Environment, GpuDevice, Results, Run
from gpuscale.records.baseline import Baseline, BaselineChange, Hardware
from gpuscale.records.environment import UNKNOWN_HOST
from gpuscale.records.run import deduplicated, without_windows

MINIMUM_RUNS = 3
"""Minimum number of valid runs of each entry in a baseline file."""
EVERYTHING = "all"
"""Selector that chooses every proposal that can be accepted."""
_IN_HISTORY = (
    *("configuration", "gpus", "index", "batch_per_gpu", "sample_shape", "allocation"),
    "measured",
)
"""Fields of a run that are kept in a baseline's history: all except the evidence."""


class EntryId(NamedTuple):
    """Identity of a baseline entry: the properties that all its runs share."""

    configuration: Configuration
    gpus: int

    @property
    def key(self) -> EntryKey:
        """Key of the table row that the entry belongs to."""
        return EntryKey(self.configuration.case, self.configuration.strategy, self.gpus)


def entries_of(runs: Iterable[Run]) -> dict[EntryId, list[Run]]:
    """Group runs by entry, without changing their order."""
    entries: dict[EntryId, list[Run]] = {}
    for run in runs:
        entries.setdefault(EntryId(run.configuration, run.gpus), []).append(run)
    return entries


def baseline_from_results(
    results: Sequence[Results],
    *,
    name: str,
    cluster: str,
    minimum_runs: int = MINIMUM_RUNS,
    cases: Collection[str] | None = None,
    gpus: Collection[int] | None = None,
) -> Baseline:
    """Make a baseline of the valid runs in these results, given in the order of measurement.

    Runs of one scheduler job, or else of one invocation, count as one allocation. `cases`, such as
    `mnist_cnn` or `mnist_cnn/ddp`, and numbers of `gpus` limit the entries; None means no limit.
    """
    valid = entries_of(_valid_runs(results))
    if not valid:
        raise UsageError("the results hold no valid run, so there is nothing to make a baseline of")
    hardware = _common_hardware([result.environment for result in results])
    measured = entries_of(run for result in results for run in result.runs)
    entries = _chosen({entry: valid.get(entry, []) for entry in measured}, cases, gpus)
    short = [
        f"{_entry_label(entry, entries)} has {len(runs)}"
        for entry, runs in entries.items()
        if len(runs) < minimum_runs
    ]
    if short:
        raise UsageError(
            f"too few valid runs for a baseline, which needs {minimum_runs} of each: "
            f"{'; '.join(short)}; {how_to_measure_more(minimum_runs)}"
        )
    for entry, runs in entries.items():
        _validate_workload(entry, runs, entries)
    taken = tuple(run for runs in entries.values() for run in runs)
    return Baseline(
        name=name,
        cluster=cluster,
        hardware=hardware,
        runs=taken,
        environments=_environments(results, taken),
        recorded_at=measured_at(results),
        gpuscale_version=_versions(results),
        probes=tuple(probe for result in results for probe in result.probes),
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


def measured_at(results: Sequence[Results]) -> str:
    """Return the start time of the latest of these results, in ISO 8601 with a UTC offset."""
    return max((result.created_at for result in results), key=datetime.fromisoformat)


def how_to_measure_more(minimum_runs: int = MINIMUM_RUNS) -> str:
    """Return advice for an entry that has too few valid runs."""
    return (
        "give the results of all nights together, or measure as before with '--runs "
        f"{minimum_runs} --resume FILE', which makes what FILE lacks, runs that were not steady "
        "included"
    )


def results_of(baseline: Baseline) -> tuple[Results, ...]:
    """Convert the measured runs of a baseline to results, one for each allocation."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A proposed change to one baseline entry: new runs replace its runs, are added, or form it."""

    label: str
    """Row label, with the options that distinguish the entry from others of the same name."""
    entry: EntryId
    old: tuple[Run, ...]
    """Runs of the entry in the baseline; empty if the baseline lacks the entry."""
    new: tuple[Run, ...]
    obstacle: str = ""
    """Reason why the proposal cannot be accepted; empty if it can be."""

    @property
    def remark(self) -> str:
        """Remark shown to the user before the proposal is accepted; may be empty."""
        if self.obstacle:
            return f"cannot be accepted, it {self.obstacle}"
        if not self.old:
            return "new"
        before, now = ([*{run.allocation for run in runs}] for runs in (self.old, self.new))
        counts = (("runs", len(self.old), len(self.new)), ("allocations", len(before), len(now)))
        fewer = [f"{name} {then} → {left}" for name, then, left in counts if left < then]
        return f"warning: fewer than before, so it finds less: {', '.join(fewer)}" if fewer else ""

    @property
    def selectors(self) -> tuple[str, ...]:
        """Names that select this proposal on the command line, most specific first."""
        (configuration, gpus), case = self.entry, self.entry.configuration.case
        label = configuration.label
        return (f"{label}@{gpus}", f"{case}@{gpus}", label, case)


def proposals(
    baseline: Baseline, results: Sequence[Results], *, beside: bool = False
) -> tuple[Proposal, ...]:
    """Propose a change to each baseline entry whose runs differ from those in the results.

    The new runs replace the baseline's, or are added if `beside` is true. New entries come last.
    """
    entries, known = entries_of(_valid_runs(results)), entries_of(baseline.runs)
    found = []
    for entry in [entry for entry in {**known, **entries} if entry in entries]:
        old = tuple(known.get(entry, ()))
        new = (*(old if beside else ()), *entries[entry])
        _validate_workload(entry, new, entries)
        if _identities(old) != _identities(new):
            label, obstacle = _entry_label(entry, {**entries, **known}), ""
            if len(new) < MINIMUM_RUNS:
                made = counted(len(new), "valid run")
                obstacle = f"has {made}, and an entry needs {MINIMUM_RUNS}"
            found.append(Proposal(label=label, entry=entry, old=old, new=new, obstacle=obstacle))
    return tuple(found)


def accepted(found: Sequence[Proposal], selectors: Collection[str]) -> tuple[Proposal, ...]:
    """Return the proposals that `CASE[/STRATEGY][@GPUS]` selects; `all` skips unacceptable ones."""
    chosen = []
    for selector in selectors:
        named = [p for p in found if selector in (EVERYTHING, *p.selectors)]
        refused = [proposal for proposal in named if proposal.obstacle]
        if selector != EVERYTHING and not named:
            choice = ", ".join(dict.fromkeys(p.selectors[0] for p in found)) or "nothing"
            raise UsageError(f"--accept {selector}: no such change; there is {choice}")
        if selector != EVERYTHING and refused:
            why = f"{refused[0].label} {refused[0].obstacle}"
            raise UsageError(f"--accept {selector}: {why}; nothing was written")
        chosen += [proposal for proposal in named if not proposal.obstacle]
    return tuple(proposal for proposal in found if proposal in chosen)


def revised(
    baseline: Baseline,
    changes: Sequence[Proposal],
    results: Sequence[Results],
    *,
    reason: str,
    at: str,
    by: str | None = None,
) -> Baseline:
    """Apply one or more proposals to a baseline; the replaced runs go into the history."""
    entries = {**entries_of(baseline.runs), **{change.entry: change.new for change in changes}}
    runs = tuple(run for made in entries.values() for run in made)
    gone_from = (change for change in changes if change.new[: len(change.old)] != change.old)
    replaced = tuple(run for change in gone_from for run in change.old)
    unused = {run.allocation for run in replaced} - {run.allocation for run in runs}
    gone = {name: where for name, where in baseline.environments.items() if name in unused}
    kept = [Run(**{name: getattr(run, name) for name in _IN_HISTORY}) for run in replaced]
    added = tuple(change.label for change in changes if not change.old)
    change = BaselineChange(
        at=at, reason=reason, by=by, replaced=tuple(kept), added=added, environments=gone
    )
    left = {name: where for name, where in baseline.environments.items() if name not in gone}
    versions = dict.fromkeys([*(baseline.gpuscale_version or "").split(", "), _versions(results)])
    moments = filter(None, [baseline.recorded_at, measured_at(results)])
    probes = tuple(probe for result in results for probe in result.probes)
    return replace(
        baseline,
        probes=probes or baseline.probes,
        runs=runs,
        environments={**left, **_environments(results, runs)},
        gpuscale_version=", ".join(filter(None, versions)),
        recorded_at=max(moments, key=datetime.fromisoformat),
        history=(*baseline.history, change),
    )


def _common_hardware(environments: Sequence[Environment]) -> Hardware:
    devices = {environment.device for environment in environments}
    gpu_names = {name for environment in environments for name in environment.gpu_names}
    cpu_models = {e.cpu_model for e in environments if e.cpu_model is not None}
    systems = {e.system for e in environments if e.system is not None}
    for found in (devices, gpu_names if devices != {"cpu"} else set(), cpu_models, systems):
        if len(found) > 1:
            raise UsageError(
                f"the results come from different hardware ({', '.join(sorted(found))}); "
                "make one baseline for each"
            )
    (device,) = devices
    system = next(iter(systems), None)
    hardware = Hardware(device=device, cpu_model=next(iter(cpu_models), None), system=system)
    if device == "cpu":
        return hardware
    # A job may see fewer GPUs than its node has, never more.
    most = max(len(environment.gpus) for environment in environments)
    return replace(hardware, gpu_name=next(iter(gpu_names), None), gpus_per_node=most or None)


def _chosen(
    entries: Mapping[EntryId, list[Run]],
    cases: Collection[str] | None,
    gpus: Collection[int] | None,
) -> dict[EntryId, list[Run]]:
    chosen = {
        entry: runs
        for entry, runs in entries.items()
        if (gpus is None or entry.gpus in gpus) and entry.key.is_of(cases)
    }
    where = "" if gpus is None else " on those GPUs"
    held = f"they hold {', '.join(dict.fromkeys(entry.key.label for entry in entries))}"
    for case in cases or ():
        if not any(entry.key.is_of((case,)) for entry in chosen):
            raise UsageError(f"the results hold no '{case}'{where}; {held}")
    for count in sorted({*(gpus or ())} - {entry.gpus for entry in chosen}):
        raise UsageError(f"the results hold nothing on {count} GPUs; {held}")
    return chosen


def _valid_runs(results: Sequence[Results]) -> list[Run]:
    """Return the valid runs in the form that baselines keep.

    Raises UsageError if the results contain excluded nights or injected faults.
    """
    if left_out := ", ".join(left_out_of(results)):
        raise UsageError(
            f"left out: {left_out}; nothing is compared with such a night before 'gpuscale "
            "leave-out --undo NIGHT' takes it back"
        )
    injections = dict.fromkeys(text for result in results for text in result.injections)
    if injections:
        raise UsageError(
            f"the results have faults made on purpose ({', '.join(injections)}); a baseline is "
            "made of real ones, measured without --inject"
        )
    return [
        replace(without_windows(run), allocation=result.allocation_of(run))
        for result in results
        for run in result.runs
        if run.is_valid
    ]


def _validate_workload(entry: EntryId, runs: Sequence[Run], entries: Collection[EntryId]) -> None:
    workloads = {f"batch {run.batch_per_gpu} of shape {run.sample_shape}": run for run in runs}
    if len(workloads) > 1:
        raise UsageError(
            f"{_entry_label(entry, entries)} was measured with different samples "
            f"({', '.join(workloads)}); make one baseline for each"
        )


def _entry_label(entry: EntryId, entries: Iterable[EntryId]) -> str:
    """The entry's name, with the options that distinguish it from entries of the same name."""
    alike = (other for other in entries if other.gpus == entry.gpus)
    namesakes = [other.configuration for other in alike if other.key == entry.key]
    apart = [
        f"{name} {getattr(entry.configuration, name)}"
        for name in Configuration.__struct_fields__
        if len({getattr(namesake, name) for namesake in namesakes}) > 1
    ]
    return f"{entry.key.label} ({', '.join(apart)})" if apart else entry.key.label


def _versions(results: Sequence[Results]) -> str:
    return ", ".join(dict.fromkeys(result.gpuscale_version for result in results))


def _environments(results: Sequence[Results], runs: Iterable[Run]) -> dict[str, Environment]:
    """Return the environment of each allocation in which these runs were measured.

    Jobs that resumed a results file share the file's environment, except for job and host.
    """
    used = {run.allocation for run in runs}
    found = {result.allocation: result.environment for result in results}
    for result in results:
        for run in result.runs:
            if (name := result.allocation_of(run)) not in found:
                host = run.ranks[0].host if run.ranks else result.environment.host
                found[name] = replace(result.environment, job_id=run.allocation, host=host)
    return {allocation: where for allocation, where in found.items() if allocation in used}


def _identities(runs: Sequence[Run]) -> Counter[object]:
    return Counter((r.log_cost, r.allocation, r.batch_per_gpu, r.sample_shape) for r in runs)
