"""Random nights: results with windows, as a machine with a known scatter would give them.

The logarithm of a window's time is a sum: the entry's own step time, the night, the entry in
that night, the run, the drift of the night, and the window. Windows follow an autoregressive
process of first order about their run's median, so the deviation between runs is exactly the
one that is stated.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from builders import CNN, environment, rank_report
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuscale.analysis.steadiness import steadiness
from gpuscale.judge.baseline import baseline_from_results
from gpuscale.records import Baseline, Failure, GpuDevice, Results, Run, Tolerances, with_measured
from gpuscale.records.evidence import Window

GPUS = (1, 2, 4, 8)
STEP_TIMES_S: Mapping[str, tuple[float, ...]] = {
    "small_network": (0.0250, 0.0265, 0.0280, 0.0310),
    "large_network": (0.1800, 0.1840, 0.1880, 0.1950),
}
"""Step times by case, in the order of `GPUS`; weak scaling."""
STRUCK_CASE = "small_network"
WINDOWS = 9
STEPS_PER_WINDOW = 20
OUTLYING_WINDOW = 0.3
"""Relative slowdown of an outlying window."""
OUTLYING_RUN = 0.1
SEVERAL_NIGHTS = 6

Logs = NDArray[np.float64]
"""Logarithms of seconds per step."""


class BaselineNights(StrEnum):
    """The nights of the baseline's runs; those of tonight come from one night."""

    SAME_ALLOCATION = "same allocation"
    ONE_NIGHT = "one other night"
    SIX_NIGHTS = "six other nights"


