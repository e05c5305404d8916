"""How long a run is: its warm-up and its windows, by default and for a given time budget."""

import math
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from gpuscale.base.host import GPU_KINDS

_WITH_UNSYNCED = 4 / 3
"""Ratio of all windows to synchronised windows; every fourth window is unsynchronised."""


class TimingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Planned length of a run: the warm-up and the windows."""

    warmup_steps: int
    warmup_s: float
    """Minimum duration of the warm-up, excluding the first step, in addition to `warmup_steps`."""
    windows: int
    """Maximum number of synchronised windows. Slow cases get fewer, but never fewer than 10 unless
    this maximum is lower."""
    window_s: float
    """Target duration of a window; every window has at least one step."""
    run_seconds: float
    """Time limit for all windows together."""


MOST_WINDOWS = 30
TIMING_PLANS: Mapping[str, TimingPlan] = {
    **dict.fromkeys(
        GPU_KINDS,
        TimingPlan(warmup_steps=10, warmup_s=2.0, windows=20, window_s=0.5, run_seconds=20.0),
    ),
    "cpu": TimingPlan(warmup_steps=2, warmup_s=0.3, windows=10, window_s=0.15, run_seconds=4.0),
}


def timing_plan(device: str, run_seconds: float | None) -> TimingPlan:
    """Return the timing plan of a run; without `run_seconds`, the default plan of the device.

    A larger time budget first adds windows, which show whether a run is steady, and then lengthens
    them; for a smaller one, the ranks have fewer or shorter windows.
    """
    plan = TIMING_PLANS[device]
    run_seconds = run_seconds or plan.run_seconds
    if run_seconds <= plan.run_seconds:
        return replace(plan, run_seconds=run_seconds)
    most_windows_s = plan.windows * plan.window_s * _WITH_UNSYNCED
    longer = 1 + (run_seconds - plan.run_seconds) / most_windows_s
    return replace(
        plan,
        windows=min(MOST_WINDOWS, math.floor(plan.windows * longer)),
        window_s=plan.window_s * max(1.0, longer * plan.windows / MOST_WINDOWS),
        run_seconds=run_seconds,
    )
