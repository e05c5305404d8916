"""A comparison as metrics, for the textfile collector of Prometheus' node_exporter.

The text is valid both in Prometheus' format, which the collector reads, and in OpenMetrics. So all
metrics are gauges, the only type with the same syntax in both, and have no timestamps, which the
collector rejects.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from operator import attrgetter
from typing import NamedTuple

import msgspec

from gpuscale.analysis.scaling import scaling_points
from gpuscale.records import (
    METRICS_BY_NAME,
    Configuration,
    EntryVerdict,
    Estimate,
    Verdict,
)
from gpuscale.reports.comparison import View
from gpuscale.reports.phrases import FOUND

Labels = Mapping[str, object]
"""Label values keyed by label name; labels whose value is None are omitted."""
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_UNITS = {"s": "seconds", "bytes": "bytes", "J": "joules"}


class _Gauge(NamedTuple):
    """A gauge; if its value is an estimate, the bounds become gauges too: `speedup_low_ratio`."""

    field: str
    """Attribute of a scaling point or of an entry that holds the value."""
    unit: str
    meaning: str
    name: str = ""
    """Name of the gauge; if empty, the name of the field is used."""


_OF_POINTS = (
    _Gauge("value", "", "Value of the metric in place of the step time", "metric_value"),
    _Gauge("step_time_s", "seconds", "Time of a step", "step_time"),
    _Gauge("samples_per_s", "samples_per_second", "Samples per second in all", "throughput"),
    _Gauge("speedup", "ratio", "Throughput over that of 1 device"),
    _Gauge("efficiency", "ratio", "Speedup over the number of devices"),
    _Gauge(
        "gpu_utilization", "ratio", "Share of time with a kernel running, mean over GPUs and runs"
    ),
    _Gauge("valid_runs", "", "Runs that gave a number"),
    _Gauge("failed_runs", "", "Runs that gave none"),
)
"""Gauges for the current measurement, independent of the baseline."""
_OF_ENTRIES = (
    _Gauge("baseline.speedup", "ratio", "Speedup in the baseline", "baseline_speedup"),
    _Gauge("baseline.efficiency", "ratio", "Efficiency in the baseline", "baseline_efficiency"),
    _Gauge("change", "ratio", "Change of what is judged, below 0 worse"),
    _Gauge("minimum_detectable_loss", "ratio", f"Smallest loss {FOUND}"),
)
"""Gauges of every row. Each metric that both sides measured also has a gauge, not listed here."""


def openmetrics(view: View) -> str:
    """Return the comparison as gauges, without a final line break; unknown values are omitted."""
    return "\n".join((*_lines(view), "# EOF"))


def _lines(view: View) -> Iterator[str]:
    comparison = view.comparison
    # Injected faults are not a state of the cluster, so a label separates their time series.
    injections = ", ".join(view.injections) or None
    cluster = {"cluster": comparison.cluster, "injections": injections}
    measured = scaling_points([run for result in view.results for run in result.runs])
    points = []
    for point in measured:
        shape = None if point.sample_shape is None else "x".join(map(str, point.sample_shape))
        labels = {**cluster, **_fields(point.configuration), **point.key._asdict()}
        labels |= {"batch_per_gpu": point.batch_per_gpu, "sample_shape": shape}
        points.append((labels, point))
    entries = list(_labelled(cluster, comparison.entries))
    for gauges, found in ((_OF_POINTS, points), (_OF_ENTRIES, entries)):
        for gauge in gauges:
            values = [(labels, attrgetter(gauge.field)(each)) for labels, each in found]
            yield from family(gauge.name or gauge.field, gauge.unit, gauge.meaning, values)
    for spec in METRICS_BY_NAME.values():
        of_both = [
            (labels, metric.current)
            for labels, entry in entries
            for metric in entry.metrics
            if metric.metric == spec
        ]
        name, meaning = spec.words.replace(" ", "_"), spec.words.capitalize()
        yield from family(name, _UNITS[spec.unit], meaning, of_both)
    verdicts = [
        ({**labels, "verdict": verdict.value}, float(entry.verdict is verdict))
        for labels, entry in entries
        for verdict in Verdict
    ]
    yield from family("verdict", "", "1 for the verdict on the row, 0 for all others", verdicts)
    exit_code = [(cluster, float(view.exit_code))]
    yield from family("exit_code", "", "Exit code of gpuscale compare", exit_code)
    times_s = [datetime.fromisoformat(result.created_at).timestamp() for result in view.results]
    times_s += [run.started_at_s or 0.0 for result in view.results for run in result.runs]
    newest = [(cluster, max(times_s))]
    yield from family("measured_timestamp", "seconds", "Unix time of the last run", newest)
    environment = view.results[-1].environment
    facts = {
        **cluster,
        "baseline": comparison.baseline_name,
        "machine": comparison.current_machine,
        "host": environment.host,
        "job": environment.job_id,
        "torch": environment.torch_version,
        "driver": environment.driver_version,
    }
    yield from family("comparison_info", "", "What was compared, with what", [(facts, 1.0)])


def _labelled(
    cluster: Labels, entries: Iterable[EntryVerdict]
) -> Iterator[tuple[Labels, EntryVerdict]]:
    """Yield each entry with unique labels; if a row occurs twice, the second one gets `row="2"`."""
    seen: Counter[object] = Counter()
    for entry in entries:
        same = entry.key, entry.configuration
        seen[same] += 1
        number = seen[same] if seen[same] > 1 else None
        configuration = _fields(entry.configuration)
        yield {**cluster, **configuration, **entry.key._asdict(), "row": number}, entry


def _fields(configuration: Configuration | None) -> dict[str, object]:
    return {} if configuration is None else msgspec.structs.asdict(configuration)


def family(
    name: str, unit: str, meaning: str, found: Iterable[tuple[Labels, Estimate | float | None]]
) -> Iterator[str]:
    """Yield a gauge's lines, then those of its interval's bounds, each a gauge of its own."""
    estimates = [
        (labels, each if isinstance(each, Estimate) else Estimate(value=each))
        for labels, each in found
        if each is not None
    ]
    for part, end in (("value", ""), ("low", ", low end of 95 %"), ("high", ", high end of 95 %")):
        full = "_".join(filter(None, (name, part.removeprefix("value"), unit)))
        numbers = [(labels, getattr(each, part)) for labels, each in estimates]
        known = [(labels, number) for labels, number in numbers if number is not None]
        if known:
            yield f"# HELP gpuscale_{full} {meaning}{end}."
            yield f"# TYPE gpuscale_{full} gauge"
        for labels, number in known:
            yield f"gpuscale_{full}{{{_text(labels)}}} {number!r}"


def _text(labels: Labels) -> str:
    """Format labels for Prometheus, `case="mnist_cnn",gpus="4"`, with booleans in lower case."""
    words = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in labels.items()
        if value is not None
    }
    return ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in words.items())
