"""The session of `gpuscale run`: a single test, of a command that stands in no file."""

import os
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuscale.workload.command_case import CommandCase


class CommandItem:
    """A plugin by which `test_command`, below, measures this case."""

    def __init__(self, case: type[CommandCase]) -> None:
        self._case = case

    def pytest_pycollect_makemodule(
        self, module_path: Path, parent: pytest.Collector
    ) -> pytest.Module:
        """The module of the test under the name of the case: its path tells nobody anything."""
        module: pytest.Module = pytest.Module.from_parent(
            parent, path=module_path, nodeid=self._case.name()
        )
        return module

    @pytest.hookimpl(wrapper=True)
    def pytest_report_header(self) -> Generator[None, Any, list[list[str]]]:
        """The header without a settings file, since a session of a command has none."""
        parts = yield
        lines = [[part] if isinstance(part, str) else part for part in parts]
        return [[line for line in its if not line.startswith("configfile:")] for its in lines]

    @pytest.hookimpl(wrapper=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> Generator[None, None, None]:
        """Name the case to what asks for it."""
        metafunc.definition.add_marker(pytest.mark.gpuscale(case=self._case))
        yield


def measured_in_session(case: type[CommandCase], options: Sequence[str]) -> int:
    """The exit code of a session of pytest that measures the case."""
    # The settings of a project that lies around here are not about this session.
    settings = ["-c", os.devnull, "--rootdir", str(Path.cwd()), "--noconftest", "--assert=plain"]
    settings += ["-p", "no:cacheprovider", "-p", "gpuscale.plugin"]
    # Else pytest-benchmark leaves an empty folder here.
    settings += ["--benchmark-storage", f"file://{os.devnull}"]
    return int(pytest.main([*settings, __file__, *options], plugins=[CommandItem(case)]))


def test_command(scaling: Callable[[], object]) -> None:
    """Measure the case of the session."""
    scaling()
