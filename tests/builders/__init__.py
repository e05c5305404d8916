"""Runs, results and baselines whose numbers are known, for all tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from changing import replace
from msgspec.structs import astuple

from gpuscale.records import (
    Baseline,
    Comparison,
    Configuration,
    EntryVerdict,
    Environment,
    Failure,
    GpuDevice,
    GpuSummary,
    Hardware,
    PublishedFigure,
    Results,
    Run,
    RunRequest,
    TimingPlan,
    Tolerances,
    with_measured,
    without_windows,
)
from gpuscale.records.baseline import Source
from gpuscale.records.evidence import Phases, RankReport, Window
from gpuscale.records.record import to_json
from gpuscale.records.request import CommandRequest
from gpuscale.reports.show import Shown
from gpuscale.reports.show.formats import SHOWN_FORMATS
from gpuscale.store.file_formats import encode_header

V100 = Hardware(device="cuda", gpu_name="V100", gpus_per_node=4)
XEON = Hardware(device="cpu", cpu_model="Xeon Gold 6138")
CNN = Configuration(
    case="mnist_cnn",
    strategy="ddp",
    device="cuda",
    size="full",
    precision="fp32",
    channels_last=False,
    compiled=False,
    scaling="weak",
    data="synthetic",
)
SHAPE = (1, 28, 28)
BATCH = 128
COMMAND = CommandRequest(
    words=("train",),
    folder="/",
    launch="once",
    log_format=None,
    step_regex=None,
    batch_from_output=False,
)
Made = dict[str, Any]
"""Arguments of `run` that say what was measured."""


def run(
    gpus: int,
    step_time_s: float | None,
    *,
    configuration: Configuration = CNN,
    batch_per_gpu: int = BATCH,
    index: int = 1,
    peak_memory_bytes: int | None = None,
    utilization: float | None = None,
    communication_s: float | None = None,
    energy_per_sample_j: float | None = None,
) -> Run:
    """A run of one window with this step time; None makes a failed run."""
    killed = Failure(kind="killed", message="rank 1 died of signal 9")
    unsynced_s = None if communication_s is None else (step_time_s or 0.0) - communication_s
    summaries: tuple[GpuSummary, ...] = ()
    if utilization is not None:
        summaries = (gpu_summary(utilization),)
    if energy_per_sample_j is not None:
        summary = with_values(gpu_summary(0.9), energy_j=energy_per_sample_j * batch_per_gpu)
        summaries = (summary,) * gpus
    made = Run(
        configuration=configuration,
        gpus=gpus,
        index=index,
        started_at_s=1.7e9,
        batch_per_gpu=batch_per_gpu,
        sample_shape=SHAPE,
        steps_per_window=1,
        windows=() if step_time_s is None else (window(step_time_s, gpus),),
        ranks=tuple(rank_report(rank, peak_memory_bytes) for rank in range(gpus)),
        warmup_steps=5,
        warmup_s=1.0,
        startup_s=1.0,
        wall_s=10.0,
        unsynced_windows=() if unsynced_s is None else (window(unsynced_s, gpus),),
        gpu_summaries=summaries,
        failure=killed if step_time_s is None else None,
    )
    return made if step_time_s is None else with_measured(made)


def request(gpus: int = 1, index: int = 1, **changes: object) -> RunRequest:
    """A request for a run like that of `run`, for a case that need not exist."""
    asked = RunRequest(
        configuration=CNN,
        gpus=gpus,
        index=index,
        batch_per_gpu=BATCH,
        sample_shape=SHAPE,
        case_module="",
        case_file="",
        case_class="",
        devices=(),
        timing=TimingPlan(warmup_steps=1, warmup_s=1, windows=1, window_s=1, run_seconds=1),
        timeout_s=60,
    )
    return replace(asked, **changes)


def window(time_s: float, ranks: int) -> Window:
    """A window in which every rank was busy throughout."""
    return Window(time_s=time_s, started_at_s=1.7e9, busy_s=(time_s,) * ranks)


def rank_report(rank: int, peak_memory_bytes: int | None = None) -> RankReport:
    """The report of a healthy rank; its host memory grows with its number."""
    return RankReport(
        rank=rank,
        local_rank=rank,
        host="node1",
        devices=(rank,),
        device_uuids=(f"GPU-{rank}",),
        parameter_digest="0" * 64,
        final_loss=0.5,
        peak_memory_bytes=None if peak_memory_bytes is None else peak_memory_bytes + rank,
        peak_host_memory_bytes=1000 + rank,
    )


def gpu_summary(utilization: float) -> GpuSummary:
    values = {"utilization_mean": utilization}
    return GpuSummary(uuid="GPU-0", name="Tesla V100-SXM2-16GB", samples=10, values=values)


def with_values(summary: GpuSummary, **values: float | None) -> GpuSummary:
    """The summary with these counters set; counters that are None are removed."""
    merged = {**summary.values, **values}
    return replace(summary, values={k: v for k, v in merged.items() if v is not None})


def environment(gpu_name: str = "Tesla V100-SXM2-16GB", *, job_id: str = "now") -> Environment:
    """The environment of a job on a node of four GPUs with this name."""
    return Environment(
        device="cuda",
        host="node1",
        cpu_model="Xeon Gold 6138",
        cpu_count=40,
        gpus=tuple(GpuDevice(index=i, name=gpu_name) for i in range(4)),
        python_version="3.11",
        torch_version="2.11",
        job_id=job_id,
    )


def cpu_environment(cpu_model: str | None = "Xeon Gold 6138") -> Environment:
    return replace(environment(), device="cpu", gpus=(), cpu_model=cpu_model)


def results(*runs: Run, where: Environment | None = None) -> Results:
    return Results(
        created_at="2026-11-21T03:00:00+00:00",
        gpuscale_version="0",
        environment=where or environment(),
        runs=runs,
    )


def shown_text(content: Results | Baseline, **asked: Any) -> str:
    shown = Shown(content=content, path=Path("night.jsonl"), columns=200, **asked)
    return SHOWN_FORMATS["text"].render(shown)


def results_text(results: Results) -> str:
    return "".join(f"{line}\n" for line in (encode_header(results), *map(to_json, results.runs)))


def measured(
    times_s: Mapping[int, Sequence[float | Made | None]],
    *,
    configuration: Configuration = CNN,
    job_id: str = "now",
) -> Results:
    """Results with these step times or runs by number of GPUs; None is a failed run."""
    made = []
    for gpus, of_gpus in times_s.items():
        for index, each in enumerate(of_gpus, start=1):
            numbers = each if isinstance(each, dict) else {"step_time_s": each}
            made.append(run(gpus, **numbers, configuration=configuration, index=index))
    where = replace(environment(job_id=job_id), device=configuration.device)
    if configuration.device == "cpu":
        where = replace(where, gpus=(), cpu_model=XEON.cpu_model)
    return results(*made, where=where)


def baseline(
    times_s: Mapping[int, Sequence[float]],
    *,
    configuration: Configuration = CNN,
    allocations: Sequence[str] = ("then",),
) -> Baseline:
    """A baseline of these step times; runs are dealt out to the allocations in turn."""
    device = configuration.device
    hardware = XEON if device == "cpu" else replace(V100, device=device)
    return Baseline(
        name="nightly",
        cluster="ARC4",
        hardware=hardware,
        runs=tuple(
            Run(
                configuration=configuration,
                gpus=gpus,
                index=i + 1,
                batch_per_gpu=BATCH,
                sample_shape=SHAPE,
                allocation=allocations[i % len(allocations)],
                measured={"step_time_s": time_s},
            )
            for gpus, times in times_s.items()
            for i, time_s in enumerate(times)
        ),
    )


# Six runs, and later ones, with a spread of about 0.3%.
QUIET_THEN = (0.997, 1.003, 1.000, 1.004, 0.998, 0.999)
QUIET_NOW = (0.998, 1.003, 1.000, 0.999, 1.002, 0.997, 1.001, 1.000)
EXACT = Tolerances(allocation_deviation_time=1e-4, allocation_deviation_speedup=1e-4)


def quiet_then(**step_times_s: float) -> Baseline:
    """A baseline of six quiet runs each, such as `n1=0.1, n2=0.11`."""
    return baseline({int(n[1:]): [t * f for f in QUIET_THEN] for n, t in step_times_s.items()})


def quiet_now(runs: int = 3, **step_times_s: float) -> Results:
    """Results of `runs` quiet runs on each number of GPUs, such as `n1=0.1, n2=0.11`."""
    times = {int(n[1:]): [t * f for f in QUIET_NOW[:runs]] for n, t in step_times_s.items()}
    return measured(times)


def row_on(gpus: int, comparison: Comparison) -> EntryVerdict:
    (row,) = [row for row in comparison.entries if row.key.gpus == gpus]
    return row


def figure(gpus: int, time_s: float | None = None, **more: Any) -> PublishedFigure:
    """The published time of a training loop on these GPUs, or `samples_per_s`."""
    timed: Made = {} if time_s is None else {"times_s": (time_s,), "timed": "training_loop"}
    usual: Made = {"batch_per_gpu": BATCH, "runs": 1, "nodes": 1, **timed, **more}
    return PublishedFigure(case="mnist_cnn", strategy="ddp", gpus=gpus, **usual)


def published(*figures: PublishedFigure) -> Baseline:
    return Baseline(
        name="published",
        cluster="ARC4",
        hardware=V100,
        published=figures,
        source=Source(title="a course"),
    )


def phases(**seconds: float) -> Phases:
    """Phases of a step; phases that are not given take no time."""
    return Phases(**{**dict.fromkeys(Phases.__struct_fields__, 0.0), **seconds})


def total_s(phases: Phases) -> float:
    seconds: tuple[float, ...] = astuple(phases)
    return sum(seconds)


def phased_run(
    rank_phases: Sequence[Phases],
    *,
    communication_s: float | None = None,
    gpus: int | None = None,
    devices: Sequence[str] | None = None,
    **more: Any,
) -> Run:
    """A run whose ranks have these phases; all wait for the slowest, then communicate.

    Without `communication_s`, the run has no unsynchronised windows. `more` is for `run`.
    """
    paces_s = [total_s(each) for each in rank_phases]
    added_s = communication_s or 0.0
    step_s = max(paces_s) + added_s
    slowest = rank_phases[paces_s.index(max(paces_s))]
    plain = run(gpus or len(rank_phases), step_s, **more)
    # Who waits does so in the backward pass.
    waited = [
        replace(own, backward_s=own.backward_s + step_s - total_s(own)) for own in rank_phases
    ]
    several_without_pace = communication_s is None and len(rank_phases) > 1
    ranks = tuple(
        replace(
            report,
            phases=waited[i],
            pace_s=None if several_without_pace else paces_s[i],
            device_uuids=report.device_uuids if devices is None else (devices[i],),
        )
        for i, report in enumerate(plain.ranks[: len(rank_phases)])
    )
    in_step = replace(slowest, backward_s=slowest.backward_s + added_s)
    synced = replace(window(step_s, len(ranks)), phases=in_step)
    alone = replace(window(max(paces_s), len(ranks)), phases=slowest)
    unsynced = () if communication_s is None else (alone,)
    return replace(plain, ranks=ranks, windows=(synced,), unsynced_windows=unsynced)


def made_baseline(
    runs: Mapping[int, Sequence[Made]], *, tolerances: Tolerances | None = None
) -> Baseline:
    """A baseline that keeps the evidence of these runs, from one allocation."""
    made = tuple(without_windows(run, allocation="then") for run in measured(runs).runs)
    return replace(baseline({}), tolerances=tolerances or Tolerances(), runs=made)
