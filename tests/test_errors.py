"""Errors say where something is wrong and what to install; scripts rely on exit codes."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from builders.comparisons import comparison, entry

from gpuscale.base import errors
from gpuscale.base.errors import UsageError, as_place
from gpuscale.records import Verdict


def test_missing_packages_are_named_as_pip_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    errors.require_packages("gpuscale", errors.READING)
    monkeypatch.setattr(errors, "find_spec", lambda name: name == "torch" or None)
    said = "measuring needs numpy, nvidia-ml-py, .*; install with: pip install numpy nvidia-ml-py"
    with pytest.raises(UsageError, match=f"^{said}$"):
        errors.require_packages("measuring", ["torch", "numpy", "pynvml"])


def test_places_below_here_are_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert as_place(str(tmp_path / "a" / "test_mine.py"), 12) == "a/test_mine.py:12"
    assert as_place("/nowhere/test_mine.py", 12) == "/nowhere/test_mine.py:12"


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
