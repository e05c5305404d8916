"""Differences between environments; `ENVIRONMENT_FIELDS` lists the fields that are compared."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter

import msgspec

from gpuscale.base.grouping import by_key
from gpuscale.base.host import JOB_VARIABLES
from gpuscale.records import Environment, EnvironmentChange, NodeEvidence
from gpuscale.records.cause import LINKS, CauseKind
from gpuscale.records.environment import CACHE_VARIABLES
from gpuscale.records.evidence import Library

_Environments = Sequence[Environment]
_OfNodes = Sequence[tuple[str, Mapping[str, str]]]
"""Pairs of a host name and that host's known settings, a mapping of names to values."""
_MOST_NAMED = 4


class EnvironmentField(msgspec.Struct, frozen=True):
    """A property of an environment that can be compared."""

    name: str
    words: str | None = None
    """Readable name if a change in the field may explain a loss; None for other fields."""
    in_session: bool = True
    """True if all runs of a results file must have the same value."""
    on_nodes: bool = False
    """True if all nodes of a job must have the same value."""
    of: Callable[[Environment], object] | None = None
    """Function that computes the value; None to read the environment's field of the same name."""

    def value(self, environment: Environment) -> object:
        """Return the property's value in an environment; None if unknown."""
        return getattr(environment, self.name) if self.of is None else self.of(environment)


def _of_gpus(
    name: str, words: str, unit: str = "", *, in_session: bool = False
) -> EnvironmentField:
    """Return an EnvironmentField that lists all values of GPU property `name`: `250, 300 W`."""

    def value(environment: Environment) -> str | None:
        values = {getattr(gpu, name) for _, gpu in environment.placed_gpus} - {None}
        texts = (f"{value:g}" if unit else value for value in sorted(values))
        return f"{', '.join(texts)} {unit}".rstrip() if values else None

    return EnvironmentField(name, words, in_session=in_session, of=value)


# Hosts, GPU UUIDs and limits, kernels and job IDs may differ within a results file, since a killed
# job may be resumed in another job, on another node of the same kind.
ENVIRONMENT_FIELDS = (
    EnvironmentField("GPUs", of=lambda here: ", ".join(gpu.name for gpu in here.gpus) or "none"),
    EnvironmentField("nodes", of=attrgetter("node_count")),
    EnvironmentField("GPUs per node", of=attrgetter("gpus_per_node")),
    EnvironmentField("gpu_names", in_session=False, on_nodes=True),
    EnvironmentField("device"),
    EnvironmentField("torch_version", "torch", on_nodes=True),
    EnvironmentField("torchvision_version", "torchvision"),
    EnvironmentField("lightning_version", "Lightning"),
    EnvironmentField("cuda_version", "CUDA", on_nodes=True),
    EnvironmentField("cudnn_version", "cuDNN"),
    EnvironmentField("nccl_version", "NCCL", on_nodes=True),
    EnvironmentField("rocm_version", "ROCm", on_nodes=True),
    EnvironmentField("miopen_version", "MIOpen"),
    EnvironmentField("rccl_version", "RCCL", on_nodes=True),
    EnvironmentField("driver_version", "driver"),
    EnvironmentField("python_version", "Python"),
    EnvironmentField("kernel", "kernel", in_session=False),
    _of_gpus("power_limit_w", "power limit of GPUs", "W"),
    _of_gpus("application_clock_mhz", "application clock of GPUs", "MHz"),
    _of_gpus("max_clock_mhz", "highest clock of GPUs", "MHz"),
    _of_gpus("firmware", "firmware of GPUs"),
    EnvironmentField("system"),
    _of_gpus("partition", "partition modes of GPUs", in_session=True),
    EnvironmentField("cpu_model", "CPU"),
    EnvironmentField("cpu_count", "CPU cores"),
    EnvironmentField("cases_revision", "revision of the cases"),
    EnvironmentField("launcher"),
    EnvironmentField("cpu_bind", "CPU binding"),
)
IN_SESSION = tuple(field for field in ENVIRONMENT_FIELDS if field.in_session)
ON_NODES = tuple(field for field in ENVIRONMENT_FIELDS if field.on_nodes)
_STACK = [
    re.compile(part, re.IGNORECASE)
    for part in (
        *("^torch$", r"\b[nr]ccl\b", r"\b(cudnn|miopen)\b", "^(pytorch-)?triton", "aotriton"),
        *("flash[-_]attn", "transformer[-_]engine", "^(pytorch-)?lightning$", "^apex$", "^driver$"),
    )
]
"""Patterns for the names of the software that matters most for training, most important first."""
_WORDS = {field.name: field.words for field in ENVIRONMENT_FIELDS}
_COMPUTING = (CauseKind.COMPUTE, CauseKind.CLOCKS, CauseKind.SLOW_RANK)
_CAUSES_OF_CHANGES = {
    re.compile(r"[nr]ccl", re.IGNORECASE): (CauseKind.COMMUNICATION, CauseKind.FABRIC, *LINKS),
    re.compile(r"cudnn|miopen|_clock_mhz|power_limit", re.IGNORECASE): _COMPUTING,
    re.compile("cases_revision"): (),
}
"""Kinds of causes that a change can lead to, by a pattern for its name; other changes lead to any.
A new revision of the cases leads to none, since most leave the training as it was."""


