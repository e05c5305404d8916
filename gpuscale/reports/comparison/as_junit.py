"""A comparison as a JUnit report, which GitLab, Jenkins and others show as tests.

It follows both schemas in use: Jenkins' (`junit-10.xsd` of its xUnit plugin) and Ant's
(`JUnit.xsd` of Windy Road). Neither allows properties in a test case: the JSON and CSV formats have
the numbers of all rows.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from gpuscale.reports.comparison import View, as_text
from gpuscale.reports.comparison.rows import Row, detail_lines
from gpuscale.reports.screen import Screen

# Characters that XML 1.0 cannot hold, not even as a reference.
_NO_CHARACTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(view: View) -> str:
    """Return XML with a test case for each row, such as `4 GPUs` in the class `mnist_cnn.ddp`.

    A loss is a failure. A row not shown to be fine is an error, and so is a comparison without
    rows: the report is green only if the exit code is 0.
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
    properties = SubElement(suite, "properties")
    for key, value in _properties(view):
        SubElement(properties, "property", name=key, value=value)
    suite.extend(cases)
    SubElement(suite, "system-out").text = f"{as_text.render(replace(view, screen=Screen()))}\n"
    SubElement(suite, "system-err")
    for element in report.iter():
        element.text = element.text and _NO_CHARACTER.sub("�", element.text)
        element.attrib = {key: _NO_CHARACTER.sub("�", text) for key, text in element.attrib.items()}
    ElementTree.indent(report)
    body = ElementTree.tostring(report, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}'


def _case(row: Row) -> Element:
    name, verdict = row.name.replace("/", ".", 1), row.entry.verdict
    case = Element("testcase", name=row.gpus, classname=name, time=f"{row.wall_s:.3f}")
    if not verdict.is_pass:
        tag = "failure" if verdict.is_loss else "error"
        message = f"{f'{row.verdict} {row.short_reason}'.rstrip()}: {row.reason}"
        problem = SubElement(case, tag, type=verdict.value, message=message)
        details = (f"  {line}" for line in detail_lines(row.lost_metrics, row.causes))
        problem.text = "\n".join((row.label, row.reason, *details))
    return case


def _properties(view: View) -> Iterator[tuple[str, str]]:
    comparison = view.comparison
    yield "baseline", f"{comparison.baseline_name}: {comparison.baseline_machine}"
    yield "current", comparison.current_machine
    yield "summary", view.summary
    yield "exit_code", str(view.exit_code)
