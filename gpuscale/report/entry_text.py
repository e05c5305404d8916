"""One entry of a baseline in words: its step time or figure, and how many runs are behind it."""

from collections.abc import Sequence

from gpuscale.compare.matching import Entry
from gpuscale.records import PublishedFigure, Run
from gpuscale.report.table import UNKNOWN, spread_text
from gpuscale.scaling import geometric_mean
from gpuscale.statistics.estimates import log_sample
from gpuscale.units import format_seconds, significant

_TIMED = {"job": "whole job", "training_loop": "training loop", "epoch": "epoch"}


def step_time_text(runs: Sequence[Run]) -> str:
    """`4.12 ms ±0.3 %` of valid runs; the spread is the 95% interval over them."""
    estimate = geometric_mean(log_sample([run.log_step_time for run in runs]))
    return format_seconds(estimate.value) + spread_text(estimate)


def runs_text(entry: Entry) -> str:
    """`6 runs in 2 allocations`."""
    return counted_runs(entry.point.valid_runs, len(entry.runs))


def counted_runs(runs: int, nights: int) -> str:
    """The same of these numbers."""
    return (
        f"{runs} run{'' if runs == 1 else 's'} in {nights} allocation{'' if nights == 1 else 's'}"
    )


def published_text(figure: PublishedFigure) -> str:
    """The figure with its unit."""
    if figure.samples_per_s is not None:
        return f"{significant(figure.samples_per_s)} samples/s"
    return UNKNOWN if figure.mean_time_s is None else format_seconds(figure.mean_time_s)


def timed_text(figure: PublishedFigure) -> str:
    """What the figure is a figure of: a wall clock or a throughput."""
    if figure.samples_per_s is not None:
        return "throughput"
    return UNKNOWN if figure.timed is None else f"wall clock of the {_TIMED[figure.timed]}"
