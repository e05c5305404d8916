"""A single device that became slow, told by runs on one GPU that take the devices in turn.

Such runs make T(1) uncertain rather than worse: one slow run in four is a wide interval. So
this is asked of inconclusive rows too, and not of the mean over runs but of each device's own.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuscale.diagnose.computing import explaining_clocks, look_at_devices
from gpuscale.diagnose.row import Row
from gpuscale.diagnose.steps import Step
from gpuscale.diagnose.wording import added, device_name, symptom_lines, then_and_now
from gpuscale.records import Cause, CauseKind
from gpuscale.statistics.distributions import t_quantile
from gpuscale.statistics.estimates import grouped_log_sample

_SIGNIFICANCE = 0.01
"""Over all devices together."""

_LEAST_SLOWDOWN = 0.05
"""Healthy GPUs of one model differ by as much, so less is not called sick."""

_OTHERS_MOVED = 0.25
"""A device is slow alone where the others changed by less than this part of its change."""

_LEAST_DF = 2
"""Degrees of freedom without which nothing tells how much runs on one device differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """One device of now, in logarithms of step times."""

    uuid: str
    slowdown: float
    error: float
    """Standard error of the slowdown."""
    runs: int


def slow_device_cause(row: Row) -> Cause | None:
    """The device whose runs alone got slower; None where there is none, or on more GPUs."""
    if row.sides.gpus != 1 or not row.sides.then:
        return None
    then, now = (_by_device(steps) for steps in (row.sides.then, row.sides.now))
    noise = grouped_log_sample((*then.values(), *now.values())) if len(now) > 1 else None
    if noise is None or noise.variance is None or noise.df < _LEAST_DF:
        return None
    devices = [_device(uuid, logs, then, noise.variance) for uuid, logs in now.items()]
    devices.sort(key=lambda device: -device.slowdown)
    worst, next_worst = devices[:2]
    needed = t_quantile(1 - _SIGNIFICANCE / len(devices), noise.df) * worst.error
    if worst.slowdown < max(needed, _LEAST_SLOWDOWN):
        return None
    if next_worst.slowdown > _OTHERS_MOVED * worst.slowdown:
        return None
    return _cause(worst, row)


def _by_device(steps: Sequence[Step]) -> Mapping[str, list[float]]:
    logs: dict[str, list[float]] = {}
    for step in steps:
        for uuid in step.median.device_uuids:
            logs.setdefault(uuid, []).append(math.log(step.time_s))
    return logs


def _device(
    uuid: str, logs: Sequence[float], then: Mapping[str, Sequence[float]], variance: float
) -> _Device:
    """Beside its own runs in the baseline; if it has none, beside all devices there."""
    means = [statistics.fmean(values) for values in then.values()]
    if uuid in then:
        before, of_before = statistics.fmean(then[uuid]), variance / len(then[uuid])
    else:
        before = statistics.fmean(means)
        of_before = statistics.variance(means) if len(means) > 1 else variance
    return _Device(
        uuid=uuid,
        slowdown=statistics.fmean(logs) - before,
        error=math.sqrt(variance / len(logs) + of_before),
        runs=len(logs),
    )


def _cause(device: _Device, row: Row) -> Cause:
    there = [step for step in row.sides.now if device.uuid in step.median.device_uuids]
    now_s = statistics.fmean(step.time_s for step in there)
    then_s = now_s / math.exp(device.slowdown)
    uuids = frozenset((device.uuid,))
    clocks = explaining_clocks(row.symptoms, uuids, now_s / then_s - 1)
    host = there[0].median.host
    name = device_name(device.uuid, host)
    return Cause(
        kind=CauseKind.CLOCKS if clocks else CauseKind.SLOW_RANK,
        headline=f"{name} slow{' by its clocks' if clocks else ''} {added(now_s - then_s)}",
        statement=(
            f"it takes {then_and_now(then_s, now_s)}, and the other devices do not "
            f"({device.runs} of {len(row.sides.now)} runs were on it)"
        ),
        lost_s=now_s - then_s,
        ranks=(0,),
        hosts=(host,),
        device_uuids=(device.uuid,),
        evidence=symptom_lines(row.symptoms_on(uuids)),
        next_step=look_at_devices(row, (host,)),
    )
