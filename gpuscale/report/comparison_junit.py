"""A comparison as a JUnit report, which GitLab, Jenkins and others show as tests.

It is valid by the two schemas in use: Jenkins' (`junit-10.xsd` of its xUnit plugin) and Ant's
(`JUnit.xsd` of Windy Road). Neither lets a test case have properties, so those of all rows are
the suite's.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from gpuscale.records import Comparison, Configuration, EntryKey, Estimate, Results
from gpuscale.report.colour import Palette
from gpuscale.report.comparison_text import comparison_text
from gpuscale.report.comparison_words import (
    NamedRow,
    details,
    named_rows,
    outcome,
    short_reason,
    summary_line,
    verdict_word,
)
from gpuscale.report.injection_text import injection_warning, injections_of

_Measured = tuple[EntryKey, Configuration | None]
# What XML 1.0 cannot hold, not even as a reference.
_NO_CHARACTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def comparison_junit(comparison: Comparison, results: Sequence[Results]) -> str:
    """The comparison as XML: a test case for each row, named `mnist_cnn.ddp` and `4 GPUs`.

    What got worse is a failure. What was not shown to be fine is an error, and so is a comparison
    without rows: the report is green only where the exit code is 0.

    Args:
        comparison: What to show.
        results: What was compared, at least one: when, where and for how long it was measured.
    """
    injections = injections_of(results)
    rows = named_rows(comparison)
    wall_s = _wall_s(results)
    cases = [_case(row, wall_s) for row in rows] or [_no_rows(comparison)]
    name = f"gpuscale compare {comparison.baseline_name}"
    report = Element("testsuites")
    suite = SubElement(
        report,
        "testsuite",
        {
            "name": f"{injection_warning(injections)}: {name}" if injections else name,
            "package": "gpuscale",
            "id": "0",
            "timestamp": _measured_at(results),
            "hostname": ",".join(_hosts(results)) or "localhost",
            "tests": str(len(cases)),
            "failures": str(sum(case.find("failure") is not None for case in cases)),
            "errors": str(sum(case.find("error") is not None for case in cases)),
            "skipped": "0",
            "time": _seconds(sum(wall_s.values())),
        },
    )
    properties = SubElement(suite, "properties")
    for key, value in _properties(comparison, rows):
        SubElement(properties, "property", name=key, value=value)
    suite.extend(cases)
    text = comparison_text(comparison, Palette(colour=False), injections)
    SubElement(suite, "system-out").text = f"{text}\n"
    SubElement(suite, "system-err")
    for element in report.iter():
        _keep_to_xml(element)
    ElementTree.indent(report)
    body = ElementTree.tostring(report, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}'


def _case(row: NamedRow, wall_s: Mapping[_Measured, float]) -> Element:
    entry = row.entry
    case = Element(
        "testcase",
        name=row.gpus,
        classname=row.name.replace("/", ".", 1),
        time=_seconds(wall_s.get((entry.key, entry.configuration), 0.0)),
    )
    if not entry.verdict.is_pass:
        word, short = verdict_word(entry.verdict), short_reason(entry)
        problem = SubElement(
            case,
            "failure" if entry.verdict.is_loss else "error",
            type=entry.verdict.value,
            message=f"{word} {short}: {entry.reason}" if short else f"{word}: {entry.reason}",
        )
        problem.text = "\n".join([row.label, *details(entry)])
    return case


def _no_rows(comparison: Comparison) -> Element:
    case = Element("testcase", name="comparison", classname="gpuscale", time="0")
    message = outcome(comparison)
    problem = SubElement(case, "error", type="nothing comparable", message=message)
    problem.text = "\n".join([message, *comparison.notes])
    return case


def _properties(comparison: Comparison, rows: Sequence[NamedRow]) -> Iterator[tuple[str, str]]:
    yield "baseline", f"{comparison.baseline_name}: {comparison.baseline_machine}"
    yield "current", comparison.current_machine
    yield "summary", summary_line(comparison)
    yield "exit_code", str(comparison.exit_code.value)
    for row in rows:
        entry = row.entry
        yield f"{row.label}: verdict", entry.verdict.value
        estimates = {
            "E baseline": entry.baseline.efficiency,
            "E": entry.current.efficiency,
            f"change of {entry.changed_quantity}": entry.change,
        }
        for metric in entry.metrics:
            unit = f"{metric.metric.value} ({metric.unit})"
            estimates |= {f"{unit} baseline": metric.baseline, unit: metric.current}
        for name, estimate in estimates.items():
            yield from _numbers(f"{row.label}: {name}", estimate)
        if entry.minimum_detectable_loss is not None:
            yield f"{row.label}: minimum detectable loss", f"{entry.minimum_detectable_loss:.6g}"


def _numbers(name: str, estimate: Estimate | None) -> Iterator[tuple[str, str]]:
    if estimate is None:
        return
    yield name, f"{estimate.value:.6g}"
    if estimate.low is not None and estimate.high is not None:
        yield f"{name}, low", f"{estimate.low:.6g}"
        yield f"{name}, high", f"{estimate.high:.6g}"


def _seconds(duration_s: float) -> str:
    return f"{duration_s:.3f}"


def _wall_s(results: Sequence[Results]) -> dict[_Measured, float]:
    """How long the runs of each row took, start-up and failed runs included."""
    total: dict[_Measured, float] = {}
    for result in results:
        for run in result.runs:
            measured = (run.key, run.configuration)
            total[measured] = total.get(measured, 0.0) + (run.wall_s or 0.0)
    return total


def _measured_at(results: Sequence[Results]) -> str:
    """When the newest of the results were made, in their own zone; the schema takes no offset."""
    newest = max(datetime.fromisoformat(result.created_at) for result in results)
    return newest.replace(tzinfo=None).isoformat(timespec="seconds")


def _hosts(results: Iterable[Results]) -> dict[str, None]:
    return dict.fromkeys(result.environment.host or "" for result in results)


def _keep_to_xml(element: Element) -> None:
    element.text = element.text and _NO_CHARACTER.sub("�", element.text)
    for name, value in element.attrib.items():
        element.set(name, _NO_CHARACTER.sub("�", value))
