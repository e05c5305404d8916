"""The pytest session of `gpuscale run`: a single test, which measures a command."""

import os
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuscale.workload.command_case import CommandCase


class CommandItem:
    """A pytest plugin that makes `test_command` in this module measure a command."""

    def __init__(self, case: type[CommandCase]) -> None:
        self._case = case

    def pytest_pycollect_makemodule(
        self, module_path: Path, parent: pytest.Collector
    ) -> pytest.Module:
        """Name the test's module after the case, since the module's path means nothing to users."""
        module: pytest.Module = pytest.Module.from_parent(
            parent, path=module_path, nodeid=self._case.name()
        )
        return module

    @pytest.hookimpl(wrapper=True)
    def pytest_report_header(self) -> Generator[None, Any, list[list[str]]]:
        """Remove from the header what does not concern commands: settings, and another timer."""
        parts = yield
        lines = [[part] if isinstance(part, str) else part for part in parts]
        others = ("configfile:", "benchmark:")
        return [[line for line in part if not line.startswith(others)] for part in lines]

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Locate the test by its case, since pytest would print this module's path for each run."""
        item.location = (self._case.name(), *item.location[1:])

    @pytest.hookimpl(wrapper=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> Generator[None, None, None]:
        """Give the test a `gpuscale` mark with the case."""
        metafunc.definition.add_marker(pytest.mark.gpuscale(case=self._case))
        yield


def measured_in_session(case: type[CommandCase], options: Sequence[str]) -> int:
    """Measure the case in a pytest session, and return the exit code of the session."""
    # Ignore the settings of a project in this folder.
    settings = ["-c", os.devnull, "--rootdir", str(Path.cwd()), "--noconftest", "--assert=plain"]
    settings += ["-p", "no:cacheprovider", "-p", "gpuscale.plugin"]
    # Otherwise pytest-benchmark leaves an empty folder here.
    settings += ["--benchmark-storage", f"file://{os.devnull}"]
    return int(pytest.main([*settings, __file__, *options], plugins=[CommandItem(case)]))


def test_command(scaling: Callable[[], object]) -> None:
    """Measure the command of the pytest session."""
    scaling()
