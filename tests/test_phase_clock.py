"""Phases by the clocks of a CPU and of a CUDA rank, on made time."""

import pytest
import torch

from gpuscale.measure.worker import phases
from gpuscale.measure.worker.loop import steps_per_mark
from gpuscale.measure.worker.phases import Phase, PhaseClock

PHASES = (Phase.DATA, Phase.H2D, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
SPENT_S = {phase: float(number) for number, phase in enumerate(PHASES, start=1)}


class MadeTime:
    now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def event(self, *, enable_timing: bool) -> "MadeEvent":
        assert enable_timing
        return MadeEvent(self)


class MadeEvent:
    """An event of a device that completes work at once; as in CUDA, times are milliseconds."""

    def __init__(self, time: MadeTime) -> None:
        self._time = time
        self._passed_s = 0.0

    def record(self, stream: object) -> None:
        self._passed_s = self._time.now_s

    def elapsed_time(self, later: "MadeEvent") -> float:
        return 1000 * (later._passed_s - self._passed_s)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> MadeTime:
    time = MadeTime()
    monkeypatch.setattr(phases, "time", time)
    monkeypatch.setattr(torch.cuda, "Event", time.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    return time


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("marked_every", [1, 2, 3, 10])
@pytest.mark.parametrize("steps", [1, 7])
def test_phases_of_marked_steps_stand_for_all_of_the_window(
    time: MadeTime, steps: int, marked_every: int, device: str
) -> None:
    clock = PhaseClock(torch.device(device))
    # Whatever lies between two windows belongs to none.
    for _ in range(2):
        time.now_s += 100
        clock.begin(marked_every)
        for _ in range(steps):
            clock.begin_step()
            for phase, spent_s in SPENT_S.items():
                time.now_s += spent_s
                clock.mark(phase)
    assert all(isinstance(mark, MadeEvent) is (device == "cuda") for mark, _ in clock._marks)
    found = clock.phases()
    assert [found.data_s, found.h2d_s, found.forward_s, found.backward_s, found.optimizer_s] == (
        pytest.approx([steps * spent_s for spent_s in SPENT_S.values()])
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("marked_every", "counted_s"), [(1, 3), (2, 0)])
def test_time_before_a_step_counts_where_the_step_before_it_is_marked_too(
    time: MadeTime, marked_every: int, counted_s: float, device: str
) -> None:
    clock = PhaseClock(torch.device(device))
    clock.begin(marked_every)
    for _ in range(4):
        clock.begin_step()
        clock.mark(Phase.DATA)
        time.now_s += 1
    assert clock.phases().data_s == counted_s


def test_every_step_is_marked_before_the_first_window(time: MadeTime) -> None:
    clock = PhaseClock(torch.device("cpu"))
    for spent_s in (1, 3):
        clock.begin_step()
        time.now_s += spent_s
        clock.mark(Phase.DATA)
    assert clock.phases().data_s == 4


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_window_without_steps_has_no_phases(time: MadeTime, device: str) -> None:
    clock = PhaseClock(torch.device(device))
    clock.mark(Phase.DATA)
    assert clock.phases().forward_s == clock.phases().data_s == 0


@pytest.mark.parametrize(
    ("step_time_s", "events", "steps"),
    [
        *((1.0, 7, 1), (0.004, 7, 1), (0.0039, 7, 2), (0.001, 7, 4), (0.0001, 7, 40)),
        # Steps of several micro-batches have more of them.
        *((0.04, 70, 1), (0.039, 70, 2)),
    ],
)
def test_marks_cost_at_most_half_a_percent(step_time_s: float, events: int, steps: int) -> None:
    assert steps_per_mark(step_time_s, events) == steps


def test_the_events_of_a_step_are_those_of_the_steps_that_are_marked(time: MadeTime) -> None:
    clock = PhaseClock(torch.device("cuda"))
    assert clock.events_per_step == 1
    clock.begin(3)
    for _ in range(7):
        clock.begin_step()
        for phase in (*SPENT_S, Phase.OPTIMIZER):
            clock.mark(phase)
    assert clock.events_per_step == 7
