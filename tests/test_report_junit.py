"""A comparison as a JUnit report: valid by both schemas in use, and never green by mistake."""

import re
from dataclasses import dataclass
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from comparison_records import comparison, entry, of_each_verdict
from scaling_records import measured

from gpuscale.errors import ExitCode
from gpuscale.records import Comparison, Verdict
from gpuscale.report.comparison_junit import comparison_junit

RESULTS = [measured({1: [0.1, 0.1], 4: [0.11, 0.11]})]
TOKEN = r"\S+( \S+)*"
NUMBER, DECIMAL = r"\d+", r"\d+(\.\d+)?"


@dataclass(frozen=True, slots=True)
class Rule:
    """What both junit-10.xsd (Jenkins) and JUnit.xsd (Windy Road) let an element be."""

    attributes: dict[str, str]
    """Those that either requires, and those used that both know, as patterns."""
    children: str = ""
    """The order of the children that both allow, as a pattern of their names."""


PROBLEM = Rule({"type": r"[\s\S]*", "message": r"[\s\S]*"})
RULES = {
    "testsuites": Rule({}, r"(testsuite )*"),
    "testsuite": Rule(
        {
            "name": TOKEN,
            "package": TOKEN,
            "id": NUMBER,
            "timestamp": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d",
            "hostname": TOKEN,
            "tests": NUMBER,
            "failures": NUMBER,
            "errors": NUMBER,
            "skipped": NUMBER,
            "time": DECIMAL,
        },
        r"properties (testcase )*system-out system-err ",
    ),
    "properties": Rule({}, r"(property )*"),
    "property": Rule({"name": TOKEN, "value": r"[\s\S]*"}),
    "testcase": Rule(
        {"name": TOKEN, "classname": TOKEN, "time": DECIMAL}, r"((failure|error|skipped) )?"
    ),
    "failure": PROBLEM,
    "error": PROBLEM,
    "system-out": Rule({}),
    "system-err": Rule({}),
}


def report(shown: Comparison) -> Element:
    text = comparison_junit(shown, RESULTS)
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>')
    return ElementTree.fromstring(text.encode())


def suite_of(shown: Comparison) -> Element:
    (suite,) = report(shown)
    return suite


@pytest.mark.parametrize("shown", [of_each_verdict(), comparison()], ids=["every verdict", "empty"])
def test_the_report_is_valid_by_both_schemas(shown: Comparison) -> None:
    for element in report(shown).iter():
        rule = RULES[element.tag]
        assert element.attrib.keys() == rule.attributes.keys(), element.tag
        for name, pattern in rule.attributes.items():
            assert re.fullmatch(pattern, element.attrib[name]), f"{element.tag} {name}"
        children = "".join(f"{child.tag} " for child in element)
        assert re.fullmatch(rule.children, children), f"{element.tag}: {children}"
        if children:
            assert not (element.text or "").strip()


@pytest.mark.parametrize("verdict", Verdict)
def test_the_report_is_green_only_where_the_exit_code_is_0(verdict: Verdict) -> None:
    shown = comparison(entry(Verdict.OK, gpus=1), entry(verdict))
    suite = suite_of(shown)
    red = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    assert (red == 0) == (shown.exit_code is ExitCode.OK)
    assert int(suite.attrib["failures"]) == (1 if verdict.is_loss else 0)


def test_a_comparison_without_rows_is_an_error() -> None:
    suite = suite_of(comparison(notes=["the results have no valid run"]))
    error = suite.find("testcase/error")
    assert error is not None
    assert error.text == "nothing comparable was measured\nthe results have no valid run"
    assert suite.attrib["errors"] == "1"


def test_no_two_test_cases_have_one_name() -> None:
    suite = suite_of(comparison(*[entry(Verdict.OK)] * 3, entry(Verdict.OK, gpus=8)))
    names = [(case.attrib["classname"], case.attrib["name"]) for case in suite.iter("testcase")]
    assert len(set(names)) == len(names) == 4


def test_characters_that_xml_cannot_hold_are_replaced() -> None:
    reason = "\x00\x1b[31m ]]> <b>&amp; \ufffe \ud800"
    suite = suite_of(comparison(entry(Verdict.MISSING, reason=reason), name="n\x01"))
    error = suite.find("testcase/error")
    assert error is not None
    assert error.attrib["message"] == "MISSING: ��[31m ]]> <b>&amp; � �"
    assert suite.attrib["name"] == "gpuscale compare n�"