def field_differences(
    one: Environment, other: Environment, fields: Sequence[EnvironmentField]
) -> Iterator[EnvironmentChange]:
    """Yield the fields whose values differ, or are known for only one of the two environments."""
    for field in fields:
        before, after = field.value(one), field.value(other)
        if before != after:
            yield EnvironmentChange(name=field.name, before=(str(before),), after=(str(after),))


def variable_changes(before: _Environments, after: _Environments) -> Iterator[EnvironmentChange]:
    """Yield a change for each environment variable with values in `after` not found in `before`."""
    names = {name for environment in (*before, *after) for name in environment.variables}
    for name in sorted(names - JOB_VARIABLES - CACHE_VARIABLES):
        sides = ([one.variables.get(name, "not set") for one in side] for side in (before, after))
        yield from new_values(name, *sides)


def script_changes(before: _Environments, after: _Environments) -> Iterator[EnvironmentChange]:
    """Yield a change for each case file or script of `before` with new content in `after`."""
    for name in sorted({name for environment in after for name in environment.scripts}):
        sides = ([e.scripts[name] for e in side if name in e.scripts] for side in (before, after))
        yield from new_values(f"script {name}", *sides)


def package_changes(before: _Environments, after: _Environments) -> Iterator[EnvironmentChange]:
    """Yield a change for each package with a new version in `after`, sorted by `stack_rank`."""
    known = [[one.packages for one in side if one.packages] for side in (before, after)]
    names = {name for side in known for packages in side for name in packages}
    for name in sorted(names, key=lambda name: (stack_rank(name), name)):
        sides = ([packages.get(name, "not installed") for packages in side] for side in known)
        yield from new_values(name, *sides)


def stack_rank(name: str) -> int:
    """Return the rank of a field, library or package by importance for training; 0 is highest."""
    name = _WORDS.get(name) or name
    return next((rank for rank, part in enumerate(_STACK) if part.search(name)), len(_STACK))


def may_lead_to(change: EnvironmentChange, kind: str) -> bool:
    """True if an environment change could explain a cause of this kind (see `CauseKind`)."""
    if kind in (CauseKind.NOT_ESTABLISHED, CauseKind.ENVIRONMENT):
        return True
    found = (kinds for name, kinds in _CAUSES_OF_CHANGES.items() if name.search(change.name))
    return all(kind in kinds for kinds in found)


def environment_changes(
    before: _Environments,
    after: _Environments,
    nodes_before: Sequence[NodeEvidence] = (),
    nodes_after: Sequence[NodeEvidence] = (),
) -> tuple[EnvironmentChange, ...]:
    """Return what is new in `after` and `nodes_after` and may explain a slowdown.

    Ignore hosts, packages and unknown values; return () if `before` or `after` is empty.
    """
    if not before or not after:
        return ()
    changes: list[EnvironmentChange] = []
    for field in ENVIRONMENT_FIELDS:
        old, new = (
            [str(value) for one in side if (value := field.value(one)) is not None]
            for side in (before, after)
        )
        if field.name == "python_version":
            # Only the minor version of an interpreter other than gpuscale's own is known.
            new = [value for value in new if not any(_is_same_python(value, one) for one in old)]
        if field.words is not None:
            changes += new_values(field.name, old, new)
    libraries = [lib for node in (*nodes_before, *nodes_after) for lib in node.libraries]
    sides = ([_facts_of(node, libraries) for node in side] for side in (nodes_before, nodes_after))
    changes += node_changes(*sides)
    changes += [*_new_gpus(before, after), *script_changes(before, after)]
    return (*changes, *variable_changes(before, after))


