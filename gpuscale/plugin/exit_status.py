"""The exit status that a session ends with."""

from collections.abc import Sequence

import pytest

from gpuscale.base.errors import ExitCode
from gpuscale.records import Comparison, Run


def status_of_verdict(
    given: int, *, failed_tests: bool, failed_runs: bool, comparison: Comparison | None
) -> int:
    """The verdict's exit code, unless pytest's own is worse; a failed run leaves no pass."""
    codes = pytest.ExitCode
    replaced = (codes.OK, codes.TESTS_FAILED, codes.NO_TESTS_COLLECTED)
    if given not in replaced or failed_tests:
        return given
    if comparison is None:
        return ExitCode.NOTHING_COMPARABLE
    if failed_runs and comparison.exit_code is ExitCode.OK:
        return ExitCode.INCONCLUSIVE
    return comparison.exit_code


def status_without_verdict(given: int, runs: Sequence[Run], *, needless: bool) -> int:
    """Pytest's own exit code, but never 0 if runs were to be made and none gave a number."""
    if given != pytest.ExitCode.OK or any(run.is_valid for run in runs):
        return given
    if runs:
        return pytest.ExitCode.TESTS_FAILED
    return given if needless else pytest.ExitCode.NO_TESTS_COLLECTED
