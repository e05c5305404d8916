"""Exit codes as numbers: scripts and schedulers of other people rely on them."""

from collections.abc import Sequence

import pytest
from builders.comparisons import comparison, entry

from gpuscale.records import Verdict


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
def test_the_worst_row_decides_the_exit_code(verdicts: Sequence[str], code: int) -> None:
    rows = [entry(Verdict(verdict), gpus=2**i) for i, verdict in enumerate(verdicts)]
    assert int(comparison(*rows).exit_code) == code
