"""The step time T of a run: the median over its windows, each timed by its slowest rank."""

import statistics
from collections.abc import Sequence

from msgspec.structs import replace

from gpuscale.records.evidence import Window
from gpuscale.records.request import RankWindow


def window_of_ranks(by_rank: Sequence[RankWindow], slowest: int) -> Window:
    """Combine one window's times from all ranks; the duration is the longest time of any rank.

    In synchronised windows all ranks take about equally long, and which rank takes longest is
    random. The phases are therefore always those of `slowest`, the slowest rank of the whole run.
    If another rank took longer in this window, `slowest` waited for the difference: it is added to
    `wait_s` if waits are measured, and otherwise to `backward_s`, where training waits.
    """
    time_s = max(window.busy_s for window in by_rank)
    shown = by_rank[slowest]
    phases, lag_s = shown.phases, time_s - shown.busy_s
    if phases.wait_s:
        phases = replace(phases, wait_s=phases.wait_s + lag_s)
    else:
        phases = replace(phases, backward_s=phases.backward_s + lag_s)
    return Window(
        time_s=time_s,
        started_at_s=by_rank[0].started_at_s,
        busy_s=tuple(window.busy_s for window in by_rank),
        phases=phases,
    )


def median_window_s(windows: Sequence[Window]) -> float:
    """Return the median duration of the windows, in seconds."""
    return statistics.median(window.time_s for window in windows)


def median_step_time_s(windows: Sequence[Window], steps_per_window: int | None) -> float | None:
    """Return a run's step time T, the median over windows, in seconds; None without windows."""
    if not windows or not steps_per_window:
        return None
    return median_window_s(windows) / steps_per_window
