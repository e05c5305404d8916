"""A comparison on a terminal: what a tired person reads."""

import re

import pytest
from changing import replace
from comparison_records import (
    ALL_REDUCE,
    comparison,
    entry,
    of_each_verdict,
)
from scaling_records import CNN

from gpuscale.records import Verdict
from gpuscale.report.colour import Palette
from gpuscale.report.comparison_text import comparison_text
from gpuscale.report.wrapping import wrapped

PLAIN = Palette(colour=False)


def rows_of(text: str) -> list[str]:
    """The lines between the first and the second empty one."""
    return text.split("\n\n")[1].splitlines()


def test_what_got_worse_comes_first_and_what_is_fine_comes_last() -> None:
    rows = rows_of(comparison_text(of_each_verdict(), PLAIN))
    verdicts = [
        next(
            verdict for verdict in Verdict if re.search(rf"  {verdict.value}\b", row, re.IGNORECASE)
        )
        for row in rows
        if not row.startswith(" ")
    ]
    assert set(verdicts[:2]) == {Verdict.REGRESSED, Verdict.INCONSISTENT}
    assert set(verdicts[2:5]) == {Verdict.INCONCLUSIVE, Verdict.INCOMPARABLE, Verdict.MISSING}
    assert set(verdicts[5:]) == {Verdict.OK, Verdict.CONSISTENT, Verdict.IMPROVED}


def test_an_ok_row_whose_speedup_is_unknown_says_why() -> None:
    reason = "any loss is below 2.9 %; the speedup is unknown: no valid run on 1 GPU was measured"
    row = replace(entry(Verdict.OK, reason=reason), changed_quantity="throughput(n)")
    assert reason in " ".join(comparison_text(comparison(row), PLAIN).split())


def test_the_last_line_has_the_exit_code_of_the_process_where_that_is_another() -> None:
    text = comparison_text(comparison(entry(Verdict.OK)), PLAIN, exit_code=2)
    assert text.splitlines()[-1] == "1 ok (exit code 2)"


def test_rows_with_one_reason_share_one_sentence() -> None:
    missing = [entry(Verdict.MISSING, gpus=gpus) for gpus in (1, 2, 4)]
    text = comparison_text(comparison(*missing, entry(Verdict.OK, gpus=8)), PLAIN)
    assert "mnist_cnn/ddp on 1, 2 and 4 GPUs: not measured" in text
    text = comparison_text(comparison(*missing), PLAIN)
    assert "all rows: not measured" in text
    many = [entry(Verdict.MISSING, case=f"case_{number}") for number in range(9)]
    text = comparison_text(comparison(*many, entry(Verdict.OK)), PLAIN)
    assert "case_2/ddp on 4 GPUs and 6 more rows: not measured" in text


def test_what_to_do_next_is_said_once_and_other_rows_name_the_row_that_says_it() -> None:
    other = replace(ALL_REDUCE, next_step="look at storage")
    lost = [
        entry(Verdict.REGRESSED, gpus=gpus, causes=causes)
        for gpus, causes in (
            (2, [ALL_REDUCE, ALL_REDUCE]),
            (4, [other, ALL_REDUCE]),
            (8, [replace(ALL_REDUCE, next_step="")]),
        )
    ]
    text = comparison_text(comparison(*lost), PLAIN)
    assert re.findall(r"next: .*", text) == [
        "next: run once with NCCL_DEBUG=INFO",
        "next: as above",
        "next: look at storage",
        "next: as for mnist_cnn/ddp on 2 GPUs",
    ]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_lines_keep_to_the_width(width: int) -> None:
    long_name = replace(of_each_verdict(), baseline_machine=" ".join(["V100"] * 60))
    lines = comparison_text(long_name, PLAIN, ("data=5ms",), width=width).splitlines()
    for line in lines[:-1]:
        assert len(line) <= width, line


def test_a_wrapped_number_keeps_its_unit() -> None:
    assert wrapped("fell by 12.3 % now", 13) == ["fell by", "    12.3 %", "    now"]


def test_two_ways_of_one_case_have_names_of_their_own() -> None:
    fast = replace(CNN, precision="bf16")
    rows = [entry(Verdict.OK), entry(Verdict.OK, configuration=fast)]
    lines = rows_of(comparison_text(comparison(*rows, entry(Verdict.OK, case="other")), PLAIN))
    assert [line.split("  ")[0].rstrip() for line in lines] == [
        "mnist_cnn/ddp (full, fp32, synthetic data)",
        "mnist_cnn/ddp (full, bf16, synthetic data)",
        "other/ddp",
    ]
    same = comparison_text(comparison(entry(Verdict.OK), entry(Verdict.OK)), PLAIN)
    assert rows_of(same)[1].startswith("mnist_cnn/ddp (2)  4 GPUs")


def test_colour_adds_escapes_and_nothing_else() -> None:
    coloured = comparison_text(of_each_verdict(), Palette(colour=True), ("data=5ms",))
    assert "\033[1;31mREGRESSED\033[0m" in coloured
    plain = comparison_text(of_each_verdict(), PLAIN, ("data=5ms",))
    assert re.sub(r"\033\[[\d;]*m", "", coloured) == plain
