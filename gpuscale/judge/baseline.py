"""Create baselines from measured runs, and update them with approved later runs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from gpuscale.analysis.nights import left_out_of
from gpuscale.base.errors import UsageError
from gpuscale.base.grouping import by_key
from gpuscale.base.text import counted
from gpuscale.records import Configuration, Environment, Hardware, Results, Run
from gpuscale.records.baseline import Baseline, BaselineChange
from gpuscale.records.configuration import ALL_ROWS, Choice, RowMixin
from gpuscale.records.run import without_windows

MINIMUM_RUNS = 3
"""Minimum number of valid runs of each entry in a baseline file."""
HOW_TO_MEASURE_MORE = (
    f"give the results of all nights together, or measure as before with '--runs {MINIMUM_RUNS} "
    "--resume FILE', which makes the runs that FILE lacks and repeats unsteady ones"
)
TOO_WEAK = 0.2
"""A baseline or history is too weak if the smallest loss it can reveal is above this fraction."""
_IN_HISTORY = (
    *("configuration", "gpus", "index", "batch_per_gpu", "sample_shape", "allocation"),
    "measured",
)
"""Fields of a run that are kept in a baseline's history: all except the evidence."""


class EntryId(RowMixin, msgspec.Struct, frozen=True):
    """Identity of a baseline entry: the configuration and GPU count that its runs share."""

    configuration: Configuration
    gpus: int


def entries_of(runs: Iterable[Run]) -> dict[EntryId, list[Run]]:
    """Group runs by configuration and number of GPUs, keeping their order within each group."""
    return by_key((EntryId(run.configuration, run.gpus), run) for run in runs)


def baseline_from_results(
    results: Sequence[Results],
    *,
    name: str,
    cluster: str,
    minimum_runs: int = MINIMUM_RUNS,
    choice: Choice = ALL_ROWS,
) -> Baseline:
    """Make a baseline from the valid runs of the chosen entries; `results` are in time order.

    Raise UsageError if results differ in hardware or an entry has under `minimum_runs` valid runs.
    """
    if not (valid := entries_of(_valid_runs(results))):
        raise UsageError("the results hold no valid run, so there is nothing to make a baseline of")
    hardware = _common_hardware([result.environment for result in results])
    measured = entries_of(run for result in results for run in result.runs)
    choice.validate([entry.key for entry in measured])
    entries = {entry: valid.get(entry, []) for entry in measured if choice.includes(entry.key)}
    short = [
        f"{_entry_label(entry, entries)} has {len(runs)}"
        for entry, runs in entries.items()
        if len(runs) < minimum_runs
    ]
    if short:
        raise UsageError(
            f"too few valid runs for a baseline, which needs {minimum_runs} of each: "
            f"{'; '.join(short)}; {HOW_TO_MEASURE_MORE}"
        )
    taken = tuple(run for runs in entries.values() for run in runs)
    return _with_runs(Baseline(name=name, cluster=cluster, hardware=hardware), taken, results)


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A proposed change to one baseline entry: replace its runs, add runs, or create the entry."""

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
        """Remark to the user if the entry is new, shrinks or cannot be changed; otherwise empty."""
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
        gpus, used = self.entry.gpus, self.entry.configuration
        return (f"{used.label}@{gpus}", f"{used.case}@{gpus}", used.label, used.case)


def proposals(
    baseline: Baseline, results: Sequence[Results], *, add: bool = False
) -> tuple[Proposal, ...]:
    """Propose a change for each entry in the results whose runs differ from the baseline's.

    New runs replace the baseline's or, if `add` is true, join them; new entries come last.
    """
    entries, known = entries_of(_valid_runs(results)), entries_of(baseline.runs)
    found = []
    for entry in (entry for entry in {**known, **entries} if entry in entries):
        old = tuple(known.get(entry, ()))
        new = (*(old if add else ()), *entries[entry])
        if _identities(old) != _identities(new):
            label = _entry_label(entry, {**entries, **known})
            short = f"has {counted(len(new), 'valid run')}, and an entry needs {MINIMUM_RUNS}"
            obstacle = short if len(new) < MINIMUM_RUNS else ""
            found.append(Proposal(label=label, entry=entry, old=old, new=new, obstacle=obstacle))
    return tuple(found)


def revised(
    baseline: Baseline,
    changes: Sequence[Proposal],
    results: Sequence[Results],
    *,
    reason: str,
    at: str,
    by: str | None = None,
) -> Baseline:
    """Accept `changes` proposed from `results`; the baseline's history keeps the replaced runs."""
    entries = {**entries_of(baseline.runs), **{change.entry: change.new for change in changes}}
    runs = tuple(run for made in entries.values() for run in made)
    replaced = tuple(
        Run(**{name: getattr(run, name) for name in _IN_HISTORY})
        for change in changes
        if change.new[: len(change.old)] != change.old
        for run in change.old
    )
    added = tuple(change.label for change in changes if not change.old)
    change = BaselineChange(at=at, reason=reason, by=by, replaced=replaced, added=added)
    return replace(_with_runs(baseline, runs, results), history=(*baseline.history, change))


