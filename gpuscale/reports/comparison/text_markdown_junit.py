"""Format a comparison as text for the terminal, Markdown for merge requests, or JUnit XML."""

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from datetime import datetime
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from msgspec.structs import replace

from gpuscale.base.grouping import by_key
from gpuscale.reports.columns import named_on
from gpuscale.reports.comparison import Explanation, View
from gpuscale.reports.comparison.rows import Row, detail_lines, subject_of
from gpuscale.reports.phrases import UNKNOWN, counted, few
from gpuscale.reports.reason_words import reason_text
from gpuscale.reports.screen import Screen, labelled_lines, padded, width_of, wrapped

_GAP = "  "
_INDENT = "    "


def text(view: View) -> str:
    """Return the comparison as text, without a final line break; losses come first."""
    return "\n".join(_lines(view))


def _lines(view: View) -> Iterator[str]:
    columns, rows = view.screen.columns, view.ranked
    if view.warning:
        yield view.screen.bold(view.warning)
    yield from _headline(view)
    if rows:
        shared = _shared_reasons(rows)
        yield ""
        yield from _table(rows, view.screen, shared)
        yield ""
        for line in (_legend(rows), *(f"{subject}: {text}" for text, subject in shared.items())):
            yield from wrapped(line, columns)
    for number, each in enumerate(view.explanations):
        yield from [""] if number == 0 else []
        yield from wrapped(": ".join(filter(None, (each.subject, each.reason))), columns)
        for line in detail_lines(each.lost_metrics, each.causes):
            yield from wrapped(f"{_INDENT}{line}", columns)
    if view.notes:
        yield ""
    for note in view.notes:
        yield from wrapped(f"note: {note}", columns, hanging=6)
    yield ""
    yield f"{view.summary} (exit code {view.exit_code})"


def _headline(view: View) -> Iterator[str]:
    first, *rest = labelled_lines(view.headline, view.screen.columns)
    if view.ranked:
        label, _ = view.headline[0]
        first = view.screen.of_verdict(view.ranked[0].entry.verdict, label) + first[len(label) :]
    yield from (first, *rest)


def _shared_reasons(rows: Sequence[Row]) -> dict[str, str]:
    """Map each short reason of several rows with the same verdict to a text that names the rows."""
    plain = (row for row in rows if row.entry.finding is None and not row.causes)
    groups = by_key(((row.verdict, row.short_reason), row) for row in plain)
    found = {text: group for (_, text), group in groups.items() if text and len(group) > 1}
    return {text: subject_of(group, rows) for text, group in found.items()}


def _table(rows: Sequence[Row], screen: Screen, said: Container[str]) -> Iterator[str]:
    """Yield a line for each row, or two if the change and the reason do not fit on the first.

    Reasons in `said` are omitted. If `screen` is too narrow, row names get lines of their own.
    """
    cells = _cells(rows)
    heads = {name: name for name in cells[0]}
    widths = {name: max(width_of(each[name]) for each in (heads, *cells)) for name in heads}
    names_above = sum(widths.values()) + len(_GAP) * (len(widths) - 1) > screen.columns
    if names_above:
        widths["case"] = 0
        heads, *cells = ({**each, "case": ""} for each in (heads, *cells))
    yield _GAP.join(f"{heads[name]:<{width}}" for name, width in widths.items()).rstrip()
    for row, texts, before in zip(rows, cells, ("", *(row.name for row in rows)), strict=False):
        if names_above and row.name != before:
            yield row.name
        line = _GAP.join(padded(texts[name], width) for name, width in widths.items())
        reason = "" if row.short_reason in said else row.short_reason
        behind = "; ".join(filter(None, (row.moved.line, reason)))
        fits = width_of(line) + len(_GAP) + len(behind) <= screen.columns
        start = line.rstrip()[: -len(row.verdict)]
        line = start + screen.of_verdict(row.entry.verdict, row.verdict)
        if behind and fits:
            line += " " * (widths["verdict"] - len(row.verdict)) + _GAP + behind
        yield line
        if behind and not fits:
            yield from wrapped(_INDENT + behind, screen.columns)


