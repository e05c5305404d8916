"""The two sides of a comparison (baseline and results): runs by entry, origins, and machines."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from msgspec.structs import replace

from gpuscale.analysis.scaling import Entry, grouped, published_points
from gpuscale.base.grouping import by_key
from gpuscale.judge.baseline import baseline_from_results
from gpuscale.records import (
    Baseline,
    Configuration,
    EntryKey,
    Environment,
    GpuDevice,
    Hardware,
    NodeEvidence,
    Origin,
    PointKey,
    Probe,
    Results,
    Run,
    ScalingPoint,
    Statement,
)
from gpuscale.records.run import deduplicated, nodes_of

_UNKNOWN_HOST = "unknown host"
"""Cluster name in a baseline whose host is unknown; reports omit this name."""
_SPELLINGS = (
    (r"^\s*\d+\s*[X×]\s+", ""),
    # Power limit, clock and PCIe generation (`300W`, `1410 MHz`, `Gen4`) do not identify a model.
    (r"\b\d+\s*(?:W|WATTS?|[MG]HZ)\b|\bGEN\s*\d\b", ""),
    (r"\bMIG\s+(\d+)G\.(\d+)GB\b", r"MIG\1X\2"),
    (r"\b(\d+)\s*(?:GB|GIB|G)\b", r"\1GB"),
    (r"\bPCI-?E\d*\b", "PCIE"),
    (r"\b(SXM|HBM)\d*\b", r"\1"),
)
"""Regular expressions that unify the spelling of GPU names, each with its replacement."""
_FORMS = frozenset({"SXM", "PCIE", "NVL"})
_VARIANT = re.compile(rf"\d+GB|HBM|{'|'.join(sorted(_FORMS))}")
# Words that distinguish models of the same number: an RTX 3090 is not an RTX 3090 Ti.
_QUALIFIERS = frozenset({"TI", "SUPER", "ADA", "PRO", "MAX", "LAPTOP"})
_VENDOR = frozenset(
    {"NVIDIA", "TESLA", "GEFORCE", "QUADRO", "AMD", "INSTINCT", "RADEON", "GPU", "GPUS", "CORE"}
    | {"TENSOR", "GENERATION", "GRAPHICS"}
)


@dataclass(frozen=True, kw_only=True)
class Side:
    """The runs of one side of a comparison, by entry."""

    entries: Sequence[Entry]
    environments: Sequence[Environment]
    """All environments: one for each results file, or for each allocation of a baseline."""
    by_allocation: Mapping[str, Environment]
    written_at: Sequence[str]
    """Creation times of the files (ISO 8601); reports use the UTC offset of the first."""
    probes: Sequence[Probe] = ()
    injections: tuple[str, ...] = ()
    """Faults injected into the runs on purpose."""

    @cached_property
    def by_row(self) -> Mapping[EntryKey, Sequence[Entry]]:
        """The entries of each row."""
        return by_key((entry.point.key, entry) for entry in self.entries)

    @cached_property
    def by_point(self) -> Mapping[PointKey, Entry]:
        """Entries with at least one valid run."""
        return {entry.key: entry for entry in self.entries if entry.logs}

    @property
    def runs(self) -> list[Run]:
        """All runs, valid and failed."""
        return [run for entry in self.entries for _, run in entry.placed]

    def runs_of(self, row: EntryKey, configuration: Configuration | None) -> list[Run]:
        """Return the runs of a row that have this configuration, valid and failed."""
        found = [e for e in self.by_row.get(row, ()) if e.key.configuration == configuration]
        return [run for entry in found for _, run in entry.placed]

    @property
    def nodes(self) -> list[NodeEvidence]:
        """Evidence collected on the nodes of all valid runs."""
        return nodes_of(run for entry in self.entries for run in entry.valid)

    def environments_of(self, entry: Entry) -> tuple[Environment, ...]:
        """Return the known environments of the allocations with valid runs of the entry."""
        return tuple(where for name in entry.runs if (where := self.by_allocation.get(name)))

    def origin_of(self, entries: Sequence[Entry]) -> Origin:
        """Return where and when these entries were measured."""
        counts = [entry.point.valid_runs for entry in entries if entry.logs]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """A baseline and the results that are compared with it."""

    baseline: Baseline
    """The baseline that defines tolerances, hardware and name; its runs are in `before`."""
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
    allocations = [run.allocation or baseline.name for run in baseline.runs]
    return Side(
        entries=grouped(baseline.runs, allocations),
        environments=[*baseline.environments.values()],
        by_allocation=baseline.environments,
        written_at=[*filter(None, [baseline.recorded_at])],
        probes=baseline.probes,
    )


def side_of_results(results: Sequence[Results]) -> Side:
    """Build one side from the runs of all results."""
    placed = [(result, run) for result in results for run in result.runs]
    allocations = [result.allocation_of(run) for result, run in placed]
    return Side(
        entries=grouped([run for _, run in placed], allocations),
        environments=[result.environment for result in results],
        by_allocation={result.allocation_of(run): result.environment for result, run in placed},
        written_at=[result.created_at for result in results],
        probes=[probe for result in results for probe in result.probes],
        injections=tuple(dict.fromkeys(each for r in results for each in r.injections)),
    )


def as_baseline(content: Results | Baseline, name: str) -> Baseline:
    """Return a baseline unchanged; turn results into one with this name, however few their runs."""
    if isinstance(content, Baseline):
        return content
    return baseline_of_results(deduplicated([content]), name=name)


def baseline_of_results(results: Sequence[Results], *, name: str) -> Baseline:
    """Make a temporary baseline for comparisons from results, however few their runs."""
    cluster = results[0].environment.host or _UNKNOWN_HOST
    return baseline_from_results(results, name=name, cluster=cluster, minimum_runs=0)


def results_of(baseline: Baseline) -> tuple[Results, ...]:
    """Convert a baseline's measured runs to one `Results` record for each allocation."""
    runs = by_key((run.allocation or baseline.name, run) for run in baseline.runs)
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


