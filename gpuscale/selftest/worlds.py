"""Seeded random nights: results with windows, as a machine that scatters so would give them.

The logarithm of a window's time is a sum: the entry's own step time, the night, the entry in
that night, the run, the drift of the night, and the window. Windows follow an autoregressive
process of first order about their run's median, so the deviation between runs is exactly the
one that is stated.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuscale.recording import baseline_from_results
from gpuscale.records import (
    Baseline,
    Configuration,
    Environment,
    Failure,
    GpuDevice,
    RankReport,
    Results,
    Run,
    Tolerances,
    Window,
)
from gpuscale.records.simulation import BaselineNights, Loss, LossKind, Scenario, World
from gpuscale.steadiness import steadiness

GPUS = (1, 2, 4, 8)
STEP_TIMES_S: Mapping[str, tuple[float, ...]] = {
    "small_network": (0.0250, 0.0265, 0.0280, 0.0310),
    "large_network": (0.1800, 0.1840, 0.1880, 0.1950),
}
"""By case, in the order of `GPUS`; weak scaling."""
STRUCK_CASE = "small_network"
WINDOWS = 9
STEPS_PER_WINDOW = 20
OUTLYING_WINDOW = 0.3
"""How much slower an outlying window is."""
OUTLYING_RUN = 0.1
SEVERAL_NIGHTS = 6
BASELINE_NAME = "simulated"

_CONFIGURATION = Configuration(
    case=STRUCK_CASE,
    strategy="ddp",
    device="cuda",
    size="full",
    precision="fp32",
    channels_last=False,
    compiled=False,
    scaling="weak",
    data="synthetic",
)
_BATCH = 128
_SHAPE = (3, 32, 32)


def simulated_nights(
    rng: np.random.Generator, scenario: Scenario
) -> tuple[tuple[Results, ...], Results]:
    """The results that the baseline is made of, and tonight's, with the scenario's loss."""
    world, runs = scenario.world, scenario.baseline_runs
    if world.baseline is BaselineNights.SAME_ALLOCATION:
        both = _night(rng, world, runs + scenario.current_runs, "one job")
        first = replace(both, runs=tuple(run for run in both.runs if run.index <= runs))
        rest = replace(both, runs=tuple(run for run in both.runs if run.index > runs))
        return (first,), _struck(rest, scenario.loss)
    nights = 1 if world.baseline is BaselineNights.ONE_NIGHT else SEVERAL_NIGHTS
    before = tuple(_night(rng, world, runs // nights, f"night {i}") for i in range(nights))
    tonight = _night(rng, world, scenario.current_runs, "tonight")
    return before, _struck(tonight, scenario.loss)


def recorded(world: World, nights: Sequence[Results]) -> Baseline:
    """The baseline that these nights make, with what the world's site declares."""
    # Unsteady runs are left out, so there may be fewer than the recorder asks of a user.
    baseline = baseline_from_results(
        nights, name=BASELINE_NAME, cluster=BASELINE_NAME, minimum_runs=2
    )
    return replace(baseline, tolerances=_tolerances(world))


def struck_gpus(loss: Loss) -> tuple[int, ...]:
    """The numbers of GPUs of `STRUCK_CASE` that a loss slows down."""
    return GPUS if loss.kind is LossKind.EVERY_N else GPUS[-1:]


def log_window_times(rng: np.random.Generator, world: World, runs: int) -> NDArray[np.float64]:
    """Logarithms of seconds per step of one night, by run, case, number of GPUs and window."""
    shape = (runs, len(STEP_TIMES_S), len(GPUS))
    # T differs by the whole deviation between allocations, a ratio of two T by half of it.
    own = world.allocation_deviation / 2 / math.sqrt(2)
    shared = math.sqrt(world.allocation_deviation**2 - own**2)
    levels: NDArray[np.float64] = np.log(np.array(list(STEP_TIMES_S.values())))
    levels = levels + rng.normal(0, shared) + rng.normal(0, own, shape[1:])
    levels = levels + rng.normal(0, world.run_deviation, shape)
    levels = levels + math.log1p(OUTLYING_RUN) * (rng.random(shape) < world.outlying_runs)
    passed = (np.arange(runs) + 0.5) / runs - 0.5
    levels = levels + math.log1p(world.drift) * passed[:, np.newaxis, np.newaxis]
    slowed = rng.random((*shape, WINDOWS)) < world.outlying_windows
    return (
        levels[..., np.newaxis] + _windows(rng, world, shape) + math.log1p(OUTLYING_WINDOW) * slowed
    )


