"""Exit codes as numbers: scripts and schedulers of other people rely on them."""

from collections.abc import Sequence

import pytest
from builders.comparisons import comparison, entry

from gpuscale.records import Verdict


@pytest.mark.parametrize(
    ("code", "rows"),
    [
        (0, ["ok", "consistent", "improved ok consistent"]),
        (1, ["regressed", "inconsistent", "ok inconclusive missing regressed"]),
        (1, ["incomparable inconsistent"]),
        (3, ["inconclusive", "ok inconclusive", "ok missing", "improved incomparable"]),
        (3, ["inconclusive missing"]),
        (4, ["missing incomparable", "missing", ""]),
    ],
)
def test_the_worst_row_decides_the_exit_code(code: int, rows: Sequence[str]) -> None:
    for verdicts in map(str.split, rows):
        entries = [entry(Verdict(verdict), gpus=2**i) for i, verdict in enumerate(verdicts)]
        assert int(comparison(*entries).exit_code) == code, verdicts