def same_gpu_model(one: str, other: str) -> bool:
    """True if two names can mean the same GPU: `A100` and `NVIDIA A100-SXM4-40GB` can.

    The model (`V100`, `RTX 3090 TI`, a MIG slice) must be the same, and the more specific name must
    include the form factor and memory of the other: `H100` matches both `H100 PCIe` and `H100 80GB
    HBM3`, which do not match each other.
    """
    model, variant = _parsed(one)
    other_model, other_variant = _parsed(other)
    return model == other_model and (variant <= other_variant or other_variant <= variant)


def _parsed(name: str) -> tuple[frozenset[str], frozenset[str]]:
    text = name.upper()
    for spelling, plain in _SPELLINGS:
        text = re.sub(spelling, plain, text)
    words = frozenset(re.findall(r"[A-Z0-9]+", text)) - _VENDOR
    variant = frozenset(word for word in words if _VARIANT.fullmatch(word))
    numbered = frozenset(w for w in words - variant if w in _QUALIFIERS or re.search(r"\d", w))
    model = numbered or words - variant
    if "HBM" in variant:
        # Drivers name an `H100 SXM5` by its memory: `H100 80GB HBM3`.
        variant = variant - {"HBM"} | (variant & _FORMS or {"SXM"})
    return model, variant


def machine_mismatch(baseline: Hardware, environments: Sequence[Environment]) -> Statement | None:
    """Return the reason why results cannot be compared with the baseline; None if they can.

    Unknown properties do not count as different.
    """
    for environment in environments:
        if other := _other_machine(baseline, environment):
            return Statement.of("other_machine", now=other[0], before=other[1])
    names = [name for environment in environments for name in environment.gpu_names]
    for name in names[1:]:
        if not same_gpu_model(names[0], name):
            return Statement.of("mixed_machines", one=names[0], other=name)
    return None


def _other_machine(baseline: Hardware, environment: Environment) -> tuple[str, str] | None:
    """Return the current and the baseline's name of hardware that differs; None if none does."""
    if environment.system != baseline.system:
        return environment.system or environment.hardware_label, baseline.system or baseline.device
    if environment.device != baseline.device:
        return environment.device, baseline.device
    if baseline.device == "cpu":
        now, then = environment.cpu_model, baseline.cpu_model
        if now and then and now.casefold().split() != then.casefold().split():
            return now, then
    elif baseline.gpu_name is not None:
        for name in environment.gpu_names:
            if not same_gpu_model(baseline.gpu_name, name):
                return name, baseline.gpu_name
    return None


def machine_label(baseline: Baseline) -> str:
    """Describe the baseline's machine, such as `ARC4, 4× V100`, as results name theirs."""
    cluster, hardware = baseline.cluster, baseline.hardware
    if len(labels := {where.hardware_label for where in baseline.environments.values()}) == 1:
        (machine,) = labels
    elif hardware.system is None and hardware.gpu_name and hardware.gpus_per_node:
        machine = f"{hardware.gpus_per_node}× {hardware.gpu_name} per node"
    else:
        machine = hardware.system or hardware.gpu_name or hardware.cpu_model or ""
    return ", ".join(filter(None, ("" if cluster == _UNKNOWN_HOST else cluster, machine)))
