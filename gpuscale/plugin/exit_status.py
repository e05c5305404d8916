"""What an invocation ends with."""

import pytest

from gpuscale.errors import ExitCode
from gpuscale.records import Comparison

_PYTESTS_OWN = (
    pytest.ExitCode.OK,
    pytest.ExitCode.TESTS_FAILED,
    pytest.ExitCode.NO_TESTS_COLLECTED,
)


def status_of_verdict(
    given: int, *, failed_tests: bool, failed_runs: bool, comparison: Comparison | None
) -> int:
    """The exit code of a session with a baseline: the verdict's, unless pytest has more to say.

    Args:
        given: What pytest would end with.
        failed_tests: Whether a test failed for another reason than a failed run.
        failed_runs: Whether a run failed; a verdict from the others is then no pass.
        comparison: The verdict; None where nothing was measured.
    """
    if given not in _PYTESTS_OWN or failed_tests:
        return given
    if comparison is None:
        return ExitCode.NOTHING_COMPARABLE
    if failed_runs and comparison.exit_code is ExitCode.OK:
        return ExitCode.INCONCLUSIVE
    return comparison.exit_code


def status_without_verdict(given: int, *, measured: bool, valid: bool, needless: bool) -> int:
    """The exit code of a session without a baseline: pytest's, but never 0 where nothing ran.

    Args:
        given: What pytest would end with.
        measured: Whether any run was made, or was in the file that is resumed.
        valid: Whether any of them gave a number.
        needless: Whether nothing was to be measured, or other tests passed.
    """
    if given != pytest.ExitCode.OK or valid:
        return given
    if measured:
        return pytest.ExitCode.TESTS_FAILED
    return given if needless else pytest.ExitCode.NO_TESTS_COLLECTED
