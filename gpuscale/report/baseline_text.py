"""A baseline file for the terminal: whose it is, where from, and its rows."""

import math
from collections.abc import Iterator

from tabulate import tabulate

from gpuscale.compare.hardware import hardware_label
from gpuscale.compare.matching import Row
from gpuscale.compare.shapes import baseline_pair
from gpuscale.records import Baseline, MeasuredEntry, PublishedFigure, SpeedupPair
from gpuscale.report.table import UNKNOWN, configuration_text, interval_text, spread_text
from gpuscale.scaling import geometric_mean
from gpuscale.statistics import log_sample
from gpuscale.units import format_seconds, significant

_TIMED = {"job": "whole job", "training_loop": "training loop", "epoch": "epoch"}
_PAIR_HEADERS = ("speedup", "efficiency")


def baseline_text(baseline: Baseline) -> str:
    """The baseline as text, without a line break at its end."""
    return "\n".join(_lines(baseline))


def _lines(baseline: Baseline) -> Iterator[str]:
    yield f"baseline  {baseline.name}: {hardware_label(baseline.cluster, baseline.hardware)}"
    if baseline.source is not None:
        parts = [baseline.source.title, baseline.source.published, baseline.source.url]
        yield f"source    {', '.join(part for part in parts if part)}"
        if baseline.source.note:
            yield f"          {baseline.source.note}"
    if baseline.recorded_at is not None:
        yield f"recorded  {baseline.recorded_at}"
    tables = [table for table in (_published_table(baseline), _measured_table(baseline)) if table]
    for table in tables or ["no entry"]:
        yield ""
        yield table


def _published_table(baseline: Baseline) -> str:
    rows = [
        [
            f"{figure.case}/{figure.strategy}",
            figure.gpus,
            figure.nodes,
            figure.batch_per_gpu,
            figure.runs,
            *_published_value(figure),
            *_pair_cells(baseline_pair(Row(key=figure.key, figure=figure), baseline)),
        ]
        for figure in baseline.published
    ]
    headers = ["case", "gpus", "nodes", "batch/gpu", "runs", "published", "of", *_PAIR_HEADERS]
    return tabulate(rows, headers, disable_numparse=True) if rows else ""


def _published_value(figure: PublishedFigure) -> tuple[str, str]:
    """The figure, and what it is a figure of: a wall clock or a throughput."""
    if figure.samples_per_s is not None:
        return f"{significant(figure.samples_per_s)} samples/s", "throughput"
    if figure.mean_time_s is None or figure.timed is None:
        return UNKNOWN, UNKNOWN
    return format_seconds(figure.mean_time_s), f"wall clock of the {_TIMED[figure.timed]}"


def _measured_table(baseline: Baseline) -> str:
    rows = [
        [
            entry.configuration.label,
            entry.gpus,
            entry.batch_per_gpu,
            f"{len(entry.runs)} ({len({run.allocation for run in entry.runs})})",
            _step_time(entry),
            *_pair_cells(baseline_pair(Row(key=entry.key, entry=entry), baseline)),
            configuration_text(entry.configuration),
        ]
        for entry in baseline.measured
    ]
    headers = ["case", "gpus", "batch/gpu", "runs (allocations)", "step time", *_PAIR_HEADERS]
    return tabulate(rows, [*headers, "measured as"], disable_numparse=True) if rows else ""


def _step_time(entry: MeasuredEntry) -> str:
    estimate = geometric_mean(log_sample([math.log(run.step_time_s) for run in entry.runs]))
    return format_seconds(estimate.value) + spread_text(estimate)


def _pair_cells(pair: SpeedupPair) -> tuple[str, str]:
    return interval_text(pair.speedup), interval_text(pair.efficiency)
