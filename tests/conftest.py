"""Settings that all tests share, and libraries of drivers that are built once for them."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
from amdsmi_library.library import Layouts, build
from nvml.library import compile_driver

# Variables by which pytest and gpuscale decide how to print: a CI service sets some of them.
_OF_PRINTING = ("CI", "BUILD_NUMBER", "COLUMNS", "FORCE_COLOR", "NO_COLOR", "PY_COLORS")
for name in (*_OF_PRINTING, "PYTEST_ADDOPTS"):
    os.environ.pop(name, None)

# pytest also reads this file if the path of a case is mistyped; `make bench` has no Hypothesis.
with suppress(ModuleNotFoundError):
    from hypothesis import HealthCheck, settings

    # A busy machine is slow, and no test may fail for that.
    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def amd_library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Layouts]:
    return build(tmp_path_factory.mktemp("rocm"))
