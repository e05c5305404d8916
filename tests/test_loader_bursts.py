"""Windows of a run whose loader sets the pace, by simulation with known truth."""

import random
import statistics
from dataclasses import dataclass
from typing import cast

import pytest
from test_measurement_loop import MadeClock, Peers, ignore

from gpuscale.analysis.steadiness import steadiness
from gpuscale.measure.worker import loop
from gpuscale.measure.worker.loop import measure
from gpuscale.measure.worker.training import Training
from gpuscale.records import TimingPlan
from gpuscale.records.request import Measurement

PLAN = TimingPlan(warmup_steps=10, warmup_s=2.0, windows=20, window_s=0.5, run_seconds=20.0)
RUNS = 40


@dataclass(frozen=True)
class Pace:
    workers: int
    batch_s: float
    """Seconds that one worker takes to make a batch."""
    computing_s: float
    all_reduce_s: float

    @property
    def step_s(self) -> float:
        return max(self.batch_s / self.workers, self.computing_s + self.all_reduce_s)


class LoadedTraining(MadeClock):
    """A training over torch's loader: batches in order, two of each worker in advance."""

    def __init__(self, pace: Pace, seed: int) -> None:
        super().__init__(first_step_s=0, step_s=0, unsynced_step_s=0)
        self.clock, self.strategy = self, Peers()
        self._pace = pace
        self._random = random.Random(seed)
        self._free_from_s = [self.now_s] * pace.workers
        self._ready_s: list[float] = []
        self._taken = 0
        for _ in range(2 * pace.workers):
            self._load_another()

    def _load_another(self) -> None:
        worker = len(self._ready_s) % self._pace.workers
        begun_s = max(self.now_s, self._free_from_s[worker])
        self._free_from_s[worker] = begun_s + self._pace.batch_s * self._random.gauss(1, 0.02)
        self._ready_s.append(self._free_from_s[worker])

    def step(self, *, synchronized: bool = True) -> None:
        self.now_s = max(self.now_s, self._ready_s[self._taken])
        self._taken += 1
        self._load_another()
        self.now_s += self._pace.computing_s * self._random.gauss(1, 0.005)
        self.now_s += self._pace.all_reduce_s * synchronized


def measured(
    pace: Pace, monkeypatch: pytest.MonkeyPatch, *, loaders: int
) -> tuple[list[Measurement], int]:
    """Return simulated runs, and how many of them are called unsteady."""
    runs = []
    for seed in range(RUNS):
        training = LoadedTraining(pace, seed)
        monkeypatch.setattr(loop, "time", training)
        made = measure(cast("Training", training), PLAN, ignore, pausing=True, loaders=loaders)
        runs.append(made)
    return runs, sum(steadiness(step_times_s(run)) is not None for run in runs)


def step_times_s(run: Measurement, *, synchronized: bool = True) -> list[float]:
    windows = (window for window in run.windows if window.synchronized is synchronized)
    return [window.busy_s / run.steps_per_window for window in windows]


@pytest.mark.parametrize("workers", [4, 8])
@pytest.mark.parametrize(
    ("batch_s", "compute_s", "reduce_s"),
    [
        (1.25, 0.10, 0.01),
        (1.25, 0.12, 0.03),
        (1.25, 0.15, 0.01),
        (0.80, 0.05, 0.01),
        # Nearly as fast as the step: what is in advance is used up without the all-reduce only.
        (0.60, 0.05, 0.02),
        (0.30, 0.01, 0.005),
    ],
)
def test_windows_of_whole_bursts_are_steady_and_true(
    monkeypatch: pytest.MonkeyPatch, workers: int, batch_s: float, compute_s: float, reduce_s: float
) -> None:
    pace = Pace(workers, batch_s, compute_s, reduce_s)
    runs, unsteady = measured(pace, monkeypatch, loaders=workers)
    assert unsteady <= 1
    medians_s = [statistics.median(step_times_s(run)) for run in runs]
    assert statistics.median(medians_s) == pytest.approx(pace.step_s, rel=0.03)
    for run, whole_s in zip(runs, medians_s, strict=True):
        exposed_s = whole_s - statistics.median(step_times_s(run, synchronized=False))
        assert -0.1 * pace.step_s < exposed_s < reduce_s + 0.1 * pace.step_s


def test_windows_that_cut_bursts_are_not_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, unsteady = measured(Pace(8, 1.25, 0.1, 0.01), monkeypatch, loaders=0)
    assert runs[0].steps_per_window < 8
    assert unsteady > RUNS / 2
