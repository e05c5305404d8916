"""Warm-up, windows and phases, on made clocks with known truth."""

from collections.abc import Callable
from typing import cast

import pytest
import torch
from changing import replace

from gpuscale.measure.worker import loop, phases
from gpuscale.measure.worker.loop import measure, own_pace_s, steps_per_mark, warm_up
from gpuscale.measure.worker.phases import Phase, PhaseClock
from gpuscale.measure.worker.training import Training
from gpuscale.measure.worker.windows import window_plan
from gpuscale.records import TimingPlan
from gpuscale.records.evidence import Phases

PLAN = TimingPlan(warmup_steps=3, warmup_s=1.0, windows=10, window_s=0.5, run_seconds=20.0)


def ignore(stage: str, done: int, total: int) -> None: ...


class MadeClock:
    """A training whose steps take known times, and the clock that they advance."""

    def __init__(self, first_step_s: float, step_s: float, unsynced_step_s: float) -> None:
        self.now_s = 100.0
        self.steps: list[bool] = []
        self.pending_s = 0.0
        self.realigned_after: list[int] = []
        self.marked_every: list[int] = []
        self.clock: MadeClock
        self.strategy: Peers
        self._opened_s = 0.0
        self._first_step_s = first_step_s
        self._step_s = step_s
        self._unsynced_step_s = unsynced_step_s

    def perf_counter(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s

    def step(self, *, synchronized: bool = True) -> None:
        # Asynchronous, as on CUDA: the time passes in synchronize.
        if not self.steps:
            self.pending_s += self._first_step_s
        else:
            self.pending_s += self._step_s if synchronized else self._unsynced_step_s
        self.steps.append(synchronized)

    def synchronize(self) -> None:
        self.now_s += self.pending_s
        self.pending_s = 0.0

    events_per_step = 7

    def begin(self, marked_every: int) -> None:
        self._opened_s = self.now_s
        self.marked_every.append(marked_every)

    def phases(self) -> Phases:
        whole_s = self.now_s - self._opened_s
        return Phases(data_s=0, h2d_s=0, forward_s=whole_s, backward_s=0, optimizer_s=0)

    def remember(self) -> None:
        pass

    def realign(self) -> None:
        self.realigned_after.append(len(self.steps))


class Peers:
    """The other ranks: the slowest takes longer by a factor, and `wait` is the barrier."""

    def __init__(self, factor: float = 1, wait: Callable[[], None] = lambda: None) -> None:
        self._factor, self.barrier = factor, wait

    def largest(self, value: float) -> float:
        return value * self._factor


def as_training(clock: MadeClock, strategy: Peers | None = None) -> Training:
    """Return the made clock as a training, whose clock of phases it also is."""
    clock.clock, clock.strategy = clock, strategy or Peers()
    return cast("Training", clock)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MadeClock:
    clock = MadeClock(first_step_s=30.0, step_s=0.1, unsynced_step_s=0.08)
    monkeypatch.setattr(loop, "time", clock)
    return clock


def test_a_cold_first_step_does_not_eat_the_warm_up(clock: MadeClock) -> None:
    result = measure(as_training(clock), PLAN, ignore, pausing=False)
    # One cold step, three by count, and seven more until a second has passed.
    assert result.warmup_steps == 1 + 10
    assert result.warmup_s == pytest.approx(30 + 1.0)


def test_windows_hold_the_time_of_their_steps_though_steps_return_early(clock: MadeClock) -> None:
    result = measure(as_training(clock), PLAN, ignore, pausing=False)
    assert result.steps_per_window == 5
    assert [window.busy_s for window in result.windows] == pytest.approx([0.5] * 10)
    assert len(clock.steps) == result.warmup_steps + 10 * 5
    assert result.phases_per_step().forward_s == pytest.approx(0.1)
    assert result.pace_s(ranks=1) == pytest.approx(0.1)


def test_windows_without_synchronisation_take_turns_and_realign(clock: MadeClock) -> None:
    result = measure(as_training(clock), PLAN, ignore, pausing=True)
    kinds = [window.synchronized for window in result.windows]
    assert kinds.count(True) == 10
    assert kinds.count(False) == 3
    assert all(kinds[i + 1] for i, synchronized in enumerate(kinds) if not synchronized)
    # After each of them, before the next step; and the last window is synchronised training.
    ends = [i + 1 for i, kind in enumerate(clock.steps[:-1]) if not kind and clock.steps[i + 1]]
    assert clock.realigned_after == ends
    assert kinds[-1]


@pytest.mark.parametrize(("loaders", "marked_every"), [(0, 4), (2, 1)])
def test_phases_of_quick_steps_are_marked_in_some_of_them_and_of_loaders_batches_in_all(
    monkeypatch: pytest.MonkeyPatch, loaders: int, marked_every: int
) -> None:
    clock = MadeClock(first_step_s=30.0, step_s=0.001, unsynced_step_s=0.001)
    monkeypatch.setattr(loop, "time", clock)
    measured = measure(as_training(clock), PLAN, ignore, pausing=True, loaders=loaders)
    # The first step and two stretches of warm-up, then windows; three of them are not synchronised.
    assert clock.marked_every == [1] * 3 + [marked_every] * 13
    # After these as many batches are waited for as there are loaders, and belong to no window.
    in_windows = 13 * measured.steps_per_window
    assert len(clock.steps) == measured.warmup_steps + in_windows + 3 * loaders


@pytest.mark.parametrize(("ranks", "pace_s"), [(1, 0.1), (2, 0.08)])
def test_a_pace_is_without_waits_for_others(clock: MadeClock, ranks: int, pace_s: float) -> None:
    measured = measure(as_training(clock), PLAN, ignore, pausing=True)
    assert measured.pace_s(ranks=ranks) == pytest.approx(pace_s)


def test_the_pace_before_a_run(clock: MadeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    windows_s = [0.10, 0.90, 0.08, 0.09, 0.07]
    times_s = iter([30.0, *(time_s for time_s in windows_s for _ in range(3))])

    def step(*, synchronized: bool = True) -> None:
        clock.steps.append(synchronized)
        clock.pending_s += next(times_s)

    monkeypatch.setattr(clock, "step", step)
    assert own_pace_s(as_training(clock)) == pytest.approx(0.09)
    assert clock.steps == [True] + [False] * 15
    assert clock.realigned_after == [16]


def test_warm_up_gives_the_pace_of_its_last_stretch_by_the_slowest_rank(clock: MadeClock) -> None:
    timing = replace(PLAN, warmup_steps=4, warmup_s=1.5)
    # 4 steps take 0.8 s by the slowest rank, and 4 more than the 0.7 s that are missing.
    step_time_s, steps = warm_up(as_training(clock, Peers(2)), timing, ignore)
    assert step_time_s == pytest.approx(0.2)
    assert steps == 1 + 8
    # A plan without steps needs one for the pace.
    _, steps = warm_up(as_training(clock), replace(PLAN, warmup_steps=0, warmup_s=0), ignore)
    assert steps == 1 + 1


def test_every_stage_is_reported_with_what_is_done_of_it(clock: MadeClock) -> None:
    told: list[tuple[str, int, int]] = []
    measure(as_training(clock), PLAN, lambda *report: told.append(report), pausing=False)
    before = [("first step", 0, 1), ("warm-up", 0, 3), ("warm-up", 3, 10)]
    assert told == [*before, *(("window", done, 10) for done in range(11))]


@pytest.mark.parametrize(
    ("step_time_s", "run_seconds", "pausing", "plan"),
    [
        *((0.005, 20, False, (100, 20)), (0.3, 20, False, (2, 20)), (0.3, 20, True, (2, 20))),
        *((0.9, 20, True, (1, 16)), (1.25, 20, False, (1, 16)), (1.5, 20, False, (1, 13))),
        *((1.5, 20, True, (1, 10)), (3.0, 20, False, (1, 10)), (60.0, 20, True, (1, 10))),
        # A short budget shortens windows before it is overrun.
        (0.005, 2, True, (30, 10)),
    ],
)
def test_slow_cases_get_fewer_windows_but_never_too_few(
    step_time_s: float, run_seconds: float, pausing: bool, plan: tuple[int, int]
) -> None:
    timing = replace(PLAN, windows=20, run_seconds=run_seconds)
    assert window_plan(step_time_s, timing, pausing=pausing) == plan


def test_a_window_starts_for_telemetry_when_all_ranks_are_there(clock: MadeClock) -> None:
    def wait() -> None:
        clock.now_s += 0.05

    windows = measure(as_training(clock, Peers(wait=wait)), PLAN, ignore, pausing=False).windows
    ends = [window.started_at_s + window.busy_s for window in windows]
    starts = [window.started_at_s for window in windows[1:]]
    waited_s = [start - end for start, end in zip(starts, ends, strict=False)]
    assert waited_s == pytest.approx([0.05] * 9)


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
