"""The output formats of `gpuscale compare`; CSV, JSON and OpenMetrics are written here."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from operator import attrgetter

import msgspec

from gpuscale.records import (
    METRICS_BY_NAME,
    Configuration,
    EntryVerdict,
    Estimate,
    Scaling,
    Verdict,
)
from gpuscale.records.metrics import STEP_TIME
from gpuscale.records.probes import probes_for
from gpuscale.records.record import document_text
from gpuscale.reports import cause_evidence, cause_words
from gpuscale.reports.columns import SCALING, Column, Format, csv_text, fields_of
from gpuscale.reports.comparison import View
from gpuscale.reports.comparison import text_markdown_junit as texts
from gpuscale.reports.comparison.rows import Row, finding_of
from gpuscale.reports.phrases import FOUND
from gpuscale.reports.reason_words import metric_reason, reason_text

_SIDES = ("baseline", "current")
_METRICS = tuple(name for name in METRICS_BY_NAME if name != STEP_TIME)


def _of_metric(name: str, what: str, row: Row) -> object:
    found = next((each for each in row.entry.metrics if each.metric.name == name), None)
    if found is None or what == "verdict_of":
        return found and found.verdict
    return getattr(found, what).value


_COLUMNS: tuple[Column[Row], ...] = (
    *fields_of("entry.key", "case", "strategy"),
    Column("device", value=lambda row: row.entry.device or None),
    *fields_of("entry.key", "gpus"),
    Column("name"),
    *fields_of("entry", "verdict"),
    Column("finding", value=lambda row: finding_of(row.entry) or None),
    *fields_of("entry", "since", "changed_quantity"),
    Column("change", interval="[]", value=attrgetter("entry.change")),
    *fields_of("entry", "minimum_detectable_loss", "further_runs"),
    *(
        Column(f"{side}_{name}", interval="[]", value=attrgetter(f"entry.{side}.{name}"))
        for name in (column.field for column in SCALING)
        for side in _SIDES
    ),
    *(
        Column(f"{what}_{name}", value=partial(_of_metric, name, what))
        for name in _METRICS
        for what in ("verdict_of", *_SIDES)
    ),
    Column("reason", value=lambda row: reason_text(row.entry)),
    Column("cause", value=lambda row: next(map(cause_words.headline, row.entry.causes), None)),
)


def csv(view: View) -> str:
    """Return the rows as CSV (docs/tools.md) in baseline order; unknown values are empty fields."""
    return csv_text(_COLUMNS, view.rows, injections=" ".join(view.measured.injections) or None)


_OF_ENTRY = ("since", "change", "changed_quantity", "minimum_detectable_loss", "further_runs")
_OF_METRIC = ("verdict", "baseline", "current", "change")


def json(view: View) -> str:
    """Return the comparison as a JSON document (docs/tools.md); unknown values are null."""
    comparison, headline = view.comparison, view.headline
    further = (f"{label}: {text}" for label, text in headline if label in ("beware", "cause"))
    return document_text(
        "gpuscale-comparison",
        headline=[{"label": label, "text": text} for label, text in headline],
        brief="; ".join((headline[0][1], *further)),
        baseline={
            "name": comparison.baseline_name,
            "machine": comparison.baseline_machine,
            "kind": comparison.baseline_kind,
            **msgspec.structs.asdict(comparison.before),
        },
        current={"machine": comparison.current_machine, **msgspec.structs.asdict(comparison.after)},
        injections=view.measured.injections,
        exit_code=view.exit_code,
        summary=view.summary,
        entries=[_entry(row) for row in view.rows],
        notes=view.all_notes,
    )


def _entry(row: Row) -> dict[str, object]:
    """Return a row as a dictionary, keyed by the field names of the JSON document."""
    entry, configuration = row.entry, None
    if entry.configuration is not None:
        fields = msgspec.structs.asdict(entry.configuration)
        # The dictionary of the row has the fields of the key already.
        configuration = {name: fields[name] for name in fields if name not in entry.key._fields}
    return {
        **entry.key._asdict(),
        "configuration": configuration,
        "verdict": entry.verdict,
        "finding": finding_of(entry) or None,
        "baseline": _side(entry.baseline),
        "current": _side(entry.current),
        **{name: getattr(entry, name) for name in _OF_ENTRY},
        "reason": reason_text(entry),
        "metrics": [
            {
                "metric": metric.metric.words,
                "unit": metric.metric.unit,
                **{name: getattr(metric, name) for name in _OF_METRIC},
                "reason": metric_reason(metric),
            }
            for metric in entry.metrics
        ],
        "causes": [
            {
                "kind": cause.kind,
                "headline": cause_words.headline(cause),
                "statement": cause_words.statement(cause),
                "share": cause.share,
                "lost_s": cause.lost_s,
                "scope": cause_words.scope(cause, entry.device),
                "ranks": cause.ranks,
                "hosts": cause.hosts,
                "device_uuids": cause.device_uuids,
                "evidence": cause_evidence.evidence(cause),
                "probes": probes_for(cause.code),
                "next_step": cause_words.next_step(cause),
            }
            for cause in entry.causes
        ],
    }


def _side(side: Scaling) -> dict[str, object]:
    names = ("speedup", "efficiency", "step_time_s", "samples_per_s", "value")
    return {name: getattr(side, name) for name in names}


Labels = Mapping[str, object]
"""Label values keyed by label name; labels whose value is None are omitted."""
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_UNITS = {"s": "seconds", "bytes": "bytes", "J": "joules"}


_BUSY = "Share of time with a kernel running, mean over GPUs and runs"
_OF_POINTS = (
    ("value", "metric_value", "", "Value of the metric in place of the step time"),
    ("step_time_s", "step_time", "seconds", "Time of a step"),
    ("samples_per_s", "throughput", "samples_per_second", "Samples per second in all"),
    ("speedup", "speedup", "ratio", "Throughput over that of 1 device"),
    ("efficiency", "efficiency", "ratio", "Speedup over the number of devices"),
    ("gpu_utilization", "gpu_utilization", "ratio", _BUSY),
    ("valid_runs", "valid_runs", "", "Runs that gave a number"),
    ("failed_runs", "failed_runs", "", "Runs that gave none"),
)
"""Gauges for the current measurement: attribute of a scaling point, name, unit and meaning."""
_OF_ENTRIES = (
    ("baseline.speedup", "baseline_speedup", "ratio", "Speedup in the baseline"),
    ("baseline.efficiency", "baseline_efficiency", "ratio", "Efficiency in the baseline"),
    ("change", "change", "ratio", "Change of what is judged, below 0 worse"),
    ("minimum_detectable_loss", "minimum_detectable_loss", "ratio", f"Smallest loss {FOUND}"),
)
"""Gauges for each row of the comparison, as in `_OF_POINTS`; metrics have gauges of their own."""


def openmetrics(view: View) -> str:
    """Return the comparison as gauges for the textfile collector of Prometheus' node_exporter.

    The text is valid both in Prometheus' format, which the collector reads, and in OpenMetrics. So
    all metrics are gauges, the only type with the same syntax in both, and have no timestamps,
    which the collector rejects. Unknown values are omitted.
    """
    return "\n".join((*_gauge_lines(view), "# EOF"))


def _gauge_lines(view: View) -> Iterator[str]:
    comparison = view.comparison
    # Injected faults are not a state of the cluster, so a label separates their time series.
    injections = ", ".join(view.measured.injections) or None
    cluster = {"cluster": comparison.cluster, "injections": injections}
    points = []
    for point in (entry.point for entry in view.measured.entries):
        shape = None if point.sample_shape is None else "x".join(map(str, point.sample_shape))
        labels = {**cluster, **_fields(point.configuration), **point.key._asdict()}
        labels |= {"batch_per_gpu": point.batch_per_gpu, "sample_shape": shape}
        points.append((labels, point))
    entries: list[tuple[Labels, EntryVerdict]] = []
    seen: Counter[object] = Counter()
    for entry in comparison.entries:
        seen[entry.key, entry.configuration] += 1
        count = seen[entry.key, entry.configuration]
        labels = {**cluster, **_fields(entry.configuration), **entry.key._asdict()}
        # Labels must be unique: if a row occurs twice, the second one is `row="2"`.
        entries.append(({**labels, "row": count if count > 1 else None}, entry))
    for gauges, found in ((_OF_POINTS, points), (_OF_ENTRIES, entries)):
        for field, name, unit, meaning in gauges:
            values = [(labels, attrgetter(field)(each)) for labels, each in found]
            yield from family(name, unit, meaning, values)
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
    times_s = [datetime.fromisoformat(time).timestamp() for time in view.measured.written_at]
    times_s += [run.started_at_s or 0.0 for run in view.measured.runs]
    newest = [(cluster, max(times_s))]
    yield from family("measured_timestamp", "seconds", "Unix time of the last run", newest)
    environment = view.measured.environments[-1]
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


def _fields(configuration: Configuration | None) -> dict[str, object]:
    return {} if configuration is None else msgspec.structs.asdict(configuration)


def family(
    name: str, unit: str, meaning: str, found: Iterable[tuple[Labels, Estimate | float | None]]
) -> Iterator[str]:
    """Yield a gauge's lines for the values in `found`; known bounds get gauges of their own."""
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
            yield f"gpuscale_{full}{{{_label_text(labels)}}} {number!r}"


def _label_text(labels: Labels) -> str:
    """Format labels for Prometheus, with booleans in lower case: `case="mnist_cnn",gpus="4"`."""
    words = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in labels.items()
        if value is not None
    }
    return ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in words.items())


COMPARISON_FORMATS: Mapping[str, Format[View]] = {
    "text": Format("a terminal or a log; the default", texts.text),
    "json": Format("scripts", json),
    "csv": Format("spreadsheets and data frames, a line for each row", csv),
    "markdown": Format("a comment on a merge request, or the page of a CI job", texts.markdown),
    "junit": Format("the test reports of GitLab, Jenkins and others", texts.junit),
    "openmetrics": Format(
        "Prometheus, through the textfile collector of node_exporter", openmetrics
    ),
}
