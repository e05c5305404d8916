"""The pytest plugin. Every pytest run in the environment imports this file, so it stays small."""

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from gpuscale.base.errors import MEASURING, READING, UsageError, require_packages
from gpuscale.plugin.options import OPTIONS

if TYPE_CHECKING:
    from gpuscale.records import Run

_NOTHING_ASKED = pytest.StashKey[bool]()
_REMEDY = "give the numbers of GPUs, e.g. --gpus 1,2"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare gpuscale's options; their values are parsed when a session starts."""
    group = parser.getgroup("gpuscale", "GPU scaling measurements (gpuscale)")
    for option in OPTIONS.values():
        if not option.owner or find_spec(option.owner) is None:
            group.addoption(option.flag, **option.settings())


def pytest_configure(config: pytest.Config) -> None:
    """Declare the `gpuscale` mark; if `--gpus` is given, register the plugin that measures."""
    config.addinivalue_line(
        "markers", "gpuscale(case=C): measure the scaling of this TrainingCase (see --gpus)"
    )
    if config.getoption("gpus") is not None:
        try:
            require_packages("--gpus", (*READING, *MEASURING))
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None
        if sys.stderr.isatty() or os.environ.get("CI"):
            sys.stderr.write("gpuscale: importing torch and examining this machine ...\n")
        from gpuscale.plugin.session import start_session

        start_session(config)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """If tests were skipped for lack of `--gpus`, say so; pytest gives reasons only with -rs."""
    if config.stash.get(_NOTHING_ASKED, False):
        terminalreporter.write_line(f"gpuscale measured nothing; {_REMEDY}")


@pytest.fixture
def scaling(request: pytest.FixtureRequest) -> "Callable[[], Run]":
    """Provide a function that measures the case in the test's mark and returns the run."""
    session = request.config.pluginmanager.getplugin("gpuscale-session")
    if session is None:
        request.config.stash[_NOTHING_ASKED] = True
        pytest.skip(f"nothing to measure; {_REMEDY}")
    measure: Callable[[], Run] = session.measure_for(request)
    return measure
