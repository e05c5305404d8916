"""Results and baselines for the golden outputs, made from records: nothing here reads a clock.

A night is what one job measures. Its runs follow from one healthy training step, a fault, and
noise whose seed is the job's id, so that the same files come out every time.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from changing import replace
from statements import known

import builders
from gpuscale import __version__
from gpuscale.judge.baseline import baseline_from_results
from gpuscale.records import (
    Baseline,
    Configuration,
    Environment,
    Failure,
    GpuDevice,
    GpuSummary,
    Node,
    Results,
    Run,
)
from gpuscale.records.evidence import Phases, RankReport, Window
from gpuscale.store.results import create_results

EPOCH = datetime(2096, 3, 1, 2, 0, tzinfo=UTC)
"""In the future, so that no output says how long ago it was."""
CNN = replace(builders.CNN, threads_per_rank=8, data_workers=2)
RESNET = replace(CNN, case="resnet50", precision="tf32", channels_last=True)
ON_CPU = replace(CNN, device="cpu", size="smoke", threads_per_rank=1, data_workers=0)
BY_DP = replace(CNN, strategy="dp")
HEALTHY = Phases(data_s=0.002, h2d_s=0.001, forward_s=0.030, backward_s=0.055, optimizer_s=0.004)
EXPOSED_S = 0.008
GPUS_PER_NODE = 4
BATCH = 128
STEPS = 20
WINDOWS = 5


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The fault of a training; none by default."""

    data_s: float = 0.0
    """Seconds that each step waits longer for its batch."""
    h2d_s: float = 0.0
    """Seconds that each copy of a batch takes longer."""
    computing: float = 1.0
    """Factor by which computing takes longer."""
    communication_s: float = 0.0
    """Seconds that each step waits longer in gradient synchronisation."""
    ranks: frozenset[int] | None = None
    """Ranks with the fault; None means all."""
    device: int | None = None
    """Device with the fault on each node; None means all."""
    gpus: frozenset[int] | None = None
    """Numbers of GPUs whose runs have the fault; None means all."""
    clock: float = 1.0
    pcie_width: int = 16
    nvlinks: int = 6
    ecc_uncorrected: int = 0
    memory: float = 1.0
    energy: float = 1.0

    def hits(self, rank: int, device: int) -> bool:
        return (self.ranks is None or rank in self.ranks) and self.device in (None, device)


WELL = Fault()


@dataclass(frozen=True, kw_only=True)
class Night:
    """The measurements of one job."""

    job: str
    """The id of the job, and the seed of the noise."""
    day: int = 0
    gpus: Sequence[int] = (1, 2, 4)
    runs: int = 3
    fault: Fault = WELL
    faster: float = 1.0
    """Factor by which all computing is faster than usual."""
    deviation: float = 0.003
    """Relative standard deviation between runs."""
    deviations: Mapping[int, float] = field(default_factory=dict)
    """Deviations of numbers of GPUs that differ from `deviation`."""
    configurations: Sequence[Configuration] = (CNN,)
    batch: int = BATCH
    gpus_per_node: int = GPUS_PER_NODE
    phases: bool = True
    """True if phases, paces and exposed communication are measured."""
    telemetry: bool = True
    failures: Mapping[tuple[int, int], Failure] = field(default_factory=dict)
    environment: Mapping[str, object] = field(default_factory=dict)
    """Fields of the environment that differ from the usual."""
    injections: tuple[str, ...] = ()

    @property
    def began_at(self) -> datetime:
        return EPOCH + timedelta(days=self.day)


def results_of_night(night: Night) -> Results:
    noise = random.Random(night.job)
    runs: list[Run] = []
    for configuration in night.configurations:
        for index in range(1, night.runs + 1):
            for gpus in night.gpus:
                started_at_s = night.began_at.timestamp() + 60.0 * len(runs)
                runs.append(_run(night, configuration, gpus, index, started_at_s, noise))
    return Results(
        created_at=night.began_at.isoformat(timespec="milliseconds"),
        gpuscale_version="0",
        environment=_environment(night),
        started_as=f"pytest bench_cases --gpus {','.join(map(str, night.gpus))}",
        injections=night.injections,
        runs=tuple(runs),
    )


def write_night(path: Path, night: Night) -> None:
    results = results_of_night(night)
    with create_results(path, replace(results, gpuscale_version=__version__)) as writer:
        for run in results.runs:
            writer.append(run)


def baseline_of(*nights: Night, **changes: object) -> Baseline:
    """Record these nights as a baseline, with some fields changed."""
    baseline = baseline_from_results(
        [results_of_night(night) for night in nights],
        name="nightly",
        cluster="ARC4, University of Leeds",
        minimum_runs=1,
    )
    return replace(baseline, **{"recorded_by": "operator", **changes})


def _environment(night: Night) -> Environment:
    device = night.configurations[0].device
    nodes = tuple(
        Node(
            host=host,
            cpu_model="Intel(R) Xeon(R) Gold 6138 CPU @ 2.00GHz",
            cpu_count=40,
            gpus=tuple(
                GpuDevice(index=index, name="Tesla V100-SXM2-32GB", uuid=_uuid(host, index))
                for index in range(night.gpus_per_node)
            ),
        )
        for host in _hosts(night)
    )
    usual = Environment(
        device=device,
        host=nodes[0].host,
        cpu_model=nodes[0].cpu_model,
        cpu_count=nodes[0].cpu_count,
        gpus=() if device == "cpu" else nodes[0].gpus,
        python_version="3.11.9",
        torch_version="2.11.0",
        torchvision_version="0.26.0",
        cuda_version=None if device == "cpu" else "12.8",
        nccl_version=None if device == "cpu" else "2.26.2",
        driver_version=None if device == "cpu" else "575.57.08",
        kernel="5.14.0",
        variables={"OMP_NUM_THREADS": "8"},
        cases_revision="0123abc",
        scheduler="slurm",
        job_id=night.job,
        launcher="local" if len(nodes) == 1 else "slurm",
        nodes=nodes if len(nodes) > 1 else (),
    )
    return replace(usual, **night.environment)


