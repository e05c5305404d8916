"""A baseline's measured runs as results, so that they can be judged like any others."""

from dataclasses import replace

from gpuscale.records import (
    Baseline,
    Environment,
    GpuDevice,
    GpuSummary,
    Hardware,
    MeasuredEntry,
    MeasuredRun,
    RankEvidence,
    RankReport,
    Results,
    Run,
    RunEvidence,
    Window,
)

_UNKNOWN = "unknown"
_NO_TIME = "1970-01-01T00:00:00+00:00"


def results_of(baseline: Baseline) -> tuple[Results, ...]:
    """The results that would make the measured part of this baseline, one for each allocation.

    Every run has a single window of one step. Its step time and its evidence are those of the
    baseline; what a baseline does not keep is unknown.
    """
    runs: dict[str, list[Run]] = {}
    for entry in baseline.measured:
        for index, run in enumerate(entry.runs, start=1):
            runs.setdefault(run.allocation, []).append(_run(entry, run, index))
    return tuple(
        Results(
            created_at=baseline.recorded_at or _NO_TIME,
            gpuscale_version=baseline.gpuscale_version or _UNKNOWN,
            environment=_environment(baseline, allocation),
            runs=tuple(of_allocation),
        )
        for allocation, of_allocation in runs.items()
    )


def _environment(baseline: Baseline, allocation: str) -> Environment:
    known = baseline.environments.get(allocation)
    environment = known or _bare_environment(baseline.hardware)
    return replace(environment, job_id=allocation)


def _bare_environment(hardware: Hardware) -> Environment:
    name, count = hardware.gpu_name, hardware.gpus_per_node or 1
    return Environment(
        device=hardware.device,
        host=_UNKNOWN,
        cpu_model=hardware.cpu_model,
        cpu_count=None,
        gpus=tuple(GpuDevice(index=i, name=name) for i in range(count)) if name else (),
        python_version=_UNKNOWN,
        torch_version=_UNKNOWN,
    )


def _run(entry: MeasuredEntry, measured: MeasuredRun, index: int) -> Run:
    evidence = measured.evidence or RunEvidence()
    ranks = _ranks(entry, evidence)
    exposed_s = evidence.exposed_communication_s
    windows = [measured.step_time_s]
    if exposed_s is not None:
        windows.append(measured.step_time_s - exposed_s)
    synced, *unsynced = (
        Window(time_s=time_s, started_at_s=0.0, busy_s=(time_s,) * len(ranks)) for time_s in windows
    )
    return Run(
        configuration=entry.configuration,
        gpus=entry.gpus,
        index=index,
        started_at_s=0.0,
        batch_per_gpu=entry.batch_per_gpu,
        sample_shape=entry.sample_shape,
        steps_per_window=1,
        windows=(synced,),
        unsynced_windows=tuple(unsynced),
        ranks=ranks,
        warmup_steps=None,
        warmup_s=None,
        startup_s=None,
        wall_s=measured.step_time_s,
        gpu_summaries=_summaries(entry, evidence),
        job_id=measured.allocation,
    )


def _ranks(entry: MeasuredEntry, evidence: RunEvidence) -> tuple[RankReport, ...]:
    processes = 1 if entry.configuration.strategy == "dp" else entry.gpus
    known = evidence.ranks or tuple(
        RankEvidence(rank=rank, host=_UNKNOWN) for rank in range(processes)
    )
    return tuple(
        RankReport(
            rank=rank.rank,
            local_rank=rank.rank,
            host=rank.host,
            devices=(),
            device_uuids=rank.device_uuids,
            parameter_digest=_UNKNOWN,
            final_loss=None,
            # The largest of all ranks is what a baseline keeps.
            peak_memory_bytes=evidence.peak_memory_bytes,
            peak_host_memory_bytes=None,
            pace_s=rank.pace_s,
            phases=rank.phases,
        )
        for rank in known
    )


def _summaries(entry: MeasuredEntry, evidence: RunEvidence) -> tuple[GpuSummary, ...]:
    """The summaries of a run of one step: their energy is that of its samples."""
    summaries = evidence.gpu_summaries
    total_j = sum(summary.energy_j or 0.0 for summary in summaries)
    if evidence.energy_per_sample_j is None or not total_j:
        return tuple(replace(summary, energy_j=None) for summary in summaries)
    factor = evidence.energy_per_sample_j * entry.gpus * entry.batch_per_gpu / total_j
    return tuple(
        replace(summary, energy_j=None if summary.energy_j is None else summary.energy_j * factor)
        for summary in summaries
    )