def _cells(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return each row's table cells (name, number of GPUs, values, verdict), keyed by header."""
    cells = (
        {
            "case": row.name,
            "GPUs": str(row.entry.key.gpus),
            **{name: pair.line for name, pair in row.numbers.items()},
            "verdict": row.verdict,
        }
        for row in rows
    )
    return named_on((row.entry.device for row in rows), cells)


def _legend(rows: Sequence[Row]) -> str:
    """Explain the table."""
    parts = ["before → now"]
    if any(row.change is not None and row.change.has_interval for row in rows):
        parts.append("brackets: 95 % interval of the change")
    if any(row.entry.key.gpus > 1 for row in rows):
        parts.append("E: efficiency, 1 is ideal scaling")
    return "; ".join(parts)


_SIGNS = ("❌", "⚠️", "✅")
"""Emoji for verdicts, indexed by `Verdict.weight`."""
_MOST_ROWS, _MOST_REASONS, _MOST_NOTES = 60, 8, 12
_LONGEST_TEXT = 400
# Characters that GitHub and GitLab treat as markup; `_` only at the beginning or end of a word.
_MARKUP = re.compile(r"[\\`*|~\[\]]|(?<!\w)_|_(?!\w)")
# `@name` would notify a user; `#12` and `!12` would link to an issue or a merge request.
_REFERENCE = re.compile(r"(?<!\w)([@#!])(?=\w)")


def markdown(view: View) -> str:
    """Return the comparison in GitHub's and GitLab's Markdown, without a final line break."""
    rows = view.ranked
    worst = min((row.entry.verdict.weight for row in rows), default=1)
    blocks = [f"**{_plain(view.warning)}**"] if view.warning else []
    blocks += [
        f"### {_SIGNS[worst]} Scaling: {view.outcome}",
        f"**{view.summary}** (exit code {view.exit_code})",
        "\n".join(
            f"- **{_plain(label)}** {f'`{text}`' if label == 'run' else _plain(text)}"
            for label, text in view.headline
        ),
    ]
    blocks += _markdown_table([row for row in rows if not row.entry.verdict.is_pass])
    blocks += few([*_reasons(view.explanations)], _MOST_REASONS, "reason")
    notes = [f"- {_plain(note)}" for note in view.notes]
    blocks.append("\n".join(few(notes, _MOST_NOTES, "note")))
    if fine := [row for row in rows if row.entry.verdict.is_pass]:
        folded = "\n\n".join(_markdown_table(fine))
        summary = f"{counted(len(fine), 'row')} without a loss"
        blocks.append(f"<details><summary>{summary}</summary>\n\n{folded}\n\n</details>")
    return "\n\n".join(filter(None, blocks))


def _markdown_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table of the first rows, then a line with the number of rows left out, if any."""
    lines = []
    for row, cells in zip(rows, _cells(rows), strict=True):
        *others, word = cells.values()
        word = word if row.entry.verdict.is_pass else f"**{word}**"
        verdict = f"{_SIGNS[row.entry.verdict.weight]} {word}"
        others = [_plain(others[0]), *others[1:], row.moved.line or UNKNOWN, verdict]
        lines.append(f"| {' | '.join((*others, _plain(row.short_reason)))} |")
    if rows:
        *names, last = cells
        header = f"| {' | '.join((*names, 'change', last))} | |"
        yield "\n".join((header, f"|---|--:{'|---' * (len(names) + 1)}|", *lines[:_MOST_ROWS]))
        yield from few(lines, _MOST_ROWS, "row")[_MOST_ROWS:]


def _reasons(explanations: Iterable[Explanation]) -> Iterable[str]:
    """Yield a Markdown block for each explanation: reason, metrics that got worse, and causes."""
    for found in explanations:
        reason = found.reason and f": {_plain(found.reason)}"
        lines = [f"**{_plain(found.subject)}**{reason}"]
        lines += [f"- {_plain(metric)}" for metric in found.lost_metrics]
        for number, cause in enumerate(found.causes, start=1):
            lines.append(f"{number}. {_plain(cause.line)}")
            lines += [f"   - {_plain(fact)}" for fact in cause.facts]
            lines += [f"   - next: {_plain(cause.next_step)}"] if cause.next_step else []
        if len(lines) > 1:
            # Some renderers need an empty line between a paragraph and a list.
            lines.insert(1, "")
        yield "\n".join(lines)


def _plain(text: str) -> str:
    """Shorten a long text, and escape markup, HTML and mentions of users."""
    if len(text) > _LONGEST_TEXT:
        text = f"{text[: _LONGEST_TEXT - 1]}…"
    text = " ".join(text.split())
    text = _REFERENCE.sub("\\1\u2060", text)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKUP.sub(r"\\\g<0>", text)


# Characters that XML 1.0 cannot hold, not even as a reference.
_NO_CHARACTER = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def junit(view: View) -> str:
    """Return a JUnit report, for GitLab, Jenkins and others, with a test case for each row.

    It follows both schemas in use: Jenkins' (`junit-10.xsd` of its xUnit plugin) and Ant's
    (`JUnit.xsd` of Windy Road). Neither allows properties in a test case. A loss is a failure;
    any other row that does not pass is an error, as is a comparison without rows. So all tests
    pass only if the exit code is 0.
    """
    cases = [_case(row) for row in view.ranked]
    if not cases:
        cases = [Element("testcase", name="comparison", classname="gpuscale", time="0")]
        problem = SubElement(cases[0], "error", type="nothing comparable", message=view.outcome)
        problem.text = "\n".join((view.outcome, *view.notes))
    name = f"gpuscale compare {view.comparison.baseline_name}"
    newest = max(map(datetime.fromisoformat, view.measured.written_at))
    hosts = dict.fromkeys(where.host or "" for where in view.measured.environments)
    wall_s = sum(run.wall_s or 0.0 for run in view.measured.runs)
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
    SubElement(suite, "system-out").text = f"{text(replace(view, screen=Screen()))}\n"
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
        reason = reason_text(row.entry)
        tag = "failure" if verdict.is_loss else "error"
        message = f"{f'{row.verdict} {row.short_reason}'.rstrip()}: {reason}"
        problem = SubElement(case, tag, type=verdict.value, message=message)
        details = (f"  {line}" for line in detail_lines(row.lost_metrics, row.causes))
        problem.text = "\n".join((f"{row.name} on {row.devices}", reason, *details))
    return case
