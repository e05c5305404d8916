"""The cause behind ranks that the others wait for."""

import math
import statistics
from collections.abc import Sequence

from gpuscale.diagnose.changes import Change
from gpuscale.diagnose.computing import explaining_clocks, look_at_devices
from gpuscale.diagnose.laggards import Laggards, laggards_of
from gpuscale.diagnose.row import Row
from gpuscale.diagnose.steps import Part, Step
from gpuscale.diagnose.symptoms import Symptom
from gpuscale.diagnose.waiting import look_at_loaders
from gpuscale.diagnose.wording import (
    added,
    duration,
    laggards_name,
    laggards_short,
    symptom_lines,
)
from gpuscale.records import Cause, CauseKind


def skew_cause(change: Change, row: Row) -> Cause:
    """One rank, or a few of them, keep the others waiting."""
    found = laggards_of(row.sides.now, change.then_s)
    uuids = frozenset(uuid for rank in found.ranks for uuid in rank.device_uuids)
    hosts = tuple(dict.fromkeys(rank.host for rank in found.ranks))
    in_data_s = _skew_in_data_s(row.sides.now) - _skew_in_data_s(row.sides.then)
    clocks: tuple[Symptom, ...] = ()
    if in_data_s > change.lost_s / 2:
        kind, how = CauseKind.DATA, "late with data"
        next_step = look_at_loaders(row)
    else:
        computing = row.changes[Part.COMPUTING]
        slower = change.lost_s / computing.now_s if computing.now_s > 0 else math.inf
        clocks = explaining_clocks(row.symptoms, uuids, slower)
        kind = CauseKind.CLOCKS if clocks else CauseKind.SLOW_RANK
        how = "slow by its clocks" if clocks else "slow"
        next_step = look_at_devices(row, hosts) if hosts else _look_at_nodes()
    return Cause(
        kind=kind,
        headline=f"{laggards_short(found)} {how} {added(change.lost_s)}",
        statement=_statement(found, change, row, in_data=kind is CauseKind.DATA),
        share=change.share,
        lost_s=change.lost_s,
        scope=row.scope(change.part),
        ranks=tuple(rank.rank for rank in found.ranks),
        hosts=hosts,
        device_uuids=tuple(sorted(uuids)),
        evidence=symptom_lines(row.symptoms_on(uuids)),
        next_step=next_step,
    )


def _statement(found: Laggards, change: Change, row: Row, *, in_data: bool) -> str:
    several = len(found.ranks) > 1
    where = " with their batches" if in_data and several else " with its batches" if in_data else ""
    lag = (
        f"{'lag' if several else 'lags'} {duration(change.now_s)} a step behind the median "
        f"rank{where} (baseline: {duration(change.then_s)}), and the others wait"
    )
    if not found.ranks:
        return f"{laggards_name(found)} {lag}; it is another rank from run to run"
    return f"{laggards_name(found)} {lag} (in {found.runs} of {len(row.sides.now)} runs)"


def _look_at_nodes() -> str:
    return "look for other jobs and daemons that take turns on the hosts, and measure more runs"


def _skew_in_data_s(steps: Sequence[Step]) -> float:
    """How much of the skew is in getting batches, as a mean over runs."""
    return statistics.fmean(step.slowest.data_s - step.median.data_s for step in steps)
