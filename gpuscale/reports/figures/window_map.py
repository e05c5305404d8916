"""Heat map of ranks and windows: a straggler appears as a row, a brief slowdown as a column."""

import statistics
from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator, PercentFormatter

from gpuscale.base.units import format_percent
from gpuscale.records import PointKey, Run, Window
from gpuscale.reports.figures.picture import (
    COLUMN_IN,
    Measurements,
    Picture,
    drawn,
    left_out_of,
    names_beside,
    row_text,
)
from gpuscale.reports.phrases import counted

MOST_RUNS = 6
_SLOWEST_SHOWN = 0.1
"""Excess over the run's median busy time at which the colour is darkest."""
_COLORS = "YlOrBr"


def windows_picture(measurements: Measurements) -> Picture | None:
    """For the slowest run of each row, draw how far each rank was behind the run's median."""
    several = (
        run
        for run in slowest_runs(measurements.runs).values()
        if len(run.ranks) > 1 and len(_windows(run)) > 1
    )
    chosen = sorted(several, key=_unevenness, reverse=True)
    if not chosen:
        return None
    shown = chosen[:MOST_RUNS]
    names = names_beside([run.configuration for run in chosen])
    norm = Normalize(0.0, _SLOWEST_SHOWN)
    ranks = max(len(run.ranks) for run in shown)
    height_in = 1.0 + len(shown) * (0.8 + min(1.8, 0.16 * ranks))
    notes = ["of each row the slowest run: the time that each rank was busy in each window"]
    left_out = left_out_of({"row": len(chosen) - len(shown)})
    with drawn(measurements, COLUMN_IN, height_in, notes, left_out) as figure:
        grid = figure.subplots(len(shown), squeeze=False)
        for axes, run in zip(grid.flat, shown, strict=True):
            row = row_text(names[run.configuration], run.configuration, run.gpus)
            _draw(axes, run, f"{row}, run {run.index}", norm)
        figure.colorbar(
            ScalarMappable(norm, _COLORS),
            ax=grid.ravel().tolist(),
            format=PercentFormatter(1.0, decimals=0, symbol=" %"),
            label="longer than the run's median",
            location="bottom",
            ticks=[0.0, _SLOWEST_SHOWN / 2, _SLOWEST_SHOWN],
            extend="max",
            aspect=40,
        )
    return Picture(
        figure=figure,
        title="Busy time of each rank in each window",
        description="; ".join(f"{names[run.configuration]}: {_sentence(run)}" for run in shown),
        left_out=left_out,
    )


def _windows(run: Run) -> tuple[Window, ...]:
    """Return unsynchronised windows, where only stragglers lag, or else the synchronised ones."""
    return run.unsynced_windows or run.windows


def slowest_runs(runs: Iterable[Run]) -> dict[PointKey, Run]:
    """Return the slowest valid run of each row, among runs with busy times."""
    found: dict[PointKey, Run] = {}
    for run in runs:
        windows = (*run.windows, *run.unsynced_windows)
        tells = run.windows and run.ranks and all(window.busy_s for window in windows)
        if run.is_valid and run.steps_per_window and tells:
            point = PointKey.of(run)
            found[point] = max(found.get(point, run), run, key=lambda each: each.step_time_s)
    return found


def _behind(run: Run) -> list[list[float]]:
    """Return the relative excess of busy times over the run's median, by rank and window."""
    median_s = statistics.median(busy_s for window in _windows(run) for busy_s in window.busy_s)
    by_rank = zip(*(window.busy_s for window in _windows(run)), strict=True)
    return [[busy_s / median_s - 1 for busy_s in rank_s] for rank_s in by_rank]


def _unevenness(run: Run) -> float:
    """Mean lag of the slowest rank over all windows."""
    return max(statistics.fmean(lags) for lags in _behind(run))


def _draw(axes: Axes, run: Run, title: str, norm: Normalize) -> None:
    windows, ranks = len(_windows(run)), len(run.ranks)
    axes.imshow(
        _behind(run),
        cmap=_COLORS,
        norm=norm,
        aspect="auto",
        interpolation="nearest",
        extent=(0.5, windows + 0.5, ranks - 0.5, -0.5),
    )
    axes.grid(visible=False)
    axes.set_title(title, loc="left")
    axes.set_xlabel("window, unsynchronised" if run.unsynced_windows else "window")
    axes.set_ylabel("rank")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(8, integer=True))


def _sentence(run: Run) -> str:
    """Describe the rank with the longest median busy time."""
    medians = [statistics.median(lags) for lags in _behind(run)]
    slowest = max(range(len(medians)), key=lambda rank: medians[rank])
    host = next((each.host for each in run.ranks if each.rank == slowest), "?")
    ranks = counted(len(medians), "rank")
    return (
        f"of {ranks} in {counted(len(_windows(run)), 'window')}, rank {slowest} on {host} was busy "
        f"longest, {format_percent(medians[slowest], signed=True)} against the run's median"
    )