def _hosts(night: Night) -> list[str]:
    nodes = -(-max(night.gpus) // night.gpus_per_node)
    return [f"node{number}" for number in range(1, nodes + 1)]


def _uuid(host: str, index: int) -> str:
    return f"GPU-{host.removeprefix('node')}{index}000000-0000-4000-8000-000000000000"


def _run(
    night: Night,
    configuration: Configuration,
    gpus: int,
    index: int,
    started_at_s: float,
    noise: random.Random,
) -> Run:
    fault = night.fault if night.fault.gpus is None or gpus in night.fault.gpus else WELL
    common = (1 + noise.gauss(0, night.deviations.get(gpus, night.deviation))) / night.faster
    processes = 1 if configuration.strategy == "dp" else gpus
    faults = (fault if fault.hits(n, _device_of(night, n, index)) else WELL for n in range(gpus))
    plain = builders.phased_run(
        [own_phases(each).scaled(common) for each in [*faults][:processes]],
        communication_s=(EXPOSED_S + fault.communication_s) * common if gpus > 1 else 0.0,
        gpus=gpus,
        index=index,
        configuration=configuration,
        batch_per_gpu=configuration.batch or night.batch,
    )
    failure = night.failures.get((gpus, index))
    is_timed = failure is None or failure.kind == "unsteady"
    ranks = [_rank(night, each, index, gpus // processes) for each in plain.ranks]

    def windows(of_steps: Window) -> tuple[Window, ...]:
        made = []
        for number in range(WINDOWS):
            factor = STEPS * (1 + noise.gauss(0, 0.0005))
            made.append(
                Window(
                    time_s=of_steps.time_s * factor,
                    started_at_s=started_at_s + 5 + 4 * number,
                    busy_s=(of_steps.time_s * factor,) * processes,
                    phases=known(of_steps.phases).scaled(factor) if night.phases else None,
                )
            )
        return tuple(made)

    (synced,), (alone,) = plain.windows, plain.unsynced_windows
    made = replace(
        plain,
        started_at_s=started_at_s,
        samples_per_epoch=51_000,
        steps_per_window=STEPS,
        windows=windows(synced) if is_timed else (),
        unsynced_windows=windows(alone) if night.phases and is_timed else (),
        ranks=tuple(ranks) if is_timed else (),
        warmup_steps=10,
        warmup_s=2.0,
        startup_s=3.0,
        wall_s=30.0,
        gpu_summaries=tuple(
            device_summary(uuid, fault if fault.hits(rank.rank, device) else WELL)
            for rank in ranks
            for uuid, device in zip(rank.device_uuids, rank.devices, strict=True)
            if night.telemetry and is_timed
        ),
        telemetry_absent=None if night.telemetry else "no GPU: measured on CPU",
        failure=failure,
    )
    return made if failure is None else replace(made, measured={})


def _device_of(night: Night, rank: int, index: int) -> int:
    """Index of a rank's device on its node; successive runs take the next one."""
    return (rank + index - 1) % night.gpus_per_node


def own_phases(fault: Fault) -> Phases:
    computing = HEALTHY.scaled(fault.computing)
    data_s, h2d_s = HEALTHY.data_s + fault.data_s, HEALTHY.h2d_s + fault.h2d_s
    return replace(computing, data_s=data_s, h2d_s=h2d_s)


def _rank(night: Night, plain: RankReport, index: int, devices: int) -> RankReport:
    on_cpu = night.configurations[0].device == "cpu"
    host = _hosts(night)[plain.rank // night.gpus_per_node]
    used = tuple(_device_of(night, plain.rank + i, index) for i in range(devices))
    return replace(
        plain,
        local_rank=plain.rank % night.gpus_per_node,
        host=host,
        devices=() if on_cpu else used,
        device_uuids=() if on_cpu else tuple(_uuid(host, device) for device in used),
        peak_memory_bytes=None if on_cpu else int(2**30 * night.fault.memory) + 1024 * plain.rank,
        peak_host_memory_bytes=2**31,
        pace_s=plain.pace_s if night.phases else None,
        phases=plain.phases if night.phases else None,
    )


def device_summary(uuid: str, fault: Fault) -> GpuSummary:
    return GpuSummary(
        uuid=uuid,
        name="Tesla V100-SXM2-32GB",
        samples=100,
        values={
            "utilization_mean": 0.93,
            "memory_used_peak_bytes": 3 * 2**30,
            "power_mean_w": 250.0,
            "energy_j": 26.1 * STEPS * WINDOWS * fault.energy,
            "sm_clock_mean_mhz": 1530.0 * fault.clock,
            "memory_clock_mean_mhz": 877.0,
            "temperature_max_c": 61.0 if fault.clock == 1 else 91.0,
            "pcie_generation": 3,
            "pcie_max_generation": 3,
            "pcie_width": fault.pcie_width,
            "pcie_max_width": 16,
            "power_limit_w": 300.0,
            "nvlink_active_min": fault.nvlinks,
            "nvlink_errors": 0,
            "ecc_corrected": 0,
            "ecc_uncorrected": fault.ecc_uncorrected,
        },
        clock_event_reasons={} if fault.clock == 1 else {"hw_thermal_slowdown": 0.8},
    )
