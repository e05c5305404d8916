"""Baselines and results of a training that lost time in one known place, with noise."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from builders import CNN, environment, gpu_summary, phased_run, phases, results, run, with_values
from changing import replace
from comparison_records import entry

from gpuscale.judge.compare import compare
from gpuscale.judge.diagnose import diagnose
from gpuscale.judge.diagnose.attribution import Step, changes_of
from gpuscale.judge.diagnose.evidence import PointEvidence, RowEvidence
from gpuscale.judge.recording import baseline_from_results
from gpuscale.judge.sides import sides_of
from gpuscale.records import (
    Baseline,
    CauseKind,
    Configuration,
    EntryVerdict,
    Environment,
    GpuSummary,
    Phases,
    PointKey,
    Results,
    Run,
    Verdict,
)

HEALTHY = phases(data_s=0.002, h2d_s=0.001, forward_s=0.030, backward_s=0.055, optimizer_s=0.004)
EXPOSED_S = 0.008
CLOCK_MHZ = 1530.0


class Place(NamedTuple):
    """Where a rank runs."""

    rank: int
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The faults of a training; none, unless given."""

    ranks: Callable[[Place, Phases], Phases] = lambda place, own: own
    """From a rank's healthy phases to its own."""
    communication_s: float = 0.0
    """Seconds that each step waits longer in gradient synchronisation."""
    devices: Callable[[GpuSummary], GpuSummary] = lambda summary: summary
    """From what a healthy device shows to what this one does."""


WELL = Fault()


def slower(own: Phases, factor: float) -> Phases:
    """The same phases with computing that takes so many times as long."""
    return replace(own.scaled(factor), data_s=own.data_s, h2d_s=own.h2d_s)


def slow_clock(summary: GpuSummary, factor: float = 1.22) -> GpuSummary:
    """A hot device, whose clock is that much lower."""
    clock_mhz = summary.values["sm_clock_mean_mhz"] / factor
    return replace(
        with_values(summary, sm_clock_mean_mhz=clock_mhz, temperature_max_c=91.0),
        clock_event_reasons={"hw_thermal_slowdown": 0.8, "sw_power_cap": 0.5},
    )


def slow_in_computing(rank: int, factor: float) -> Fault:
    """One rank that computes so many times as long."""
    return Fault(ranks=lambda place, own: slower(own, factor) if place.rank == rank else own)


LOST_S = 0.020
"""A fifth of the step."""
LATE = Fault(ranks=lambda place, own: replace(own, data_s=own.data_s + LOST_S))
LATE_COPIES = Fault(ranks=lambda place, own: replace(own, h2d_s=own.h2d_s + LOST_S))
ONE_LATE = Fault(
    ranks=lambda place, own: replace(own, data_s=own.data_s + LOST_S) if place.rank == 1 else own
)
ONE_SLOW = slow_in_computing(1, 1.22)
SLOW = Fault(ranks=lambda place, own: slower(own, 1.22))
SLOW_LINK = Fault(communication_s=LOST_S)


class KnownFault(NamedTuple):
    """A fault with the cause that it should be put down to."""

    fault: Fault
    kind: CauseKind
    ranks: tuple[int, ...] = ()


FAULTS = {
    "late batches, all ranks": KnownFault(LATE, CauseKind.DATA),
    "late copies, all ranks": KnownFault(LATE_COPIES, CauseKind.DATA),
    "late batches, one rank": KnownFault(ONE_LATE, CauseKind.DATA, (1,)),
    "one slow rank": KnownFault(ONE_SLOW, CauseKind.SLOW_RANK, (1,)),
    "slower computing, all ranks": KnownFault(SLOW, CauseKind.COMPUTE),
    "slower link": KnownFault(SLOW_LINK, CauseKind.COMMUNICATION),
    "lower clocks, all GPUs": KnownFault(replace(SLOW, devices=slow_clock), CauseKind.CLOCKS),
    "an NVLink down": KnownFault(
        replace(SLOW_LINK, devices=lambda s: with_values(s, nvlink_active_min=5)), CauseKind.NVLINK
    ),
}


