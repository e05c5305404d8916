"""Exit codes as numbers: scripts and schedulers of other people rely on them."""

from collections.abc import Sequence

import pytest
from comparison_records import comparison, entry

from gpuscale.base.errors import CANNOT_WRITE, ExitCode
from gpuscale.records import Verdict


def test_the_commands_end_with_the_codes_that_they_document() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "REGRESSED": 1,
        "USAGE": 2,
        "INCONCLUSIVE": 3,
        "NOTHING_COMPARABLE": 4,
        "INCOMPLETE": 5,
        "INFRASTRUCTURE": 6,
    }
    assert CANNOT_WRITE == 74


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["ok"], 0),
        (["consistent"], 0),
        (["improved", "ok", "consistent"], 0),
        (["regressed"], 1),
        (["inconsistent"], 1),
        (["ok", "inconclusive", "missing", "regressed"], 1),
        (["incomparable", "inconsistent"], 1),
        (["inconclusive"], 3),
        (["ok", "inconclusive"], 3),
        (["ok", "missing"], 3),
        (["improved", "incomparable"], 3),
        (["inconclusive", "missing"], 3),
        (["missing", "incomparable"], 4),
        (["missing"], 4),
        ([], 4),
    ],
)
def test_the_worst_row_decides_the_exit_code_of_a_comparison(
    verdicts: Sequence[str], code: int
) -> None:
    rows = [entry(Verdict(verdict), gpus=2**i) for i, verdict in enumerate(verdicts)]
    assert int(comparison(*rows).exit_code) == code
