"""Nights: the valid runs of each allocation in results files, and the nodes that they ran on."""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from gpuscale.analysis.shifts_and_drifts import REMEMBERED
from gpuscale.base.errors import UsageError
from gpuscale.base.grouping import by_key
from gpuscale.base.host import UNRECORDED
from gpuscale.records import Environment, EnvironmentChange, PointKey, Results, Run
from gpuscale.records.configuration import ALL_ROWS, Choice
from gpuscale.records.environment_diff import environment_changes, new_values
from gpuscale.records.run import nodes_of


class Night(msgspec.Struct, frozen=True, kw_only=True):
    """One night: the runs executed in one allocation, and the mean step time of each row."""

    allocation: str
    began_at: datetime
    folder: str
    """Name of the folder that has the results; empty if it is not that of a night."""
    environment: Environment
    runs: tuple[Run, ...]
    """Valid runs of the selected rows."""
    log_costs: Mapping[PointKey, float]
    """Mean logarithm of the step time of each row."""
    nodes: Mapping[PointKey, frozenset[str]]
    """Nodes that each row ran on, as far as known."""


def nights_of(results: Iterable[Results], choice: Choice = ALL_ROWS) -> tuple[Night, ...]:
    """Return one night for each allocation in the results, in chronological order.

    Results with injected faults and results excluded on purpose are ignored.
    """
    made = by_key(
        (result.allocation_of(run), (run, result))
        for result in results
        if not result.why_excluded
        for run in result.runs
        if run.is_valid and choice.includes(run.key)
    )
    return tuple(sorted(itertools.starmap(_night, made.items()), key=lambda night: night.began_at))


def _night(allocation: str, made: Sequence[tuple[Run, Results]]) -> Night:
    logs = by_key((PointKey.of(run), run.log_cost) for run, _ in made)
    nodes = dict.fromkeys(logs, frozenset[str]())
    for run, result in made:
        hosts = frozenset(each.host for each in run.ranks or run.nodes or result.environment.nodes)
        nodes[PointKey.of(run)] |= hosts or frozenset(filter(None, [result.environment.host]))
    return Night(
        allocation=allocation,
        began_at=min(_run_began(run, result) for run, result in made),
        folder=made[0][1].folder,
        environment=made[0][1].environment,
        runs=tuple(run for run, _ in made),
        log_costs={point: statistics.fmean(values) for point, values in logs.items()},
        nodes=nodes,
    )


def _run_began(run: Run, result: Results) -> datetime:
    if run.started_at_s is None:
        return datetime.fromisoformat(result.created_at).astimezone(UTC)
    return datetime.fromtimestamp(run.started_at_s, UTC)


def began(result: Results) -> datetime:
    """Return the start time of a file's first run, or the file's creation time if it has no run."""
    created = datetime.fromisoformat(result.created_at).astimezone(UTC)
    return min((_run_began(run, result) for run in result.runs), default=created)


def left_out_of(results: Iterable[Results]) -> tuple[str, ...]:
    """Return nights excluded on purpose, such as `2026-03-13 (cooling failure)`, earliest first.

    Nights that share a date have longer names, as in `night_names`.
    """
    ordered = sorted(results, key=began)
    names = night_names([(began(result), result.folder) for result in ordered])
    found = [(name, each.left_out) for name, each in zip(names, ordered, strict=True)]
    return tuple(dict.fromkeys(f"{name} ({reason})" for name, reason in found if reason))


def night_names(nights: Sequence[tuple[datetime, str]]) -> list[str]:
    """Return the name of each night, given its start and its folder's name (empty if none).

    The name is the date: the folder's or, without a folder, that of the start in UTC. Nights that
    share a date are named by folder, or else by time, to the second if some share a minute.
    """
    distinct = dict.fromkeys(nights)
    of_date = by_key((night[1][:10] or f"{night[0]:%Y-%m-%d}", night) for night in distinct)
    names: dict[tuple[datetime, str], str] = {}
    for day, same in of_date.items():
        moments = {moment for moment, _ in same}
        minutes = {f"{moment:%Y-%m-%d %H:%M}" for moment in moments}
        form = "%Y-%m-%d %H:%M" if len(minutes) == len(moments) else "%Y-%m-%d %H:%M:%S"
        for moment, folder in same:
            names[moment, folder] = day if len(same) == 1 else folder or f"{moment:{form}}"
    return [names[night] for night in nights]


def machine_of(nights: Sequence[Night], left_out: Sequence[str] = ()) -> str:
    """Return the nights' machine; raise UsageError if several or, listing `left_out`, if none."""
    machines: dict[str, str] = {}
    for night in nights:
        machine = night.environment
        of_cpu = "" if machine.device == UNRECORDED else "CPU"
        name = ", ".join(machine.gpu_names) or machine.cpu_model or machine.system or of_cpu
        machines.setdefault(name, f"{night.began_at:%Y-%m-%d}")
    if len(machines) > 1:
        found = "; ".join(f"{name} since {first}" for name, first in machines.items())
        raise UsageError(f"the nights are of several machines: {found}; give those of one")
    if not machines:
        left = f"; left out: {', '.join(left_out)}" if left_out else ""
        raise UsageError(f"the results hold no valid run of the chosen rows{left}")
    return next(iter(machines))


def changes_on_night(nights: Sequence[Night], night: int) -> tuple[EnvironmentChange, ...]:
    """Return the changes in the environment from the previous night to the given night."""
    before, now = nights[night - 1].environment, nights[night].environment
    nodes = (nodes_of(nights[at].runs) for at in (night - 1, night))
    hosts = new_values("host", *([where.host] if where.host else [] for where in (before, now)))
    return (*environment_changes([before], [now], *nodes), *hosts)


def lasting_changes(nights: Sequence[Night], night: int) -> tuple[EnvironmentChange, ...]:
    """Return the environment changes between the 15 nights before `night` and the latest night.

    Hosts are not compared, because a scheduler may choose different hosts every night.
    """
    before, now = nights[max(0, night - REMEMBERED) : night], nights[-1]
    environments = [each.environment for each in before]
    nodes = nodes_of(run for each in before for run in each.runs)
    return environment_changes(environments, [now.environment], nodes, nodes_of(now.runs))