def noisy_run(
    rng: np.random.Generator,
    gpus: int,
    fault: Fault,
    *,
    deviation: float,
    index: int,
    night: float,
    configuration: Configuration = CNN,
    telemetry: bool = False,
) -> Run:
    """One run of healthy ranks, of which some have a fault, all of them with noise.

    Half of the variance between runs is common to all ranks, half each rank's own. Exposed
    communication is measured as a difference, and errs like one. Runs take the devices in turn.
    """
    own = deviation / np.sqrt(2)
    first = index - 1 if gpus < 4 else 0
    uuids = [f"GPU-{(first + rank) % 4}" for rank in range(gpus)]
    common = night * float(np.exp(rng.normal(0, own)))
    ranks = [
        fault.ranks(Place(rank, uuid), HEALTHY).scaled(common * float(np.exp(rng.normal(0, own))))
        for rank, uuid in enumerate(uuids)
    ]
    exposed_s = (EXPOSED_S + fault.communication_s) * common * float(np.exp(rng.normal(0, own)))
    made = phased_run(
        ranks,
        communication_s=exposed_s if gpus > 1 else None,
        index=index,
        configuration=configuration,
        devices=uuids,
    )
    error_s = float(rng.normal(0, deviation / 2)) * made.windows[0].time_s
    unsynced = tuple(replace(w, time_s=w.time_s + error_s) for w in made.unsynced_windows)
    summaries = tuple(fault.devices(replace(_healthy_gpu(rng), uuid=uuid)) for uuid in uuids)
    return replace(made, unsynced_windows=unsynced, gpu_summaries=summaries if telemetry else ())


def _healthy_gpu(rng: np.random.Generator) -> GpuSummary:
    clock_mhz = CLOCK_MHZ * float(np.exp(rng.normal(0, 0.003)))
    return replace(
        with_values(
            gpu_summary(0.95), sm_clock_mean_mhz=clock_mhz, nvlink_links=6, nvlink_active_min=6
        ),
        clock_event_reasons={"sw_power_cap": 0.5},
        xids=(),
    )


def night_of(
    rng: np.random.Generator,
    gpus: Sequence[int],
    runs: int,
    fault: Fault = WELL,
    *,
    where: Environment | None = None,
    **options: Any,
) -> Results:
    """One allocation's runs, each as `noisy_run` makes it; nights differ by 1%."""
    night = float(np.exp(rng.normal(0, 0.01)))
    made = (
        noisy_run(rng, count, fault, index=index, night=night, **options)
        for count in gpus
        for index in range(1, runs + 1)
    )
    return results(*made, where=where or environment())


def well(
    rng: np.random.Generator,
    gpus: Sequence[int],
    *,
    devices: Callable[[GpuSummary], GpuSummary] = WELL.devices,
    **options: Any,
) -> Baseline:
    """The baseline of a night without a fault, but for what its devices may show."""
    where, shown = environment(job_id="then"), Fault(devices=devices)
    before = night_of(rng, gpus, 6, shown, where=where, **options)
    return baseline_from_results([before], name="nightly", cluster="ARC4")


def row_of(
    before: Sequence[Step],
    after: Sequence[Step],
    *,
    gpus: int,
    said: EntryVerdict | None = None,
    configuration: Configuration = CNN,
) -> RowEvidence:
    """A row whose runs are taken apart already, in one environment."""
    point = PointEvidence(
        key=PointKey.of(run(gpus, 9.0, configuration=configuration)),
        before=tuple(before),
        after=tuple(after),
        changes=changes_of(before, after, 0.01),
        environments_before=(environment(),),
        environments_after=(environment(),),
    )
    return RowEvidence(entry=said or entry(Verdict.REGRESSED, gpus=gpus), points={gpus: point})


def diagnosed(baseline: Baseline, *nights: Results) -> Mapping[int, EntryVerdict]:
    """Verdicts with causes, by number of GPUs."""
    comparison = diagnose(sides_of(baseline, nights), compare(baseline, nights))
    return {entry.key.gpus: entry for entry in comparison.entries}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The trials of a fault, and those that put it down to the right cause."""

    trials: int
    losses: int
    """Rows that were called worse, which alone get causes."""
    right: int
    """Rows whose first cause is the right one, with the right ranks."""
    others: int
    """Further causes with a share, beside the first."""


def tally(
    rng: np.random.Generator,
    known: KnownFault,
    gpus: int,
    *,
    deviation: float,
    runs: int,
    trials: int,
) -> Tally:
    """So many nights with a fault, each after a baseline of six runs of its own."""
    losses = right = others = 0
    for _ in range(trials):
        before = well(rng, [1, gpus], deviation=deviation, telemetry=True)
        now = night_of(rng, [1, gpus], runs, known.fault, deviation=deviation, telemetry=True)
        row = diagnosed(before, now)[gpus]
        if row.verdict.is_loss:
            losses += 1
            right += (row.causes[0].kind, row.causes[0].ranks) == (known.kind, known.ranks)
            others += sum(cause.share is not None for cause in row.causes[1:])
    return Tally(trials=trials, losses=losses, right=right, others=others)