def _is_same_python(one: str, other: str) -> bool:
    """True if two Python versions agree as far as both are known: `3.11` and `3.11.7`."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _facts_of(node: NodeEvidence, libraries: Collection[Library]) -> tuple[str, Mapping[str, str]]:
    """Return a node's host name and known facts: settings, CPUs of ranks, library versions.

    Omit a library whose version is unknown on this node but known in `libraries` (of all nodes).
    """
    facts = dict(node.settings)
    if node.cpus:
        facts["CPUs of ranks"] = " | ".join(node.cpus)
    if node.libraries:
        unknown = {each.name for each in node.libraries if each.version is None}
        unknown &= {each.name for each in libraries if each.version}
        loaded = by_key((library.name, library.label) for library in node.libraries)
        for name in sorted({each.name for each in libraries} - unknown):
            facts[f"{name} loaded"] = ", ".join(sorted({*loaded.get(name, ("none",))}))
    return node.host, facts


def node_changes(before: _OfNodes, after: _OfNodes) -> Iterator[EnvironmentChange]:
    """Yield a change for each new value of a node setting; skip settings that `before` lacks."""
    for name in dict.fromkeys(name for _, facts in after for name in facts):
        old = {facts[name] for _, facts in before if name in facts}
        new = {facts[name] for _, facts in after if name in facts} - old
        hosts = {host for host, facts in after if name in facts}
        for value in sorted(new) if old else ():
            having = {host for host, facts in after if facts.get(name) == value}
            yield EnvironmentChange(
                name=name,
                before=tuple(sorted(old)),
                after=(value,),
                nodes=() if having == hosts else tuple(sorted(having)),
                of_nodes=len(hosts),
            )


def environment_text(change: EnvironmentChange) -> str:
    """Return a change in words: `torch 2.10 → 2.11`, or `GPU GPU-ab12… of node1 is new`.

    If only some nodes changed, the text names or counts them: `governor … → powersave on n3`.
    """
    if change.host is not None:
        return f"{change.name} {listed(change.after)} of {change.host} is new"
    name = _WORDS.get(change.name) or change.name
    if change.of_nodes is not None:
        name = name.replace("_", " ")
    text = f"{name} {listed(change.before)} → {listed(change.after)}"
    if len(change.nodes) > 1:
        return f"{text} on {len(change.nodes)} of {change.of_nodes} nodes"
    return " on ".join((text, *change.nodes))


def listed(values: Sequence[str], most: int = _MOST_NAMED, separator: str = ", ") -> str:
    """Return the first `most` values and the number of the rest: `node1, node2 and 3 more`."""
    more = len(values) - most
    shown = separator.join(values[:most])
    return f"{shown} and {more} more" if more > 0 else shown


def new_values(
    name: str, before: Sequence[str], after: Sequence[str]
) -> Iterator[EnvironmentChange]:
    """Yield one change that lists the new values in `after`, if any; none if `before` is empty."""
    new = tuple(value for value in dict.fromkeys(after) if value not in before)
    if before and new:
        yield EnvironmentChange(name=name, before=tuple(dict.fromkeys(before)), after=new)


def _new_gpus(before: _Environments, after: _Environments) -> Iterator[EnvironmentChange]:
    """Yield a change per host with new GPUs in `after`; skip hosts without GPUs in `before`."""
    uuids = by_key((each.host, gpu.uuid) for each in before for gpu in each.gpus if gpu.uuid)
    for environment in after:
        known = uuids.get(environment.host, [])
        new = tuple(gpu.uuid for gpu in environment.gpus if gpu.uuid and gpu.uuid not in known)
        if known and new:
            yield EnvironmentChange(name="GPU", before=(), after=new, host=environment.host)
