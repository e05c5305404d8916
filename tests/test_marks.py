"""Windows of equal numbers of steps are cut from the moments at which steps were told."""

import pytest

from gpuscale.measure.worker.marks import Point, Series, comes_in_bursts, windows_of
from gpuscale.measure.worker.output import Line, _Pipe
from gpuscale.records import TimingPlan
from gpuscale.workload.log_formats import Mark

TIMING = TimingPlan(warmup_steps=2, warmup_s=1.0, windows=20, window_s=0.5, run_seconds=20.0)


def told(*steps: int, pace_s: float = 0.1, **more: object) -> Series:
    """Marks of a process that makes steps at a fixed interval in seconds."""
    series = Series(shared=False)
    for step in steps:
        series.add(Mark(step=step, **more), step, 100 + step * pace_s)  # type: ignore[arg-type]
    return series


def durations(series: Series) -> list[float]:
    windows = windows_of(series.stretches, TIMING)
    assert windows is not None
    return [end - begin for begin, end in windows.spans]


def test_windows_begin_after_the_warm_up_and_are_as_long_as_planned() -> None:
    windows = windows_of(told(*range(200)).stretches, TIMING)
    assert windows is not None
    assert (windows.warmup_steps, windows.steps, windows.wanted) == (10, 5, 20)
    assert windows.warmup_s == pytest.approx(1.0)
    assert windows.spans[0] == pytest.approx((101.0, 101.5))
    assert len(windows.spans) == (199 - 10) // 5


def test_lines_every_so_many_steps_end_the_windows() -> None:
    windows = windows_of(told(*range(0, 400, 8)).stretches, TIMING)
    assert windows is not None
    assert windows.steps == 8


def test_moments_between_the_lines_of_a_bar_are_interpolated() -> None:
    assert durations(told(*[*range(0, 200, 7), *range(203, 400, 9)])) == pytest.approx([0.7] * 54)


def test_steps_longer_than_a_window_make_windows_of_one_line_each() -> None:
    windows = windows_of(told(*range(0, 100, 10), pace_s=3.0).stretches, TIMING)
    assert windows is not None
    assert (windows.steps, windows.wanted) == (10, 10)


def test_a_gap_between_two_epochs_is_in_no_window() -> None:
    series = told(*range(100))
    for step in range(100):
        series.add(Mark(step=step), step, 1000 + step * 0.1)
    assert durations(series) == pytest.approx([0.5] * (17 + 19))


def test_the_time_of_a_validation_is_in_no_window() -> None:
    series = told(*range(100))
    series.interrupt()
    for step in range(100, 200):
        series.add(Mark(step=step), step, 1000 + step * 0.1)
    assert max(durations(series)) == pytest.approx(0.5)


def test_another_bar_in_between_is_left_out_and_so_is_its_time() -> None:
    series = told(*range(100), total_steps=1000)
    for step in range(1, 5):
        series.add(Mark(step=step, total_steps=5), step, 200 + step)
    for step in range(100, 200):
        series.add(Mark(step=step, total_steps=1000), step, 1000 + step * 0.1)
    assert durations(series) == pytest.approx([0.5] * (17 + 19))


def stretch(*moments: float) -> list[list[Point]]:
    return [[Point(step, at_s) for step, at_s in enumerate(moments)]]


def test_lines_in_bursts_are_told_from_quick_steps() -> None:
    bursts = [second + line * 1e-5 for second in range(5) for line in range(50)]
    assert comes_in_bursts(stretch(*bursts), 0.0)
    assert comes_in_bursts(stretch(*[9 + line * 1e-5 for line in range(50)]), 0.0)
    assert not comes_in_bursts(stretch(*[line * 1e-3 for line in range(5000)]), -1.0)
    assert not comes_in_bursts(stretch(*[line * 1e-2 for line in range(500)]), -1.0)
    # Two lines of each step, such as of two ranks.
    assert not comes_in_bursts(stretch(*[line // 2 * 0.01 for line in range(500)]), -1.0)


def test_lines_that_are_read_late_all_at_once_leave_each_window_its_share_of_the_time() -> None:
    # For 1.7 s, which three windows fit into, whoever reads them got no core.
    moments = [3.0 if 1.3 <= at_s <= 3.0 else at_s for at_s in (step * 0.1 for step in range(200))]
    windows = windows_of(stretch(*moments), TIMING)
    assert windows is not None
    assert windows.steps == 5
    assert [end - begin for begin, end in windows.spans] == pytest.approx([0.5] * 37)


def test_a_line_arrives_with_its_last_character() -> None:
    pipe = _Pipe("rank 0")
    assert list(pipe.lines_of(b"10%|# ", 1.0)) == []
    assert list(pipe.lines_of(b"| 1/10", 2.0)) == []
    assert list(pipe.lines_of(b"\r20%|##", 3.0)) == [Line("rank 0", "10%|# | 1/10", 2.0)]
    assert list(pipe.lines_of(b"\r\n\nnext\n", 4.0)) == [
        Line("rank 0", "20%|##", 3.0),
        Line("rank 0", "next", 4.0),
    ]
    assert list(pipe.lines_of(b"rest", 5.0)) == []
    assert list(pipe.lines_of(b"", 6.0)) == [Line("rank 0", "rest", 5.0)]
