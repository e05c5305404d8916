"""Device symptoms, such as throttling, that drivers reported in the results but not before."""

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from gpuscale.base.counters import NUMBERS, fold
from gpuscale.judge.diagnose.attribution import Step
from gpuscale.records import GpuSummary
from gpuscale.records.cause import Beside, CauseKind, DeviceSymptom

_CLOCK_DROP = 0.03
"""Smallest relative drop of a clock that is a symptom; normal variation between nights is less."""
_REASON_SHARE = 0.1
"""Smallest increase in the share of samples with a clock event reason that is a symptom."""
_HARMLESS_REASONS = frozenset({"gpu_idle"})

_EXPLAINS = 0.5
"""Fraction of a slowdown that lower clocks must account for to explain it."""


class _Low(NamedTuple):
    """A counter that indicates a fault if its value is lower than usual."""

    counter: str
    kind: CauseKind
    drop: float = 0.0
    """Fraction by which the counter must be below the usual value."""
    most: str | None = None
    """Counter with the hardware's maximum, the reference if the usual value is unknown."""


_LOW_CLOCKS = (
    _Low("sm_clock_mean_mhz", CauseKind.CLOCKS, _CLOCK_DROP),
    _Low("memory_clock_mean_mhz", CauseKind.CLOCKS, _CLOCK_DROP),
    _Low("power_limit_w", CauseKind.CLOCKS),
)
_LOW_LINKS = (
    _Low("pcie_width", CauseKind.PCIE, most="pcie_max_width"),
    _Low("pcie_generation", CauseKind.PCIE, most="pcie_max_generation"),
    _Low("nvlink_active_min", CauseKind.NVLINK),
    _Low("xgmi_active_min", CauseKind.XGMI),
)
_ERRORS = {
    "nvlink_errors": CauseKind.NVLINK,
    "xgmi_errors": CauseKind.XGMI,
    "ecc_uncorrected": CauseKind.MEMORY_ERRORS,
}
"""Kind of symptom reported if a group of error counters shows more errors than before."""
_SLOWING = ("sm_clock_mean_mhz", "memory_clock_mean_mhz")
"""Clock counters; computing speed is assumed to be proportional to each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The combined state of one or more devices over several runs."""

    values: Mapping[str, float]
    """Known counters by name."""
    clock_event_reasons: Mapping[str, float]
    """Mean fraction of samples with each clock event reason, by reason."""
    errors: Mapping[str, float]
    """Sum of the error counters in each group."""
    xids: Sequence[int]
    """Distinct numbers of the driver's error events (Xids)."""

    @classmethod
    def of(cls, summaries: Sequence[GpuSummary]) -> "_State":
        folded = {name: fold(name, (s.values.get(name) for s in summaries)) for name in NUMBERS}
        values = {name: value for name, value in folded.items() if value is not None}
        reasons = [s.clock_event_reasons for s in summaries if s.clock_event_reasons is not None]
        return cls(
            values=values,
            clock_event_reasons={
                name: statistics.fmean(shares.get(name, 0.0) for shares in reasons)
                for name in sorted({name for shares in reasons for name in shares})
            },
            errors={
                moment: sum(value for n, value in values.items() if NUMBERS[n].moment == moment)
                for moment in _ERRORS
            },
            xids=tuple(dict.fromkeys(xid for s in summaries for xid in s.xids or ())),
        )


_NO_ERRORS = _State.of(())


def symptoms_of(before: Sequence[Step], after: Sequence[Step]) -> tuple[DeviceSymptom, ...]:
    """Find the symptoms of each device in the results.

    A device is compared with itself in the baseline; if the baseline lacks the device, with all
    devices of the baseline; and if these have no samples, with the other devices in the results.
    """
    old, new = _summaries(before), _summaries(after)
    hosts = {uuid: r.host for step in after for r in step.ranks for uuid in r.device_uuids}
    known = _State.of([s for summaries in old.values() for s in summaries]) if old else None
    beside = Beside.BASELINE if old else Beside.OTHER_GPUS
    found: list[DeviceSymptom] = []
    for uuid, summaries in new.items():
        state, itself = _State.of(summaries), _State.of(old[uuid]) if uuid in old else None
        others = [s for other in new if other != uuid for s in new[other]]
        usual = itself or known or (_State.of(others) if others else None)
        symptom = partial(DeviceSymptom, uuid=uuid, host=hosts.get(uuid), beside=beside)
        found += _low(_LOW_CLOCKS, symptom, state, usual)
        found += _clock_events(symptom, state, usual)
        found += _low(_LOW_LINKS, symptom, state, usual)
        found += _errors(symptom, state, itself or _NO_ERRORS)
    return tuple(found)


def explaining_clocks(
    symptoms: Sequence[DeviceSymptom], uuids: Collection[str], *, lost_s: float, of_s: float
) -> tuple[DeviceSymptom, ...]:
    """Return these devices' clock symptoms if lower clocks explain the slowdown; else empty."""
    clocks = [s for s in symptoms if s.kind is CauseKind.CLOCKS and s.uuid in uuids]
    if not clocks:
        return ()
    drops = dict.fromkeys(uuids, 0.0)
    for symptom in clocks:
        if symptom.counter in _SLOWING and symptom.usual is not None:
            drops[symptom.uuid] = max(drops[symptom.uuid], symptom.usual / symptom.now - 1)
    slowdown = lost_s / of_s if of_s > 0 else math.inf
    return tuple(clocks) if statistics.median(drops.values()) >= _EXPLAINS * slowdown else ()


def _summaries(steps: Sequence[Step]) -> dict[str, list[GpuSummary]]:
    """Return the device summaries with samples from all runs, by UUID of the device."""
    found: dict[str, list[GpuSummary]] = {}
    for step in steps:
        for summary in step.run.gpu_summaries:
            if summary.samples:
                found.setdefault(summary.uuid, []).append(summary)
    return found


_Symptom = partial[DeviceSymptom]


def _low(
    watched: Sequence[_Low], symptom: _Symptom, state: _State, usual: _State | None
) -> Iterator[DeviceSymptom]:
    for counter, kind, drop, most in watched:
        now = state.values.get(counter)
        # No GPU that computes has a clock or a power limit of 0.
        if now is None or (now == 0 and kind is CauseKind.CLOCKS):
            continue
        found = partial(symptom, kind=kind, counter=counter, now=now)
        then = None if usual is None else usual.values.get(counter)
        if then is None and most is not None:
            found, then = partial(found, beside=Beside.MOST), state.values.get(most)
        if then is not None and now < (1 - drop) * then:
            yield found(usual=then)


def _clock_events(
    symptom: _Symptom, state: _State, usual: _State | None
) -> Iterator[DeviceSymptom]:
    if usual is None:
        return
    for reason, share in state.clock_event_reasons.items():
        then = usual.clock_event_reasons.get(reason, 0.0)
        if reason not in _HARMLESS_REASONS and share - then >= _REASON_SHARE:
            yield symptom(
                kind=CauseKind.CLOCKS,
                counter="clock_event_reasons",
                now=share,
                usual=then,
                reason=reason,
                temperature_max_c=state.values.get("temperature_max_c"),
            )


def _errors(symptom: _Symptom, state: _State, before: _State) -> Iterator[DeviceSymptom]:
    for moment, kind in _ERRORS.items():
        if state.errors[moment] > before.errors[moment]:
            yield symptom(kind=kind, counter=moment, now=state.errors[moment])
    for xid in state.xids:
        if xid not in before.xids:
            yield symptom(kind=CauseKind.DRIVER_ERRORS, counter="xids", now=xid)
