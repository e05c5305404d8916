"""The average step of each scaling point, divided into phases."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuscale.analysis.scaling import geometric_mean, known_mean, valid_by_point
from gpuscale.analysis.statistics.estimates import log_sample
from gpuscale.records import Phases, PointKey, Run

SUM_TOLERANCE = 0.03
"""Largest relative difference accepted between a window's time and the sum of its phases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalStep:
    """The average step of one scaling point."""

    time_s: float
    typical_s: float
    """Step time in the scaling table: the geometric mean of the runs' median step times."""
    phases_s: Mapping[str, float | None]
    """Seconds in each phase; None if unknown. Communication includes only exposed communication,
    averaged over the runs; it is 0 if noise makes the average negative."""
    total_s: float
    """Sum of all phases, in seconds."""
    windows: int
    missing_windows: int
    """Number of windows whose phases do not add up to the window's time within `SUM_TOLERANCE`."""


def typical_steps(runs: Sequence[Run]) -> dict[PointKey, TypicalStep]:
    """Return the average step of every point whose windows have phases, ordered as by `grouped`."""
    found = {point: _step(valid) for point, valid in valid_by_point(runs).items()}
    return {point: step for point, step in found.items() if step is not None}


def _step(runs: Sequence[Run]) -> TypicalStep | None:
    """The average step of a point's runs; None if no window has phases."""
    # Time and phases of the average step in each window.
    described = [
        (window.time_s / run.steps_per_window, window.phases.scaled(1 / run.steps_per_window))
        for run in runs
        if run.steps_per_window
        for window in run.windows
        if window.phases is not None
    ]
    if not described:
        return None
    exposed_s = known_mean(run.measured.get("exposed_communication_s") for run in runs)
    communication_s = None if exposed_s is None else max(0.0, exposed_s)
    in_forward_s = 0.0 if exposed_s is None else _communication_in_forward_s(runs)
    # Unlike medians of each phase, means over the same windows add up to the time.
    described.sort(key=lambda step: step[0])
    cut = len(described) // 3
    times_s, middle = zip(*described[cut : len(described) - cut], strict=True)
    names = Phases.__struct_fields__
    mean = Phases(
        **{name: statistics.fmean(getattr(phases, name) for phases in middle) for name in names}
    )
    if mean.wait_s:
        # A pipeline's waits are phases of their own.
        communication_s = None
    missing = [abs(phases.total_s / time_s - 1) > SUM_TOLERANCE for time_s, phases in described]
    return TypicalStep(
        time_s=statistics.fmean(times_s),
        typical_s=geometric_mean(log_sample([run.log_cost for run in runs])).value,
        phases_s={
            "data": mean.data_s,
            "h2d": mean.h2d_s,
            "forward": mean.forward_s - in_forward_s,
            "backward": mean.backward_s - (communication_s or 0.0) + in_forward_s,
            "communication": communication_s,
            "optimizer": mean.optimizer_s,
            "wait": mean.wait_s or None,
        },
        total_s=mean.total_s,
        windows=len(described),
        missing_windows=sum(missing),
    )


def _communication_in_forward_s(runs: Iterable[Run]) -> float:
    """Mean seconds that synchronisation adds to the forward pass of a step; at least 0.

    In the forward pass FSDP gathers parameters and DDP broadcasts buffers.
    """
    found = []
    for run in runs:
        synced, alone = (
            [window.phases.forward_s for window in windows if window.phases is not None]
            for windows in (run.windows, run.unsynced_windows)
        )
        if synced and alone and run.steps_per_window:
            wait_s = statistics.median(synced) - statistics.median(alone)
            found.append(max(0.0, wait_s) / run.steps_per_window)
    return statistics.fmean(found) if found else 0.0
