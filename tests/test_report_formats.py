"""The promises of each report format: valid, complete, and never green by mistake."""

import re
import shutil
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from builders import CNN, baseline, environment, results, run
from builders.comparisons import (
    comparison,
    entry,
    noted,
    of_each_verdict,
    peak_memory,
    told,
    view,
    viewed,
)
from changing import replace
from command_line import ran
from statements import known

from gpuscale.base.errors import ExitCode
from gpuscale.judge.compare import compare
from gpuscale.records import Comparison, Verdict
from gpuscale.reports.comparison import View
from gpuscale.reports.comparison.formats import openmetrics
from gpuscale.reports.comparison.text_markdown_junit import junit, markdown

HOSTILE = "a|b`c` <img src=x> **d** [e](f) @someone #12 \\"


def test_rows_that_are_fine_are_folded_away_and_all_others_are_not() -> None:
    seen, folded = markdown(view(of_each_verdict())).split("<details>", 1)
    assert seen.count("\n| ") == 1 + 5
    assert "✅" not in seen
    assert folded.count("| ✅") == 4


def test_no_name_breaks_the_table_or_becomes_markup() -> None:
    rows = [entry(verdict, case=HOSTILE, reason=told(HOSTILE)) for verdict in Verdict]
    shown = comparison(*rows, notes=[noted(HOSTILE)], name=HOSTILE)
    text = markdown(view(shown, HOSTILE))
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tables) >= len(rows)
    for line in tables:
        assert len(re.findall(r"(?<!\\)\|", line)) in (8, 9), line
    for markup in ("<img", "@someone", "#12"):
        assert markup not in text
    own_marks = re.sub(r"\*\*|\[[^a-z\\]+\]", "", text)
    assert re.search(r"(?<!\\)[`*\[\]]", own_marks) is None


@pytest.mark.parametrize("verdicts", [[Verdict.OK], [Verdict.REGRESSED], list(Verdict)])
def test_500_rows_fit_into_a_comment(verdicts: list[Verdict]) -> None:
    rows = []
    for number in range(500):
        case = f"a_rather_long_name_of_a_case_{number}"
        reason = told(f"of its own, number {number}, about as long as they usually are")
        row = entry(verdicts[number % len(verdicts)], case=case, reason=reason)
        rows.append(replace(row, metrics=(peak_memory(Verdict.OK),) * 3))
    shown = comparison(*rows, notes=[noted(f"{n} " + "a note " * 20) for n in range(100)])
    text = markdown(view(shown, "data=5ms"))
    assert len(text.encode()) <= 65_536
    rows_shown = len(re.findall(r"^\| a_rather\S+ \| 4 \| – ", text, re.MULTILINE))
    left_out = [int(number) for number in re.findall(r"^and (\d+) more rows?$", text, re.M)]
    assert left_out
    assert rows_shown + sum(left_out) == 500


TOKEN = r"\S+( \S+)*"
NUMBER, DECIMAL = r"\d+", r"\d+(\.\d+)?"


