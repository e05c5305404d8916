"""The differences between environments: a new field of one is a line of `FIELDS`."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from gpuscale.base.host import VARIABLES_OF_THE_JOB
from gpuscale.records import Environment, EnvironmentChange

_Environments = Sequence[Environment]
_NOT_SET = "not set"
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Field:
    """Something about an environment that can be compared."""

    name: str
    words: str | None = None
    """For people who read why something got slower; None of what never is the reason."""
    in_session: bool = True
    """All runs of one results file have the same."""
    on_nodes: bool = False
    """All nodes of one job have the same."""
    of: Callable[[Environment], object] | None = None
    """The value; None for the environment's field of that name."""

    def value(self, environment: Environment) -> object:
        """The environment's value; None where it is not known."""
        return getattr(environment, self.name) if self.of is None else self.of(environment)


def _of_gpus(name: str, unit: str) -> Callable[[Environment], str | None]:
    """A number of the GPUs on all nodes, each value once: `250, 300 W`; None where none tells."""

    def value(here: Environment) -> str | None:
        values = {getattr(gpu, name) for _, gpu in here.placed_gpus}
        known = sorted(value for value in values if value is not None)
        return f"{', '.join(f'{value:g}' for value in known)} {unit}" if known else None

    return value


# Hosts, GPU UUIDs and limits, kernels and job numbers may differ within a results file: a job
# that was killed goes on in another job, and on another node of the same kind.
FIELDS = (
    Field("GPUs", of=lambda here: ", ".join(gpu.name for gpu in here.gpus) or "none"),
    Field("nodes", of=attrgetter("node_count")),
    Field("GPUs per node", of=attrgetter("gpus_per_node")),
    Field("gpu_names", in_session=False, on_nodes=True),
    Field("device"),
    Field("torch_version", "torch", on_nodes=True),
    Field("torchvision_version", "torchvision"),
    Field("lightning_version", "Lightning"),
    Field("cuda_version", "CUDA", on_nodes=True),
    Field("cudnn_version", "cuDNN"),
    Field("nccl_version", "NCCL", on_nodes=True),
    Field("rocm_version", "ROCm", on_nodes=True),
    Field("miopen_version", "MIOpen"),
    Field("rccl_version", "RCCL", on_nodes=True),
    Field("driver_version", "driver"),
    Field("python_version", "Python"),
    Field("kernel", "kernel", in_session=False),
    *(
        Field(name, words, in_session=False, of=_of_gpus(name, unit))
        for name, words, unit in (
            ("power_limit_w", "power limit of GPUs", "W"),
            ("application_clock_mhz", "application clock of GPUs", "MHz"),
            ("max_clock_mhz", "highest clock of GPUs", "MHz"),
        )
    ),
    Field("cpu_model", "CPU"),
    Field("cpu_count", "CPU cores"),
    Field("cases_revision", "revision of the cases"),
    Field("launcher"),
)
IN_SESSION = tuple(field for field in FIELDS if field.in_session)
ON_NODES = tuple(field for field in FIELDS if field.on_nodes)
_EXPLAINING = tuple(field for field in FIELDS if field.words is not None)
_WORDS = {field.name: field.words for field in _EXPLAINING}


def differences(
    one: Environment, other: Environment, fields: Sequence[Field]
) -> Iterator[EnvironmentChange]:
    """The fields that differ between environments that should be alike; so does an unknown one."""
    for field in fields:
        before, after = field.value(one), field.value(other)
        if before != after:
            yield EnvironmentChange(name=field.name, before=(str(before),), after=(str(after),))


def variable_changes(before: _Environments, after: _Environments) -> Iterator[EnvironmentChange]:
    """The variables that are set otherwise than in any environment before."""
    names = {name for each in (*before, *after) for name in each.variables}
    for name in sorted(names - VARIABLES_OF_THE_JOB):
        sides = ([each.variables.get(name, _NOT_SET) for each in side] for side in (before, after))
        yield from _new_values(name, *sides)


def changes(before: _Environments, after: _Environments) -> tuple[EnvironmentChange, ...]:
    """The changes that may explain a loss, but for hosts; none where a side has no environment.

    What any environment before had is no change, and neither is what a side does not know.
    """
    if not before or not after:
        return ()
    found: list[EnvironmentChange] = []
    for field in _EXPLAINING:
        old, new = (
            [str(value) for each in side if (value := field.value(each)) is not None]
            for side in (before, after)
        )
        if old:
            found += _new_values(field.name, old, new)
    return (*found, *_new_gpus(before, after), *variable_changes(before, after))


def host_changes(before: Collection[str], after: Collection[str]) -> Iterator[EnvironmentChange]:
    """The hosts that were not there before, where any is known."""
    if before:
        yield from _new_values("host", sorted(before), sorted(after))


def change_text(change: EnvironmentChange) -> str:
    """`torch 2.10 → 2.11`, or `GPU GPU-ab12… of node1 is new`."""
    if change.host is not None:
        return f"{change.name} {listed(change.after)} of {change.host} is new"
    name = _WORDS.get(change.name, change.name)
    return f"{name} {listed(change.before)} → {listed(change.after)}"


def listed(values: Sequence[str], most: int = _MOST_NAMED) -> str:
    """`node1, node2`, and how many more where they are many."""
    more = len(values) - most
    shown = ", ".join(values[:most])
    return f"{shown} and {more} more" if more > 0 else shown


def _new_values(
    name: str, before: Sequence[str], after: Sequence[str]
) -> Iterator[EnvironmentChange]:
    """One change, with each value once, where there is a value that was not there before."""
    new = tuple(value for value in dict.fromkeys(after) if value not in before)
    if new:
        yield EnvironmentChange(name=name, before=tuple(dict.fromkeys(before)), after=new)


def _new_gpus(before: _Environments, after: _Environments) -> Iterator[EnvironmentChange]:
    """Devices of the same hosts that were replaced, or are fewer or more."""
    uuids: dict[str | None, set[str]] = {}
    for each in before:
        uuids.setdefault(each.host, set()).update(gpu.uuid for gpu in each.gpus if gpu.uuid)
    for each in after:
        known = uuids.get(each.host)
        new = tuple(g.uuid for g in each.gpus if g.uuid and known and g.uuid not in known)
        if new:
            yield EnvironmentChange(name="GPU", before=(), after=new, host=each.host)
