"""What NVML saw of the devices, over the runs of one side."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuscale.diagnose.steps import Step
from gpuscale.records import GpuSummary
from gpuscale.telemetry.fields import NUMBERS, fold


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """One device or several over some runs; None is what none of them tells."""

    values: Mapping[str, float]
    """Counters by name, of all the runs together."""
    clock_event_reasons: Mapping[str, float] | None
    """Mean share of the samples by reason."""
    xids: tuple[int, ...]
    """Each number once."""

    def get(self, counter: str) -> float | None:
        """The value of a counter; None where no run tells it."""
        return self.values.get(counter)

    @property
    def nvlink_errors(self) -> float:
        """New errors of all kinds in all runs."""
        kinds = [name for name, field in NUMBERS.items() if field.moment == "nvlink_errors"]
        return sum(self.values.get(name, 0) for name in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices of one side's runs."""

    summaries: Mapping[str, Sequence[GpuSummary]]
    """Of each run that has samples, by UUID."""
    hosts: Mapping[str, str]
    """By UUID."""

    def state(self, uuid: str) -> DeviceState | None:
        """That device; None where no run tells of it."""
        found = self.summaries.get(uuid)
        return _state(found) if found else None

    def usual(self, besides: str) -> DeviceState | None:
        """The other devices together; None where there is none."""
        others = [s for uuid, found in self.summaries.items() if uuid != besides for s in found]
        return _state(others) if others else None


def devices_of(steps: Sequence[Step]) -> Devices:
    """What the runs of one side tell of their devices."""
    summaries: dict[str, list[GpuSummary]] = {}
    for step in steps:
        for summary in step.run.gpu_summaries:
            if summary.samples:
                summaries.setdefault(summary.uuid, []).append(summary)
    return Devices(
        summaries=summaries,
        hosts={
            uuid: rank.host for step in steps for rank in step.ranks for uuid in rank.device_uuids
        },
    )


def _state(summaries: Sequence[GpuSummary]) -> DeviceState:
    values = {name: fold(name, (s.get(name) for s in summaries)) for name in NUMBERS}
    return DeviceState(
        values={name: value for name, value in values.items() if value is not None},
        clock_event_reasons=_shares(
            [s.clock_event_reasons for s in summaries if s.clock_event_reasons is not None]
        ),
        xids=tuple(dict.fromkeys(xid for s in summaries for xid in s.xids or ())),
    )


def _shares(reasons: Sequence[Mapping[str, float]]) -> Mapping[str, float] | None:
    if not reasons:
        return None
    names = sorted({name for each in reasons for name in each})
    return {name: statistics.fmean(each.get(name, 0.0) for each in reasons) for name in names}
