"""The cause behind ranks that all compute more slowly."""

import statistics
from collections.abc import Iterator, Sequence

from gpuscale.diagnose.changes import Change
from gpuscale.diagnose.row import Row
from gpuscale.diagnose.steps import Step
from gpuscale.diagnose.symptoms import Symptom
from gpuscale.diagnose.wording import added, from_to, symptom_lines, then_and_now
from gpuscale.records import Cause, CauseKind
from gpuscale.strategies import STRATEGIES

_EXPLAINS = 0.5
"""Clocks explain a slowdown where they would make at least this part of it."""


def computing_cause(change: Change, row: Row) -> Cause:
    """Every rank, or most of them, takes longer on its own."""
    clocks = explaining_clocks(row.symptoms, row.device_uuids, change.growth)
    what = "computing takes"
    demands = STRATEGIES.get(row.configuration.strategy)
    if demands is not None and demands.inside_computing and row.sides.gpus > 1:
        what = f"computing, with {demands.inside_computing} inside it, takes"
    who = row.whose(lambda rank: rank.computing_s)
    return Cause(
        kind=CauseKind.CLOCKS if clocks else CauseKind.COMPUTE,
        headline=f"{'clocks: computing' if clocks else 'computing'} {added(change.lost_s)}",
        statement=f"{what} {then_and_now(change.then_s, change.now_s, on=who)}",
        share=change.share,
        lost_s=change.lost_s,
        scope=row.scope(change.part),
        evidence=(", ".join(_phases(row)), *symptom_lines(clocks)),
        next_step=look_at_devices(row, row.hosts),
    )


def explaining_clocks(
    symptoms: Sequence[Symptom], uuids: frozenset[str], slowdown: float
) -> tuple[Symptom, ...]:
    """What is wrong with the clocks of these devices, where that explains the slowdown.

    Args:
        symptoms: Of all devices.
        uuids: The devices that are slower; the median of them must explain it.
        slowdown: By which fraction computing takes longer.
    """
    clocks = [s for s in symptoms if s.kind is CauseKind.CLOCKS and s.uuid in uuids]
    if not uuids or not clocks:
        return ()
    drops = [max((s.slowdown or 0.0 for s in clocks if s.uuid == u), default=0.0) for u in uuids]
    return tuple(clocks) if statistics.median(drops) >= _EXPLAINS * slowdown else ()


def look_at_devices(row: Row, hosts: Sequence[str]) -> str:
    """What tells more about ranks that compute slowly there."""
    where = " and ".join(hosts) if len(hosts) < 3 else f"each of {len(hosts)} hosts"
    if row.configuration.device == "cpu":
        return f"look for other processes on {where}, and for cores that ranks share"
    return (
        f"run 'gpuscale doctor' on {where} while a training runs: it tells heat, power limits "
        "and links; and look there for other processes"
    )


def _phases(row: Row) -> Iterator[str]:
    """What the computing of the median rank is made of, without waits for others."""
    then, now = (_mean_computing(steps) for steps in (row.sides.then, row.sides.now))
    for name, before, after in zip(("forward", "backward", "optimizer"), then, now, strict=True):
        yield f"{name} {from_to(before, after)}"


def _mean_computing(steps: Sequence[Step]) -> tuple[float, float, float]:
    ranks = [step.median for step in steps]
    forward_s = statistics.fmean(rank.phases.forward_s for rank in ranks)
    optimizer_s = statistics.fmean(rank.phases.optimizer_s for rank in ranks)
    own_s = statistics.fmean(rank.computing_s for rank in ranks)
    return forward_s, own_s - forward_s - optimizer_s, optimizer_s
