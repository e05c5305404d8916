"""What changed around the training since the baseline: software, variables, machines."""

from collections.abc import Collection, Iterator, Sequence

from gpuscale.diagnose.sides import Sides
from gpuscale.diagnose.steps import Step
from gpuscale.host import VARIABLES_OF_THE_JOB
from gpuscale.records import (
    Baseline,
    Cause,
    CauseKind,
    Environment,
    Results,
)
from gpuscale.scaling import PointKey

_FIELDS = {
    "torch_version": "torch",
    "torchvision_version": "torchvision",
    "cuda_version": "CUDA",
    "cudnn_version": "cuDNN",
    "nccl_version": "NCCL",
    "driver_version": "driver",
    "python_version": "Python",
    "kernel": "kernel",
    "cpu_model": "CPU",
    "cpu_count": "CPU cores",
    "cases_revision": "revision of the cases",
}
_MOST_NAMED = 4


def surroundings_cause(
    reference: PointKey, baseline: Baseline, results: Sequence[Results], sides: Sides
) -> Cause | None:
    """What is different around a row's runs; that alone does not make it the cause."""
    allocations = {run.allocation for run in baseline.runs if PointKey.of(run) == reference}
    then = [e for name, e in baseline.environments.items() if name in allocations]
    now = [
        result.environment
        for result in results
        if any(run.is_valid and PointKey.of(run) == reference for run in result.runs)
    ]
    found = (
        *environment_changes(then, now),
        *_host_changes(_hosts(then, sides.then), _hosts(now, sides.now)),
    )
    if not found:
        return None
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return Cause(
        kind=CauseKind.ENVIRONMENT,
        headline=f"changed: {found[0]}{more}",
        statement="different from the baseline, which alone makes it no cause",
        evidence=found if len(found) > 1 else (),
        next_step="measure again with the likeliest of them as it was",
    )


def environment_changes(then: Sequence[Environment], now: Sequence[Environment]) -> tuple[str, ...]:
    """Each difference but that of hosts, as `torch 2.10 → 2.11`; none where a side has none.

    What the baseline saw in any of its nights is no change, and neither is what a side does
    not know.
    """
    if not then or not now:
        return ()
    return (*_fields(then, now), *_gpus(then, now), *_variables(then, now))


def _hosts(environments: Sequence[Environment], steps: Sequence[Step]) -> frozenset[str]:
    ranks = {rank.host for step in steps for rank in step.ranks}
    return frozenset(ranks or {each.host for each in environments if each.host is not None})


def _host_changes(then: Collection[str], now: Collection[str]) -> Iterator[str]:
    """The hosts that the baseline does not know, where it knows any."""
    new = sorted(set(now) - set(then))
    if then and new:
        yield f"host {_listed(sorted(then))} → {_listed(new)}"


def _fields(then: Sequence[Environment], now: Sequence[Environment]) -> Iterator[str]:
    for field, name in _FIELDS.items():
        before, after = _values(then, field), _values(now, field)
        new = [value for value in after if value not in before]
        if before and new:
            yield f"{name} {_listed(before)} → {_listed(new)}"


def _values(environments: Sequence[Environment], field: str) -> list[str]:
    """What is known of a field, each value once."""
    known = (getattr(environment, field) for environment in environments)
    return list(dict.fromkeys(str(value) for value in known if value is not None))


def _gpus(then: Sequence[Environment], now: Sequence[Environment]) -> Iterator[str]:
    """Devices of the same hosts that were replaced, or are fewer or more."""
    uuids: dict[str | None, set[str]] = {}
    for environment in then:
        uuids.setdefault(environment.host, set()).update(g.uuid for g in environment.gpus if g.uuid)
    for environment in now:
        known = uuids.get(environment.host)
        new = [g.uuid for g in environment.gpus if g.uuid and known and g.uuid not in known]
        if new:
            yield f"GPU {_listed(new)} of {environment.host} was not in the baseline"


def _variables(then: Sequence[Environment], now: Sequence[Environment]) -> Iterator[str]:
    names = {name for environment in (*then, *now) for name in environment.variables}
    for name in sorted(names - VARIABLES_OF_THE_JOB):
        before, after = _settings(then, name), _settings(now, name)
        new = [value for value in after if value not in before]
        if new:
            yield f"{name} {_listed(before)} → {_listed(new)}"


def _settings(environments: Sequence[Environment], name: str) -> list[str]:
    return list(dict.fromkeys(each.variables.get(name, "not set") for each in environments))


def _listed(values: Sequence[str]) -> str:
    more = len(values) - _MOST_NAMED
    shown = ", ".join(values[:_MOST_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown
