"""A single device that became slow, told by runs on one GPU that take the devices in turn.

Such runs make T(1) uncertain rather than worse: one slow run in four is a wide interval. So
this is asked of inconclusive rows too, and not of the mean over runs but of each device's own.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gpuscale.diagnose.attribution import Step
from gpuscale.diagnose.devices import explaining_clocks
from gpuscale.diagnose.row import Row
from gpuscale.diagnose.slower_parts import look_at_devices
from gpuscale.records.cause import Cause, CauseCode, CauseKind, CountOf
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


class _Device(NamedTuple):
    """One device of now, in logarithms of step times."""

    uuid: str
    slowdown: float
    error: float
    """Standard error of the slowdown."""


def slow_device(row: Row, named: Sequence[Cause]) -> Iterator[Cause]:
    """The device whose runs alone got slower; of runs on one GPU only."""
    device = _slow_device(row)
    if device is None:
        return
    there = [step for step in row.point.after if device.uuid in step.median.device_uuids]
    after_s = statistics.fmean(step.time_s for step in there)
    before_s = after_s / math.exp(device.slowdown)
    uuids = frozenset((device.uuid,))
    clocks = explaining_clocks(row.symptoms, uuids, after_s / before_s - 1)
    hosts = (there[0].median.host,)
    yield Cause(
        kind=CauseKind.CLOCKS if clocks else CauseKind.SLOW_RANK,
        code=CauseCode.SLOW_DEVICE,
        lost_s=after_s - before_s,
        before_s=before_s,
        after_s=after_s,
        ranks=(0,),
        hosts=hosts,
        device_uuids=(device.uuid,),
        seen_in=CountOf(len(there), len(row.point.after)),
        evidence=row.symptoms_on(uuids),
        remedy=look_at_devices(row, hosts),
    )


def _slow_device(row: Row) -> _Device | None:
    if row.point.key.gpus != 1 or not row.point.before:
        return None
    before, after = (_by_device(steps) for steps in (row.point.before, row.point.after))
    if not before or len(after) < 2:
        return None
    noise = grouped_log_sample((*before.values(), *after.values()))
    if noise.variance is None or noise.df < _LEAST_DF:
        return None
    devices = [_device(uuid, logs, before, noise.variance) for uuid, logs in after.items()]
    devices.sort(key=lambda device: -device.slowdown)
    worst, next_worst = devices[:2]
    needed = t_quantile(1 - _SIGNIFICANCE / len(devices), noise.df) * worst.error
    if worst.slowdown < max(needed, _LEAST_SLOWDOWN):
        return None
    return None if next_worst.slowdown > _OTHERS_MOVED * worst.slowdown else worst


def _by_device(steps: Sequence[Step]) -> Mapping[str, list[float]]:
    logs: dict[str, list[float]] = {}
    for step in steps:
        for uuid in step.median.device_uuids:
            logs.setdefault(uuid, []).append(math.log(step.time_s))
    return logs


def _device(
    uuid: str, logs: Sequence[float], before: Mapping[str, Sequence[float]], variance: float
) -> _Device:
    """Beside its own runs in the baseline; if it has none, beside all devices there."""
    if uuid in before:
        usual, of_usual = statistics.fmean(before[uuid]), variance / len(before[uuid])
    else:
        means = [statistics.fmean(values) for values in before.values()]
        usual = statistics.fmean(means)
        of_usual = statistics.variance(means) if len(means) > 1 else variance
    return _Device(
        uuid=uuid,
        slowdown=statistics.fmean(logs) - usual,
        error=math.sqrt(variance / len(logs) + of_usual),
    )
