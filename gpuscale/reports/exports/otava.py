"""Export of nightly results as tables for Apache Otava, which detects change points.

Otava's importer accepts no empty cell, and Otava finds nothing in a column with a `nan`. So only
rows that were measured in the same nightly runs share a table.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpuscale.analysis.history import Night, RowHistory, history_of
from gpuscale.analysis.scaling import level_of
from gpuscale.analysis.statistics.estimates import exponential
from gpuscale.records import Estimate, PointKey, Results
from gpuscale.reports.phrases import gpus_text, set_apart
from gpuscale.store import write_report

_ATTRIBUTES = ("job", "host", "driver", "torch")


def write(target: Path, results: Sequence[Results]) -> str:
    """Write tables to `target`, `target-2` and so on; return Otava's configuration."""
    history = history_of(results)
    names = _names([row.point for row in history.rows])
    tables: dict[tuple[int, ...], list[RowHistory]] = {}
    for row in history.rows:
        tables.setdefault(row.nights, []).append(row)
    lines = ["tests:"]
    for number, (nights, rows) in enumerate(tables.items(), start=1):
        stem = target.stem if number == 1 else f"{target.stem}-{number}"
        path = target.with_name(f"{stem}{target.suffix}")
        columns = {row.point: names[row.point] for row in rows}
        ways = {names[row.point]: _direction(row.point) for row in rows}
        write_report(path, _table([history.nights[night] for night in nights], columns))
        lines += _test(stem, path, ways)
    return "\n".join(lines)


def _names(points: Sequence[PointKey]) -> dict[PointKey, str]:
    """Name each point, `mnist_cnn/ddp on 4 GPUs`, with batch and shape if several share it."""
    labels = set_apart([point.configuration for point in points])
    names = {point: f"{labels[point.configuration]} on {gpus_text(point.gpus)}" for point in points}
    counts = Counter(names.values())
    return {
        point: name
        if counts[name] == 1
        else f"{name}, batch {point.batch_per_gpu}, shape {point.sample_shape}"
        for point, name in names.items()
    }


def _table(nights: Sequence[Night], columns: dict[PointKey, str]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("time", *_ATTRIBUTES, *columns.values()))
    for night in nights:
        machine = night.environment
        facts = (machine.host, machine.driver_version, machine.torch_version)
        costs = (Estimate(value=exponential(night.log_costs[point])) for point in columns)
        levels = map(level_of, columns, costs)
        values = (level.judged.value for level in levels if level.judged)
        rows.writerow((night.began_at.isoformat(), night.allocation, *facts, *values))
    return text.getvalue()


def _direction(point: PointKey) -> int:
    metric = point.configuration.metric
    return 1 if metric is not None and metric.more_is_better else -1


def _test(name: str, path: Path, columns: Mapping[str, int]) -> Iterator[str]:
    """Yield the lines of a test in Otava's YAML configuration, with strings quoted as in JSON."""
    yield f"  {json.dumps(name)}:"
    yield "    type: csv"
    yield f"    file: {json.dumps(str(path.resolve()))}"
    yield "    time_column: time"
    yield f"    attributes: [{', '.join(_ATTRIBUTES)}]"
    yield "    metrics:"
    for column, direction in columns.items():
        yield f"      {json.dumps(column)}: {{direction: {direction}}}"
