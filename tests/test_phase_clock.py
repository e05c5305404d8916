"""Phases by the clock of a CPU rank, on a made time."""

import pytest

from gpuscale.worker import phases
from gpuscale.worker.loop import steps_per_mark
from gpuscale.worker.phases import HostPhaseClock, Phase

SPENT_S = {
    Phase.DATA: 1.0,
    Phase.H2D: 2.0,
    Phase.FORWARD: 3.0,
    Phase.BACKWARD: 4.0,
    Phase.OPTIMIZER: 5.0,
}


class MadeTime:
    now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.mark.parametrize("marked_every", [1, 2, 3, 10])
def test_phases_of_marked_steps_stand_for_all_of_the_window(
    monkeypatch: pytest.MonkeyPatch, marked_every: int
) -> None:
    time = MadeTime()
    monkeypatch.setattr(phases, "time", time)
    clock = HostPhaseClock()
    # Whatever lies between two windows belongs to none.
    for _ in range(2):
        time.now_s += 100
        clock.begin(marked_every)
        for _ in range(7):
            clock.begin_step()
            for phase, spent_s in SPENT_S.items():
                time.now_s += spent_s
                clock.mark(phase)
    found = clock.phases()
    assert [found.data_s, found.h2d_s, found.forward_s, found.backward_s, found.optimizer_s] == (
        pytest.approx([7 * spent_s for spent_s in SPENT_S.values()])
    )


@pytest.mark.parametrize(
    ("step_time_s", "steps"), [(1.0, 1), (0.004, 1), (0.0039, 2), (0.001, 4), (0.0001, 40)]
)
def test_marks_cost_at_most_half_a_percent_of_a_step(step_time_s: float, steps: int) -> None:
    assert steps_per_mark(step_time_s) == steps
