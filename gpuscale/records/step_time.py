"""What decides: a window is the slowest rank's time, the step time T the median of windows."""

import statistics
from collections.abc import Sequence

from msgspec.structs import replace

from gpuscale.records.request import RankWindow
from gpuscale.records.run_evidence import Window


def window_of_ranks(by_rank: Sequence[RankWindow], slowest: int) -> Window:
    """One window of a run, from the clocks of all its ranks; it takes as long as for the slowest.

    In synchronised windows all ranks take as long as the slowest, so which of them took longest by
    a hair is chance. The phases are those of one and the same rank of the run, the `slowest`. If
    another rank took longer, that rank waited: in training the wait lies in its next backward
    pass, unless waits are measured separately.
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
    """The median of the times of windows."""
    return statistics.median(window.time_s for window in windows)


def median_step_time_s(windows: Sequence[Window], steps_per_window: int | None) -> float | None:
    """T of a run: the median of its windows, in seconds per step; None without windows."""
    if not windows or not steps_per_window:
        return None
    return median_window_s(windows) / steps_per_window
