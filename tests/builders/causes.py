"""Baselines and results of a training that lost time in one known place, with noise."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from changing import replace

from builders import CNN, environment, phased_run, results, run, with_values
from builders.comparisons import entry
from builders.nights import EXPOSED_S, WELL, Fault, device_summary, own_phases
from gpuscale.analysis.step_parts import Step
from gpuscale.judge.baseline import baseline_from_results
from gpuscale.judge.compare import compare
from gpuscale.judge.diagnose.causes import diagnose
from gpuscale.judge.diagnose.row_evidence import PointEvidence, RowEvidence
from gpuscale.judge.diagnose.step_parts import changes_of
from gpuscale.judge.sides import sides_of
from gpuscale.records import (
    Baseline,
    CauseKind,
    Configuration,
    EntryVerdict,
    Environment,
    GpuSummary,
    PointKey,
    Results,
    Run,
    Verdict,
)

LOST_S = 0.020
"""A fifth of the step."""
LATE = Fault(data_s=LOST_S)
SLOW = Fault(computing=1.22)
ONE_SLOW = Fault(computing=1.22, ranks=frozenset({1}))
SLOW_LINK = Fault(communication_s=LOST_S)
SLOW_CLOCK = replace(SLOW, clock=1 / 1.22)


class KnownFault(NamedTuple):
    """A fault, and the cause that diagnosis should find for it."""

    fault: Fault
    kind: CauseKind
    ranks: tuple[int, ...] = ()


Rng = np.random.Generator
Devices = Callable[[GpuSummary], GpuSummary]
FAULTS = {
    "late batches, all ranks": KnownFault(LATE, CauseKind.DATA),
    "late copies, all ranks": KnownFault(Fault(h2d_s=LOST_S), CauseKind.DATA),
    "late batches, one rank": KnownFault(replace(LATE, ranks=frozenset({1})), CauseKind.DATA, (1,)),
    "one slow rank": KnownFault(ONE_SLOW, CauseKind.SLOW_RANK, (1,)),
    "slower computing, all ranks": KnownFault(SLOW, CauseKind.COMPUTE),
    "slower link": KnownFault(SLOW_LINK, CauseKind.COMMUNICATION),
    "lower clocks, all GPUs": KnownFault(SLOW_CLOCK, CauseKind.CLOCKS),
    "an NVLink down": KnownFault(replace(SLOW_LINK, nvlinks=5), CauseKind.NVLINK),
}


def noisy_run(
    rng: Rng,
    gpus: int,
    fault: Fault,
    *,
    deviation: float,
    index: int,
    night: float,
    configuration: Configuration = CNN,
    telemetry: bool = False,
    devices: Devices = lambda summary: summary,
) -> Run:
    """One run with noise, in which some or all ranks have a fault.

    Half of the variance between runs is common to all ranks, half each rank's own. Exposed
    communication is measured as a difference, and errs like one. Runs take the devices in turn.
    """
    own = deviation / np.sqrt(2)
    first = index - 1 if gpus < 4 else 0
    used = [(first + rank) % 4 for rank in range(gpus)]
    faults = [fault if fault.hits(rank, device) else WELL for rank, device in enumerate(used)]
    common = night * float(np.exp(rng.normal(0, own)))
    exposed_s = (EXPOSED_S + fault.communication_s) * common
    made = phased_run(
        [own_phases(each).scaled(common * float(np.exp(rng.normal(0, own)))) for each in faults],
        communication_s=exposed_s * float(np.exp(rng.normal(0, own))) if gpus > 1 else None,
        index=index,
        configuration=configuration,
        devices=[f"GPU-{device}" for device in used],
    )
    error_s = float(rng.normal(0, deviation / 2)) * made.windows[0].time_s
    unsynced = tuple(replace(w, time_s=w.time_s + error_s) for w in made.unsynced_windows)
    summaries = []
    for device, each in zip(used, faults, strict=True):
        seen = device_summary(f"GPU-{device}", each)
        clock_mhz = seen.values["sm_clock_mean_mhz"] * float(np.exp(rng.normal(0, 0.003)))
        summaries.append(devices(with_values(seen, sm_clock_mean_mhz=clock_mhz)))
    told = tuple(summaries) if telemetry else ()
    return replace(made, unsynced_windows=unsynced, gpu_summaries=told)


def night_of(
    rng: Rng, gpus: Sequence[int], runs: int, fault: Fault = WELL, **options: Any
) -> Results:
    """One allocation's runs, each as `noisy_run` makes it; nights differ by 1%."""
    where: Environment = options.pop("where", None) or environment()
    night = float(np.exp(rng.normal(0, 0.01)))
    runs_of = ((count, index) for count in gpus for index in range(1, runs + 1))
    made = (noisy_run(rng, n, fault, index=i, night=night, **options) for n, i in runs_of)
    return results(*made, where=where)


def well(rng: Rng, gpus: Sequence[int], **options: Any) -> Baseline:
    """The baseline of a night without a fault."""
    before = night_of(rng, gpus, 6, where=environment(job_id="then"), **options)
    return baseline_from_results([before], name="nightly", cluster="ARC4")


def row_of(
    before: Sequence[Step],
    after: Sequence[Step],
    *,
    gpus: int,
    said: EntryVerdict | None = None,
    configuration: Configuration = CNN,
) -> RowEvidence:
    """The evidence of a row whose steps are given, in one environment."""
    point = PointEvidence(
        key=PointKey.of(run(gpus, 9.0, configuration=configuration)),
        before=tuple(before),
        after=tuple(after),
        changes=changes_of(before, after, 0.01),
        runs_before=tuple(step.run for step in before),
        runs_after=tuple(step.run for step in after),
        environments_before=(environment(),),
        environments_after=(environment(),),
    )
    return RowEvidence(entry=said or entry(Verdict.REGRESSED, gpus=gpus), points={gpus: point})


def diagnosed(baseline: Baseline, *nights: Results) -> Mapping[int, EntryVerdict]:
    """Verdicts with causes, by number of GPUs."""
    comparison = diagnose(sides_of(baseline, nights), compare(baseline, nights))
    return {entry.key.gpus: entry for entry in comparison.entries}


def tally(
    rng: Rng, known: KnownFault, gpus: int, *, deviation: float, runs: int, trials: int
) -> tuple[int, int]:
    """Simulate nights with a fault, each after a baseline of its own with six runs.

    Return in how many the row was called worse, and how often its first cause was right.
    """
    losses = right = 0
    for _ in range(trials):
        before = well(rng, [1, gpus], deviation=deviation, telemetry=True)
        now = night_of(rng, [1, gpus], runs, known.fault, deviation=deviation, telemetry=True)
        row = diagnosed(before, now)[gpus]
        if row.verdict.is_loss:
            losses += 1
            right += (row.causes[0].kind, row.causes[0].ranks) == (known.kind, known.ranks)
    return losses, right
