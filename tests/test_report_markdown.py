"""A comparison as a comment on a merge request."""

import re

import pytest
from comparison_records import (
    comparison,
    entry,
    of_each_verdict,
    peak_memory,
)

from gpuscale.records import Verdict
from gpuscale.report.comparison_markdown import comparison_markdown

HOSTILE = "a|b`c` <img src=x> **d** [e](f) @someone #12 \\"


def test_rows_that_are_fine_are_folded_away_and_all_others_are_not() -> None:
    seen, folded = comparison_markdown(of_each_verdict()).split("<details>", 1)
    assert "| case_missing/ddp | 4 | 0.91 → – | – | ⚠️ **MISSING** |" in seen
    assert (
        "| mnist_cnn/ddp | 4 | 0.91 → 0.84 | E −7.7 % [−9.1 %, −6.2 %] | ❌ **REGRESSED** | "
        in seen
    )
    assert "✅" not in seen
    assert folded.startswith("<summary>4 rows without a loss</summary>\n\n|")
    assert folded.count("| ✅ ok | finds 2.3 % |") == 2


def test_no_name_breaks_the_table_or_becomes_markup() -> None:
    rows = [entry(verdict, case=HOSTILE, reason=HOSTILE) for verdict in Verdict]
    text = comparison_markdown(comparison(*rows, notes=[HOSTILE], name=HOSTILE), (HOSTILE,))
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tables) >= len(rows)
    for line in tables:
        assert len(re.findall(r"(?<!\\)\|", line)) == 7, line
    assert "<img" not in text
    assert "@someone" not in text
    assert "#12" not in text
    own_marks = re.sub(r"\*\*|\[[^a-z\\]+\]", "", text)
    assert re.search(r"(?<!\\)[`*\[\]]", own_marks) is None


@pytest.mark.parametrize("verdicts", [[Verdict.OK], [Verdict.REGRESSED], list(Verdict)])
def test_500_rows_fit_into_a_comment_and_what_is_left_out_is_counted(
    verdicts: list[Verdict],
) -> None:
    rows = [
        entry(
            verdicts[number % len(verdicts)],
            case=f"a_rather_long_name_of_a_case_{number}",
            reason=f"a sentence of its own, number {number}, about as long as they usually are",
            metrics=[peak_memory(Verdict.OK)] * 3,
        )
        for number in range(500)
    ]
    text = comparison_markdown(comparison(*rows, notes=["a note " * 30] * 100), ("data=5ms",))
    assert len(text.encode()) <= 65_536
    assert "left out here" in text
    shown = len(re.findall(r"^\| a_rather\S+ \| 4 \| 0", text, re.MULTILINE))
    counted = [int(number) for number in re.findall(r"and (\d+) more rows, left", text)]
    metrics_shown = len(re.findall(r"^\| a_rather\S+ \| 4 \| peak", text, re.MULTILINE))
    assert shown + metrics_shown + sum(counted) == 500 + 1500
