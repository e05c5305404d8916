"""The pytest plugin. Every pytest run in the environment imports this file: it stays small.

The machinery behind it is imported only when `--gpus` is given.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from gpuscale.base.errors import MEASURING, READING, UsageError, require_packages
from gpuscale.plugin.options import OPTIONS

if TYPE_CHECKING:
    from gpuscale.records import Run

_NOTHING_ASKED = pytest.StashKey[bool]()
_WHAT_TO_ASK = "give the numbers of GPUs, e.g. --gpus 1,2"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options; what they mean is checked when a session starts."""
    group = parser.getgroup("gpuscale", "GPU scaling measurements (gpuscale)")
    for option in OPTIONS.values():
        if not option.owner or find_spec(option.owner) is None:
            group.addoption(option.flag, **option.settings())


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark, and start the session's machinery if there is something to measure."""
    config.addinivalue_line(
        "markers", "gpuscale(case=C): measure the scaling of this TrainingCase (see --gpus)"
    )
    if config.getoption("gpus") is not None:
        try:
            require_packages("--gpus", (*READING, *MEASURING))
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None
        from gpuscale.plugin.session import start_session

        start_session(config)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say why tests with `scaling` were skipped, also to those who do not ask with -rs."""
    if config.stash.get(_NOTHING_ASKED, False):
        terminalreporter.write_line(f"gpuscale measured nothing; {_WHAT_TO_ASK}")


@pytest.fixture
def scaling(request: pytest.FixtureRequest) -> "Callable[[], Run]":
    """Measure the case of the test's `gpuscale` mark; calling it returns the Run."""
    session = request.config.pluginmanager.getplugin("gpuscale-session")
    if session is None:
        request.config.stash[_NOTHING_ASKED] = True
        pytest.skip(f"nothing to measure; {_WHAT_TO_ASK}")
    measure: Callable[[], Run] = session.measure_for(request)
    return measure