class LossKind(StrEnum):
    """The rows that a simulated loss strikes."""

    EVERY_N = "T(1) and T(n)"
    """Every number of GPUs of one case: what is slower is slower on one GPU already."""
    LARGEST_N = "T(8) only"
    """The largest number of GPUs of one case: scaling was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMachine:
    """The scatter of a machine's step times; all deviations are relative."""

    run_deviation: float
    """Deviation between the medians of runs of one entry in one allocation."""
    baseline: BaselineNights = BaselineNights.ONE_NIGHT
    allocation_deviation: float = 0.0
    """Deviation of T between allocations; S has half of it, since both ends share a night."""
    declared_deviation: float | None = None
    """Deviation of T between allocations that the baseline file declares; None: the default."""
    window_deviation: float | None = None
    """Deviation between the windows of a run; None: that between runs."""
    autocorrelation: float = 0.5
    outlying_windows: float = 0.0
    outlying_runs: float = 0.0
    drift: float = 0.0
    """Relative slowdown of the last run of a night against the first."""
    peculiarity: str = ""
    """The machine's peculiarity other than noise, for tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss of throughput: 0.05 is 5% less."""

    kind: LossKind
    size: float

    @property
    def gpus(self) -> tuple[int, ...]:
        """The numbers of GPUs of `STRUCK_CASE` that are slowed down."""
        return GPUS if self.kind is LossKind.EVERY_N else GPUS[-1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Comparisons of one kind: a machine, numbers of runs, and what was lost."""

    machine: SimulatedMachine
    current_runs: int
    baseline_runs: int = 6
    loss: Loss | None = None

    def strikes(self, case: str, gpus: int) -> bool:
        return self.loss is not None and case == STRUCK_CASE and gpus in self.loss.gpus


def simulated_nights(
    rng: np.random.Generator, scenario: Scenario
) -> tuple[tuple[Results, ...], Results]:
    """Return the results for the baseline, and those of tonight, which have the scenario's loss."""
    machine, runs = scenario.machine, scenario.baseline_runs
    if machine.baseline is BaselineNights.SAME_ALLOCATION:
        logs = log_window_times(rng, machine, runs + scenario.current_runs)
        before = [_night(logs[:runs], "one job")]
        tonight, job = logs[runs:], "one job"
    else:
        nights = 1 if machine.baseline is BaselineNights.ONE_NIGHT else SEVERAL_NIGHTS
        drawn = (log_window_times(rng, machine, runs // nights) for _ in range(nights))
        before = [_night(logs, f"night {i}") for i, logs in enumerate(drawn)]
        tonight, job = log_window_times(rng, machine, scenario.current_runs), "tonight"
    return tuple(before), _night(tonight, job, scenario)


def recorded(machine: SimulatedMachine, nights: Sequence[Results]) -> Baseline:
    """Record these nights as a baseline with the tolerances that the site declares."""
    # Unsteady runs are left out, so there may be fewer than the recorder asks of a user.
    baseline = baseline_from_results(nights, name="simulated", cluster="simulated", minimum_runs=2)
    declared = machine.declared_deviation
    if declared is None:
        return baseline
    tolerances = replace(
        Tolerances(), allocation_deviation_time=declared, allocation_deviation_speedup=declared / 2
    )
    return replace(baseline, tolerances=tolerances)


def log_run_times(
    rng: np.random.Generator, machine: SimulatedMachine, log_costs: Logs, runs: int
) -> Logs:
    """Return the median of each run of one night, with the axes (run, *axes of `log_costs`).

    `log_costs` has the log step time of each entry; its last axis is the number of GPUs.
    """
    shape = (runs, *log_costs.shape)
    # T differs by the whole deviation between allocations, a ratio of two T by half of it.
    own = machine.allocation_deviation / 2 / math.sqrt(2)
    shared = math.sqrt(machine.allocation_deviation**2 - own**2)
    logs = log_costs + rng.normal(0, shared) + rng.normal(0, own, log_costs.shape)
    logs = logs + rng.normal(0, machine.run_deviation, shape)
    logs = logs + math.log1p(OUTLYING_RUN) * (rng.random(shape) < machine.outlying_runs)
    passed = (np.arange(runs) + 0.5) / runs - 0.5
    drift = math.log1p(machine.drift) * passed
    return logs + drift.reshape(-1, *[1] * log_costs.ndim)


def log_window_times(rng: np.random.Generator, machine: SimulatedMachine, runs: int) -> Logs:
    """Return the log step times of one night, with the axes run, case, number of GPUs, window."""
    levels = log_run_times(rng, machine, np.log(list(STEP_TIMES_S.values())), runs)
    slowed = rng.random((*levels.shape, WINDOWS)) < machine.outlying_windows
    deviation, rho = machine.window_deviation, machine.autocorrelation
    scale = machine.run_deviation if deviation is None else deviation
    series = rng.normal(0, scale, (*levels.shape, WINDOWS))
    for i in range(1, WINDOWS):
        series[..., i] = rho * series[..., i - 1] + math.sqrt(1 - rho**2) * series[..., i]
    scatter = series - np.median(series, axis=-1, keepdims=True)
    return levels[..., np.newaxis] + scatter + math.log1p(OUTLYING_WINDOW) * slowed


def _night(logs: Logs, job: str, scenario: Scenario | None = None) -> Results:
    """The results of one job; with a scenario's loss where it is given."""
    times_s = np.exp(logs)
    if scenario is not None and scenario.loss is not None:
        for i, case in enumerate(STEP_TIMES_S):
            for j, gpus in enumerate(GPUS):
                if scenario.strikes(case, gpus):
                    times_s[:, i, j] *= 1 / (1 - scenario.loss.size)
    devices = tuple(GpuDevice(index=i, name="simulated") for i in range(max(GPUS)))
    return Results(
        created_at="2026-01-01T03:00:00+00:00",
        gpuscale_version="0",
        environment=replace(environment(job_id=job), gpus=devices),
        runs=tuple(
            _run(case, gpus, index, times_s[index, i, j].tolist())
            for index in range(len(times_s))
            for i, case in enumerate(STEP_TIMES_S)
            for j, gpus in enumerate(GPUS)
        ),
    )


_CONFIGURATIONS = {case: replace(CNN, case=case) for case in STEP_TIMES_S}
_RANKS = tuple(rank_report(rank) for rank in range(max(GPUS)))


def _run(case: str, gpus: int, index: int, step_times_s: Sequence[float]) -> Run:
    unsteady = steadiness(step_times_s)
    run = Run(
        configuration=_CONFIGURATIONS[case],
        gpus=gpus,
        index=index + 1,
        started_at_s=0.0,
        batch_per_gpu=128,
        sample_shape=(3, 32, 32),
        steps_per_window=STEPS_PER_WINDOW,
        windows=tuple(
            Window(
                time_s=time_s * STEPS_PER_WINDOW,
                started_at_s=0.0,
                busy_s=(time_s * STEPS_PER_WINDOW,) * gpus,
            )
            for time_s in step_times_s
        ),
        ranks=_RANKS[:gpus],
        failure=None if unsteady is None else Failure(kind="unsteady", message=unsteady),
    )
    return with_measured(run) if unsteady is None else run