def _with_runs(baseline: Baseline, runs: tuple[Run, ...], results: Sequence[Results]) -> Baseline:
    """Return a copy of the baseline with these runs, and metadata updated from `results`."""
    used = {run.allocation for run in runs}
    found = {**baseline.environments, **_environments(results)}
    known = (baseline.gpuscale_version or "").split(", ")
    versions = dict.fromkeys([*known, *(result.gpuscale_version for result in results)])
    moments = filter(None, [baseline.recorded_at, *(result.created_at for result in results)])
    return replace(
        baseline,
        probes=tuple(probe for result in results for probe in result.probes) or baseline.probes,
        runs=runs,
        environments={name: where for name, where in found.items() if name in used},
        gpuscale_version=", ".join(filter(None, versions)),
        recorded_at=max(moments, key=datetime.fromisoformat),
    )


def _valid_runs(results: Sequence[Results]) -> list[Run]:
    """Return all valid runs; raise UsageError if a night is excluded or faults were injected."""
    if left_out := ", ".join(left_out_of(results)):
        raise UsageError(
            f"left out: {left_out}; no baseline has such a night before 'gpuscale leave-out --undo "
            "NIGHT' takes it back"
        )
    if injections := dict.fromkeys(text for result in results for text in result.injections):
        raise UsageError(
            f"the results have faults made on purpose ({', '.join(injections)}); a baseline needs "
            "real ones, measured without --inject"
        )
    return [
        without_windows(run, allocation=result.allocation_of(run))
        for result in results
        for run in result.runs
        if run.is_valid
    ]


def _entry_label(entry: EntryId, entries: Iterable[EntryId]) -> str:
    """Return the entry's label, plus any options that differ among entries of the same name."""
    namesakes = [other.configuration for other in entries if other.key == entry.key]
    apart = [
        f"{name} {getattr(entry.configuration, name)}"
        for name in Configuration.__struct_fields__
        if len({getattr(namesake, name) for namesake in namesakes}) > 1
    ]
    return f"{entry.label} ({', '.join(apart)})" if apart else entry.label


def _environments(results: Sequence[Results]) -> dict[str, Environment]:
    found = {result.allocation: result.environment for result in results}
    for result in results:
        for run in result.runs:
            # Jobs that resumed a results file share its environment, except for job and host.
            if (name := result.allocation_of(run)) not in found:
                host = run.ranks[0].host if run.ranks else result.environment.host
                found[name] = replace(result.environment, job_id=run.allocation, host=host)
    return found


def _identities(runs: Sequence[Run]) -> Counter[object]:
    return Counter((r.log_cost, r.allocation, r.batch_per_gpu, r.sample_shape) for r in runs)


def _common_hardware(environments: Sequence[Environment]) -> Hardware:
    devices = {environment.device for environment in environments}
    cpu_models = {e.cpu_model for e in environments if e.cpu_model is not None}
    systems = {e.system for e in environments if e.system is not None}
    gpu_names = {name for e in environments if e.device != "cpu" for name in e.gpu_names}
    for found in (devices, gpu_names, cpu_models, systems):
        if len(found) > 1:
            raise UsageError(
                f"the results come from different hardware ({', '.join(sorted(found))}); "
                "make one baseline for each"
            )
    # A job may see fewer GPUs than its node has, never more.
    most = max(len(environment.gpus) for environment in environments)
    return Hardware(
        device=devices.pop(),
        cpu_model=next(iter(cpu_models), None),
        system=next(iter(systems), None),
        gpu_name=next(iter(gpu_names), None),
        gpus_per_node=most if gpu_names else None,
    )
