"""Formats of a comparison for other programs, and the table of all its formats."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import msgspec

from gpuscale.records import METRICS_BY_NAME, Scaling
from gpuscale.records.metrics import STEP_TIME
from gpuscale.records.probes import probes_for
from gpuscale.records.record import document_text
from gpuscale.reports import cause_words
from gpuscale.reports.columns import SCALING, Column, csv_text
from gpuscale.reports.comparison import View, text_and_markdown
from gpuscale.reports.comparison.openmetrics import openmetrics
from gpuscale.reports.comparison.rows import Row, detail_lines, finding_of
from gpuscale.reports.reason_words import metric_reason
from gpuscale.reports.screen import Screen

_SIDES = ("baseline", "current")
_METRICS = tuple(name for name in METRICS_BY_NAME if name != STEP_TIME)


def _of_entry(name: str) -> Column[Row]:
    return Column(name, value=attrgetter(f"entry.{name}"))


def _of_key(name: str) -> Column[Row]:
    return Column(name, value=attrgetter(f"entry.key.{name}"))


def _of_metric(name: str, what: str, row: Row) -> object:
    found = next((each for each in row.entry.metrics if each.metric.name == name), None)
    if found is None or what == "verdict_of":
        return found and found.verdict
    return getattr(found, what).value


_COLUMNS: tuple[Column[Row], ...] = (
    *map(_of_key, ("case", "strategy")),
    Column("device", value=lambda row: row.entry.configuration and row.entry.configuration.device),
    _of_key("gpus"),
    Column("name"),
    _of_entry("verdict"),
    Column("finding", value=lambda row: finding_of(row.entry) or None),
    *map(_of_entry, ("since", "changed_quantity")),
    Column("change", interval="[]", value=attrgetter("entry.change")),
    *map(_of_entry, ("minimum_detectable_loss", "further_runs")),
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
    Column("reason"),
    Column(
        "cause",
        value=lambda row: cause_words.headline(row.entry.causes[0]) if row.entry.causes else None,
    ),
)


def csv(view: View) -> str:
    """Return CSV (docs/tools.md), with rows in the baseline's order; unknown values are empty."""
    return csv_text(_COLUMNS, view.rows, injections=" ".join(view.injections) or None)


_OF_ENTRY = ("since", "change", "changed_quantity", "minimum_detectable_loss", "further_runs")
_OF_METRIC = ("verdict", "baseline", "current", "change")


def json(view: View) -> str:
    """Return the comparison as a JSON document (docs/tools.md); unknown values are null."""
    comparison = view.comparison
    return document_text(
        "gpuscale-comparison",
        headline=[{"label": label, "text": text} for label, text in view.headline],
        baseline={
            "name": comparison.baseline_name,
            "machine": comparison.baseline_machine,
            "kind": comparison.baseline_kind,
            **asdict(comparison.before),
        },
        current={"machine": comparison.current_machine, **asdict(comparison.after)},
        injections=view.injections,
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
        "reason": row.reason,
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
                "evidence": cause_words.evidence(cause),
                "probes": probes_for(cause.code),
                "next_step": cause_words.next_step(cause),
            }
            for cause in entry.causes
        ],
    }


def _side(side: Scaling) -> dict[str, object]:
    names = ("speedup", "efficiency", "step_time_s", "samples_per_s", "value")
    return {name: getattr(side, name) for name in names}


# Characters that XML 1.0 cannot hold, not even as a reference.
_NO_CHARACTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(view: View) -> str:
    """Return a JUnit report, for GitLab, Jenkins and others, with a test case for each row.

    It follows both schemas in use: Jenkins' (`junit-10.xsd` of its xUnit plugin) and Ant's
    (`JUnit.xsd` of Windy Road). Neither allows properties in a test case. A loss is a failure;
    any other row that does not pass is an error, as is a comparison without rows. So the report is
    green only if the exit code is 0.
    """
    cases = [_case(row) for row in view.ranked]
    if not cases:
        cases = [Element("testcase", name="comparison", classname="gpuscale", time="0")]
        problem = SubElement(cases[0], "error", type="nothing comparable", message=view.outcome)
        problem.text = "\n".join((view.outcome, *view.notes))
    name = f"gpuscale compare {view.comparison.baseline_name}"
    newest = max(datetime.fromisoformat(result.created_at) for result in view.results)
    hosts = dict.fromkeys(result.environment.host or "" for result in view.results)
    wall_s = sum(run.wall_s or 0.0 for result in view.results for run in result.runs)
    report = Element("testsuites")
    suite = SubElement(
        report,
        "testsuite",
        name=f"{view.warning}: {name}" if view.warning else name,
        package="gpuscale",
        id="0",
        # In the time zone of the results: the schema allows no offset.
        timestamp=newest.replace(tzinfo=None).isoformat(timespec="seconds"),
        hostname=",".join(hosts) or "localhost",
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors=str(sum(case.find("error") is not None for case in cases)),
        skipped="0",
        time=f"{wall_s:.3f}",
    )
    facts = {
        "baseline": f"{view.comparison.baseline_name}: {view.comparison.baseline_machine}",
        "current": view.comparison.current_machine,
        "summary": view.summary,
        "exit_code": str(view.exit_code),
    }
    properties = SubElement(suite, "properties")
    for key, value in facts.items():
        SubElement(properties, "property", name=key, value=value)
    suite.extend(cases)
    SubElement(
        suite, "system-out"
    ).text = f"{text_and_markdown.text(replace(view, screen=Screen()))}\n"
    SubElement(suite, "system-err")
    for element in report.iter():
        element.text = element.text and _NO_CHARACTER.sub("�", element.text)
        element.attrib = {key: _NO_CHARACTER.sub("�", text) for key, text in element.attrib.items()}
    ElementTree.indent(report)
    body = ElementTree.tostring(report, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}'


def _case(row: Row) -> Element:
    name, verdict = row.name.replace("/", ".", 1), row.entry.verdict
    case = Element("testcase", name=row.devices, classname=name, time=f"{row.wall_s:.3f}")
    if not verdict.is_pass:
        tag = "failure" if verdict.is_loss else "error"
        message = f"{f'{row.verdict} {row.short_reason}'.rstrip()}: {row.reason}"
        problem = SubElement(case, tag, type=verdict.value, message=message)
        details = (f"  {line}" for line in detail_lines(row.lost_metrics, row.causes))
        problem.text = "\n".join((row.label, row.reason, *details))
    return case


class Format(NamedTuple):
    """A format of comparisons: its purpose, and the function that renders it."""

    purpose: str
    render: Callable[[View], str]


COMPARISON_FORMATS: Mapping[str, Format] = {
    "text": Format("a terminal or a log; the default", text_and_markdown.text),
    "json": Format("scripts", json),
    "csv": Format("spreadsheets and data frames, a line for each row", csv),
    "markdown": Format(
        "a comment on a merge request, or the page of a CI job", text_and_markdown.markdown
    ),
    "junit": Format("the test reports of GitLab, Jenkins and others", junit),
    "openmetrics": Format(
        "Prometheus, through the textfile collector of node_exporter", openmetrics
    ),
}
