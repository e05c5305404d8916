"""Compare probes with those of the baseline, and decide whether they confirm a cause."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from msgspec import structs

from gpuscale.analysis.statistics.estimates import Term, difference, grouped_log_sample
from gpuscale.records import Cause, Probe
from gpuscale.records.cause import Beside, ProbeChange
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
        sample = grouped_log_sample([*now.values(), *then.values()])
        if not then or sample.variance is None:
            continue
        means = [statistics.fmean(logs) for logs in then.values()]
        for key, logs in now.items():
            usual, variance, df = statistics.fmean(means), sample.variance / len(logs), sample.df
            if key in then:
                usual = statistics.fmean(then[key])
                variance += sample.variance / len(then[key])
            elif len(means) > 1:
                # Healthy devices differ from one another by more than from themselves.
                variance += statistics.variance(means) * (1 + 1 / len(means))
                df = len(means) - 1
            else:
                continue
            term = Term(variance=variance, df=df)
            change = difference(statistics.fmean(logs) - usual, [term]).relative_change(
                1 - _SIGNIFICANCE / len(now)
            )
            yield ProbeChange(
                probe=probes[key],
                change=change,
                is_slower=change.value < -_LEAST_LOSS and (change.high or 0.0) < 0,
                beside=Beside.BASELINE if key in then else Beside.OTHER_GPUS,
            )


def _logs(probes: Sequence[Probe]) -> Mapping[_Key, list[float]]:
    logs: dict[_Key, list[float]] = defaultdict(list)
    for probe in probes:
        logs[probe.identity] += map(math.log, probe.rates)
    return logs