def _windows(rng: np.random.Generator, world: World, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """What the windows deviate from the median of their run."""
    deviation = world.window_deviation
    scale = world.run_deviation if deviation is None else deviation
    series = rng.normal(0, scale, (*shape, WINDOWS))
    rho = world.autocorrelation
    for i in range(1, WINDOWS):
        series[..., i] = rho * series[..., i - 1] + math.sqrt(1 - rho**2) * series[..., i]
    return series - np.median(series, axis=-1, keepdims=True)


def _night(rng: np.random.Generator, world: World, runs: int, job: str) -> Results:
    times_s = np.exp(log_window_times(rng, world, runs))
    configurations = [replace(_CONFIGURATION, case=case) for case in STEP_TIMES_S]
    return Results(
        created_at="2026-01-01T03:00:00+00:00",
        gpuscale_version="0",
        environment=_environment(job),
        runs=tuple(
            _run(configuration, gpus, index + 1, times_s[index, i, j])
            for index in range(runs)
            for i, configuration in enumerate(configurations)
            for j, gpus in enumerate(GPUS)
        ),
    )


def _struck(results: Results, loss: Loss | None) -> Results:
    if loss is None:
        return results
    slower = 1 / (1 - loss.size)
    gpus = struck_gpus(loss)
    return replace(
        results,
        runs=tuple(
            replace(run, windows=tuple(_slowed(window, slower) for window in run.windows))
            if run.configuration.case == STRUCK_CASE and run.gpus in gpus
            else run
            for run in results.runs
        ),
    )


def _slowed(window: Window, factor: float) -> Window:
    return replace(window, time_s=window.time_s * factor)


def _run(
    configuration: Configuration, gpus: int, index: int, step_times_s: NDArray[np.float64]
) -> Run:
    times_s = [float(time_s) for time_s in step_times_s]
    unsteady = steadiness(times_s)
    return Run(
        configuration=configuration,
        gpus=gpus,
        index=index,
        started_at_s=0.0,
        batch_per_gpu=_BATCH,
        sample_shape=_SHAPE,
        steps_per_window=STEPS_PER_WINDOW,
        windows=tuple(
            Window(time_s=time_s * STEPS_PER_WINDOW, started_at_s=0.0, busy_s=())
            for time_s in times_s
        ),
        ranks=_RANKS[gpus],
        warmup_steps=5,
        warmup_s=1.0,
        startup_s=1.0,
        wall_s=10.0,
        failure=None if unsteady is None else Failure(kind="unsteady", message=unsteady.text),
    )


def _ranks(gpus: int) -> tuple[RankReport, ...]:
    return tuple(
        RankReport(
            rank=rank,
            local_rank=rank,
            host="simulated",
            devices=(rank,),
            device_uuids=(f"GPU-{rank}",),
            parameter_digest="0" * 64,
            final_loss=0.5,
            peak_memory_bytes=None,
            peak_host_memory_bytes=None,
        )
        for rank in range(gpus)
    )


_RANKS = {gpus: _ranks(gpus) for gpus in GPUS}


def _environment(job: str) -> Environment:
    return Environment(
        device="cuda",
        host="simulated",
        cpu_model=None,
        cpu_count=None,
        gpus=tuple(GpuDevice(index=i, name="simulated") for i in range(max(GPUS))),
        python_version="3",
        torch_version="2",
        job_id=job,
    )


def _tolerances(world: World) -> Tolerances:
    if world.declared_deviation is None:
        return Tolerances()
    return replace(
        Tolerances(),
        allocation_deviation_time=world.declared_deviation,
        allocation_deviation_speedup=world.declared_deviation / 2,
    )