ANY_TEXT, PROBLEM = r"[\s\S]*", ({"type": r"[\s\S]*", "message": r"[\s\S]*"}, "")
TIMED = {"name": TOKEN, "classname": TOKEN, "time": DECIMAL}
# Elements as both junit-10.xsd (Jenkins) and JUnit.xsd (Windy Road) allow them: attributes that
# either schema requires, and optional ones that both know; the order of the children.
RULES: dict[str, tuple[dict[str, str], str]] = {
    "testsuites": ({}, r"(testsuite )*"),
    "testsuite": (
        dict.fromkeys(("name", "package", "hostname"), TOKEN)
        | dict.fromkeys(("id", "tests", "failures", "errors", "skipped"), NUMBER)
        | {"timestamp": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", "time": DECIMAL},
        r"properties (testcase )*system-out system-err ",
    ),
    "properties": ({}, r"(property )*"),
    "property": ({"name": TOKEN, "value": ANY_TEXT}, ""),
    "testcase": (TIMED, r"((failure|error|skipped) )?"),
    **dict.fromkeys(("failure", "error"), PROBLEM),
    **dict.fromkeys(("system-out", "system-err"), ({}, "")),
}


def suite_of(shown: Comparison, *injections: str) -> Element:
    (suite,) = ElementTree.fromstring(junit(view(shown, *injections)).encode())
    return suite


@pytest.mark.parametrize("shown", [of_each_verdict(), comparison()], ids=["every verdict", "empty"])
def test_the_report_is_valid_by_both_schemas(shown: Comparison) -> None:
    text = junit(view(shown))
    for element in ElementTree.fromstring(text.encode()).iter():
        attributes, order = RULES[element.tag]
        assert element.attrib.keys() == attributes.keys(), element.tag
        for name, pattern in attributes.items():
            assert re.fullmatch(pattern, element.attrib[name]), f"{element.tag} {name}"
        children = "".join(f"{child.tag} " for child in element)
        assert re.fullmatch(order, children), f"{element.tag}: {children}"
        if children:
            assert not (element.text or "").strip()


@pytest.mark.parametrize("verdict", Verdict)
def test_the_report_is_green_only_where_the_exit_code_is_0(verdict: Verdict) -> None:
    shown = comparison(entry(Verdict.OK, gpus=1), entry(verdict))
    suite = suite_of(shown)
    red = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    assert (red == 0) == (shown.exit_code is ExitCode.OK)
    assert int(suite.attrib["failures"]) == (1 if verdict.is_loss else 0)


def test_characters_that_xml_cannot_hold_are_replaced() -> None:
    reason = "\x00\x1b[31m ]]> <b>&amp; \ufffe \ud800"
    suite = suite_of(comparison(entry(Verdict.MISSING, reason=told(reason)), name="n\x01"))
    error = suite.find("testcase/error")
    assert known(error).attrib["message"].endswith("��[31m ]]> <b>&amp; � �)")
    assert suite.attrib["name"] == "gpuscale compare n�"


BF16 = replace(CNN, precision="bf16")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def of_several_configurations() -> View:
    """One case and strategy in two precisions and, in one of them, with two batches."""
    made = (
        run(gpus, 0.1 * scale, configuration=configuration, batch_per_gpu=batch, index=index)
        for configuration, batch, scale in ((CNN, 128, 1), (BF16, 128, 0.5), (BF16, 256, 0.9))
        for gpus in (1, 2)
        for index in (1, 2, 3)
    )
    now = results(*made, where=replace(environment(), driver_version='5\\90 "beta"\nx'))
    then = baseline({1: [0.1] * 6, 2: [0.1] * 6})
    return viewed(compare(then, [now]), now)


def read(text: str) -> Samples:
    """Every sample, once by OpenMetrics and once by Prometheus' own format, which agree."""
    as_openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")
    as_prometheus = pytest.importorskip("prometheus_client.parser")
    found: list[Samples] = []
    for parser in (as_openmetrics, as_prometheus):
        families = list(parser.text_string_to_metric_families(text))
        samples = [sample for family in families for sample in family.samples]
        assert all(family.type == "gauge" and family.documentation for family in families)
        assert all(sample.timestamp is None for sample in samples)
        values = {(each.name, frozenset(each.labels.items())): each.value for each in samples}
        assert len(values) == len(samples), "two samples of one name and labels"
        found.append(values)
    assert found[0] == found[1]
    return found[0]


def value(samples: Samples, name: str, **labels: str) -> float:
    wanted = set(labels.items())
    (found,) = [its for (one, has), its in samples.items() if one == name and wanted <= has]
    return found


def test_both_formats_read_every_row_with_labels_of_its_own() -> None:
    samples = read(f"{openmetrics(of_several_configurations())}\n")
    found = {"cluster": "ARC4", "case": "mnist_cnn", "strategy": "ddp", "gpus": "2"}
    bf16 = {**found, "precision": "bf16"}
    for batch, time_s in (("128", 0.05), ("256", 0.09)):
        found_s = value(samples, "gpuscale_step_time_seconds", **bf16, batch_per_gpu=batch)
        assert found_s == pytest.approx(time_s)
    fp32 = {**found, "precision": "fp32"}
    assert value(samples, "gpuscale_speedup_ratio", **fp32) == pytest.approx(2)
    assert value(samples, "gpuscale_baseline_speedup_ratio", **fp32) == pytest.approx(2)
    assert value(samples, "gpuscale_throughput_samples_per_second", **fp32) == pytest.approx(2560)
    assert value(samples, "gpuscale_measured_timestamp_seconds", cluster="ARC4") == 1795230000
    assert value(samples, "gpuscale_comparison_info", driver='5\\90 "beta"\nx') == 1


def test_faults_on_purpose_never_go_into_the_series_of_the_cluster() -> None:
    samples = read(f"{openmetrics(view(of_each_verdict(), 'data=5ms'))}\n")
    assert all(("injections", "data=5ms") in labels for _, labels in samples)


@pytest.mark.parametrize("verdict", Verdict)
def test_a_row_has_one_verdict_and_the_whole_its_exit_code(verdict: Verdict) -> None:
    shown = comparison(entry(verdict, case='a"b\\c\n{d}'))
    samples = read(f"{openmetrics(view(shown))}\n")
    for each in Verdict:
        assert value(samples, "gpuscale_verdict", verdict=each.value) == float(each is verdict)
    assert value(samples, "gpuscale_exit_code", cluster="ARC4") == shown.exit_code


@pytest.mark.parametrize("shown", [of_several_configurations(), view(of_each_verdict())])
def test_promtool_finds_nothing_to_complain_about(shown: View) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not on PATH (Debian: prometheus)")
    text = f"{openmetrics(shown)}\n"
    checked = ran(program, "check", "metrics", input=text)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
