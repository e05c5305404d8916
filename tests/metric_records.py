"""Runs whose exposed communication, memory and energy are known, and baselines of such runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from changing import replace
from scaling_records import BATCH, V100, environment, gpu_summary, run, with_values

from gpuscale.records import Baseline, Results, Run, Tolerances, Window, without_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One run in numbers; None is not measured."""

    step_time_s: float = 0.1
    communication_s: float | None = None
    memory_bytes: int | None = None
    energy_per_sample_j: float | None = None


def made_run(gpus: int, made: Made, index: int = 1) -> Run:
    """The run record that gives these numbers back."""
    plain = run(gpus, made.step_time_s, index=index, peak_memory_bytes=made.memory_bytes)
    unsynced = (
        ()
        if made.communication_s is None
        else (
            Window(
                time_s=made.step_time_s - made.communication_s,
                started_at_s=1.7e9,
                busy_s=(made.step_time_s,) * gpus,
            ),
        )
    )
    energy_j = made.energy_per_sample_j
    summaries = (
        ()
        if energy_j is None
        else tuple(with_values(gpu_summary(0.9), energy_j=energy_j * BATCH) for _ in range(gpus))
    )
    return replace(plain, unsynced_windows=unsynced, gpu_summaries=summaries)


def made_results(runs: Mapping[int, Sequence[Made]], *, job_id: str = "now") -> Results:
    """Results of these runs by number of GPUs."""
    return Results(
        created_at="2026-11-21T03:00:00+00:00",
        gpuscale_version="0",
        environment=environment(job_id=job_id),
        runs=tuple(
            made_run(gpus, each, index)
            for gpus, of_gpus in runs.items()
            for index, each in enumerate(of_gpus, start=1)
        ),
    )


def made_baseline(
    runs: Mapping[int, Sequence[Made]], *, tolerances: Tolerances | None = None
) -> Baseline:
    """A baseline that keeps the evidence of these runs, from one allocation."""
    return Baseline(
        name="nightly",
        cluster="ARC4",
        hardware=V100,
        tolerances=tolerances or Tolerances(),
        runs=tuple(
            replace(without_windows(made_run(gpus, each, index)), allocation="then")
            for gpus, of_gpus in runs.items()
            for index, each in enumerate(of_gpus, start=1)
        ),
    )
