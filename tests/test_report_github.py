"""A comparison as annotations of a GitHub workflow."""

import re
from typing import NamedTuple

import pytest
from comparison_records import comparison, entry, of_each_verdict

from gpuscale.records import Comparison, Estimate, Verdict
from gpuscale.report.comparison_github import comparison_github


class Annotation(NamedTuple):
    kind: str
    title: str
    message: str


def annotations(shown: Comparison, injections: tuple[str, ...] = ()) -> list[Annotation]:
    """What GitHub's runner makes of the text: it takes apart, then undoes the escapes."""
    found = []
    for line in comparison_github(shown, injections).split("\n"):
        parts = re.fullmatch(r"::(error|warning|notice) title=([^:,]*)::(.*)", line)
        assert parts is not None, line
        title = parts[2].replace("%3A", ":").replace("%2C", ",")
        found.append(Annotation(parts[1], unescaped(title), unescaped(parts[3])))
    return found


def unescaped(text: str) -> str:
    return text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


def test_losses_are_errors_doubts_are_warnings_and_the_verdict_is_a_notice() -> None:
    found = annotations(of_each_verdict())
    assert [(a.kind, a.title) for a in found] == [
        ("error", "case_inconsi/ddp on 4 GPUs: INCONSISTENT"),
        ("error", "mnist_cnn/ddp on 4 GPUs: REGRESSED exposed all-reduce +14 ms"),
        ("warning", "case_inconcl/ddp on 4 GPUs: INCONCLUSIVE"),
        ("warning", "case_incompa/ddp on 4 GPUs: INCOMPARABLE"),
        ("warning", "case_missing/ddp on 4 GPUs: MISSING"),
        ("notice", "gpuscale: regressed"),
        ("notice", "gpuscale: notes"),
    ]
    assert found[-2].message.startswith("1 regressed, 1 inconsistent, ")
    assert "(exit code 1)" in found[-2].message
    assert found[-1].message == "the baseline comes from one allocation: intervals are widened"


def test_whatever_a_reason_holds_stays_in_its_annotation() -> None:
    reason = "50 % of 3, 4: ::error::x\r\n::warning title=a,b::%0A"
    (error, notice) = annotations(comparison(entry(Verdict.REGRESSED, reason=reason)))
    assert error.message == reason
    assert notice.kind == "notice"


def test_ten_annotations_show_the_largest_losses_and_name_the_rest() -> None:
    rows = [
        entry(Verdict.REGRESSED, case=f"case_{n}", change=Estimate(value=-n / 100))
        for n in range(1, 16)
    ]
    found = [a for a in annotations(comparison(*rows)) if a.kind == "error"]
    assert len(found) == 10
    assert [a.title.split("/")[0] for a in found[:9]] == [f"case_{n}" for n in range(15, 6, -1)]
    assert found[9].title == "gpuscale: 6 more"
    assert [line.split("/")[0] for line in found[9].message.splitlines()] == [
        f"case_{n}" for n in range(6, 0, -1)
    ]


@pytest.mark.parametrize("verdict", Verdict)
def test_only_a_pass_is_without_errors_and_warnings(verdict: Verdict) -> None:
    shown = comparison(entry(Verdict.OK, gpus=1), entry(verdict))
    kinds = {annotation.kind for annotation in annotations(shown)}
    assert (kinds == {"notice"}) == (shown.exit_code == 0)


def test_a_comparison_without_rows_is_a_warning_with_its_notes() -> None:
    (warning, notice) = annotations(comparison(notes=["the results have no valid run"]))
    assert warning.kind == "warning"
    assert warning.message == "the results have no valid run"
    assert notice.message.startswith("nothing to compare (exit code 4)")
