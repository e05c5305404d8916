"""What NVML saw of the devices, over the runs of one side."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpuscale.diagnose.steps import Step
from gpuscale.records import GpuSummary, PcieLink

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """One device or several over some runs; None is what none of them tells."""

    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_max_c: float | None
    power_limit_w: float | None
    clock_event_reasons: Mapping[str, float] | None
    """Mean share of the samples by reason."""
    pcie: PcieLink | None
    """The lowest generation and width."""
    nvlink_links: int | None
    nvlink_active_min: int | None
    nvlink_errors: int
    """New ones of all kinds in all runs, like the next."""
    ecc_uncorrected: int
    xids: tuple[int, ...]
    """Each number once."""


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
    links = [s.pcie for s in summaries if s.pcie is not None]
    errors = [sum(s.nvlink_errors.values()) for s in summaries if s.nvlink_errors is not None]
    return DeviceState(
        sm_clock_mhz=_mean(s.sm_clock_mean_mhz for s in summaries),
        memory_clock_mhz=_mean(s.memory_clock_mean_mhz for s in summaries),
        temperature_max_c=_most(s.temperature_max_c for s in summaries),
        power_limit_w=_least(s.power_limit_w for s in summaries),
        clock_event_reasons=_shares(
            [s.clock_event_reasons for s in summaries if s.clock_event_reasons is not None]
        ),
        pcie=PcieLink(
            generation=_least(link.generation for link in links),
            width=_least(link.width for link in links),
            max_generation=_most(link.max_generation for link in links),
            max_width=_most(link.max_width for link in links),
        )
        if links
        else None,
        nvlink_links=_most(s.nvlink_links for s in summaries),
        nvlink_active_min=_least(s.nvlink_active_min for s in summaries),
        nvlink_errors=sum(errors),
        ecc_uncorrected=sum(s.ecc_uncorrected or 0 for s in summaries),
        xids=tuple(dict.fromkeys(xid for s in summaries for xid in s.xids or ())),
    )


def _shares(reasons: Sequence[Mapping[str, float]]) -> Mapping[str, float] | None:
    if not reasons:
        return None
    names = sorted({name for each in reasons for name in each})
    return {name: statistics.fmean(each.get(name, 0.0) for each in reasons) for name in names}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _most(values: Iterable[_Number | None]) -> _Number | None:
    return max((value for value in values if value is not None), default=None)


def _least(values: Iterable[_Number | None]) -> _Number | None:
    return min((value for value in values if value is not None), default=None)
