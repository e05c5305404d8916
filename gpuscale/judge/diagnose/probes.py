"""Compare probes with those of the baseline, and decide whether they confirm a cause."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from msgspec import structs

from gpuscale.analysis.statistics.distributions import t_quantile
from gpuscale.records import Cause, Probe
from gpuscale.records.cause import Beside, ProbeChange
from gpuscale.records.point import Estimate
from gpuscale.records.probe import probes_for

_LEAST_LOSS = 0.02
"""Smallest relative loss of a probe's rate that confirms a cause."""
_SIGNIFICANCE = 0.05
"""Probability of calling any device slower in a probe if none of them is."""
_MOST_SHOWN = 3

_Key = tuple[str | int | None, ...]


def confirmed(cause: Cause, before: Sequence[Probe], after: Sequence[Probe]) -> Cause:
    """Return the cause with the probes' changes as evidence; unchanged if none can be compared."""
    names = probes_for(cause.code)
    wanted = [probe for probe in after if probe.name in names]
    changes = [*changes_of(before, wanted)]
    if not changes:
        return cause
    slower = sorted((each for each in changes if each.is_slower), key=lambda c: c.change.value)
    # Faults that all devices share would bury the other evidence.
    shown = slower[:_MOST_SHOWN] or changes[:1]
    return structs.replace(cause, evidence=(*cause.evidence, *shown))


def changes_of(before: Sequence[Probe], after: Sequence[Probe]) -> Iterator[ProbeChange]:
    """Yield the change of each probe since the same probe, or else similar ones, in the baseline.

    Repetitions of a probe scatter equally on all devices, so their variance is pooled.
    """
    old, new = _logs(before), _logs(after)
    probes = {probe.identity: probe for probe in after}
    for likeness in {probe.likeness: None for probe in after}:
        now, then = (
            {key: logs for key, logs in side.items() if key[: len(likeness)] == likeness}
            for side in (new, old)
        )
        groups = [*now.values(), *then.values()]
        df = sum(len(logs) - 1 for logs in groups)
        if not then or not df:
            continue
        squares = (sum((x - statistics.fmean(g)) ** 2 for x in g) for g in groups)
        variance = math.fsum(squares) / df
        means = [statistics.fmean(logs) for logs in then.values()]
        for key, logs in now.items():
            usual, error = statistics.fmean(means), variance / len(logs)
            own_df = df
            if key in then:
                usual, error = statistics.fmean(then[key]), error + variance / len(then[key])
            elif len(means) > 1:
                # Healthy devices differ from one another by more than from themselves.
                error += statistics.variance(means) * (1 + 1 / len(means))
                own_df = len(means) - 1
            else:
                continue
            change = _change(statistics.fmean(logs) - usual, error, own_df, len(now))
            yield ProbeChange(
                probe=probes[key],
                change=change,
                is_slower=change.value < -_LEAST_LOSS and (change.high or 0.0) < 0,
                beside=Beside.BASELINE if key in then else Beside.OTHER_GPUS,
            )


def _change(log_change: float, error: float, df: int, compared: int) -> Estimate:
    half = t_quantile(1 - _SIGNIFICANCE / 2 / compared, df) * math.sqrt(error)
    value, low, high = (
        math.expm1(min(log_change + part, math.log(1e6))) for part in (0.0, -half, half)
    )
    return Estimate(value=value, low=low, high=high)


def _logs(probes: Sequence[Probe]) -> Mapping[_Key, list[float]]:
    logs: dict[_Key, list[float]] = defaultdict(list)
    for probe in probes:
        logs[probe.identity] += map(math.log, probe.rates)
    return logs
