"""The pytest plugin. Every pytest run in the environment imports this file: it stays small.

The machinery behind it is imported only when `--gpus` is given.
"""

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gpuscale.records import Run

_NOTHING_ASKED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options; what they mean is checked in plugin/options.py."""
    group = parser.getgroup("gpuscale", "GPU scaling measurements (gpuscale)")
    add = group.addoption
    add("--gpus", metavar="N,N,…", help="measure on these numbers of GPUs, e.g. 1,2,4")
    add(
        "--runs",
        metavar="R",
        help="fresh starts of each item (default 3); MIN:MAX goes on until --target-ci is met, or "
        "until --baseline is decided (default there 3:8)",
    )
    add("--target-ci", metavar="P%", help="how narrow intervals --runs MIN:MAX wants (default 1%%)")
    add(
        "--baseline",
        metavar="FILE",
        help="judge against this while measuring; exit code as compare's",
    )
    add("--strategy", metavar="S,S,…", help="only these strategies: dp, ddp (default: the case's)")
    add(
        "--device", default="auto", help="auto, cuda or cpu (default auto: CUDA where there is one)"
    )
    add("--size", help="full (default on CUDA), smoke (default on CPU), or a size of your case")
    add("--precision", default="fp32", help="fp32 (default), tf32, bf16 or fp16 with a scaler")
    add("--channels-last", action="store_true", help="channels-last memory format")
    add("--compile", action="store_true", help="train through torch.compile")
    add("--data-root", metavar="DIR", help="train on the real data below DIR (default synthetic)")
    add("--download", action="store_true", help="let torchvision download into --data-root")
    add("--data-workers", metavar="N", help="loader processes of each rank (default by cores)")
    add("--threads-per-rank", metavar="N", default="1", help="CPU threads of each rank (default 1)")
    add("--run-seconds", metavar="S", help="time for a run's windows (default 20; on CPU 4)")
    add(
        "--launcher",
        metavar="L",
        default="local",
        help="local (default: this node), or slurm or mpirun: all nodes of the job",
    )
    add("--oversubscribe", action="store_true", help="allow more CPU ranks than cores")
    add("--results", metavar="FILE", help="results file (default: a new one in .gpuscale/results)")
    add("--resume", metavar="FILE", help="measure only what this results file lacks; append to it")
    add(
        "--inject",
        metavar="SPEC",
        action="append",
        help="make a fault on purpose, e.g. data=5ms, slow-rank=1:1.2, compute=1.1, hang=1@50, "
        "crash=0@20; may be given several times",
    )
    # pytest-timeout has an option of this name; where it is installed, its value is ours.
    if importlib.util.find_spec("pytest_timeout") is None:
        add("--timeout", metavar="S", help="end a run that takes longer than this (default 600)")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark, and start the session's machinery if there is something to measure."""
    config.addinivalue_line(
        "markers", "gpuscale(case=C): measure the scaling of this TrainingCase (see --gpus)"
    )
    if config.getoption("gpus") is not None:
        from gpuscale.plugin.starting import start_session

        start_session(config)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say why tests with `scaling` were skipped, also to those who do not ask with -rs."""
    if config.stash.get(_NOTHING_ASKED, False):
        terminalreporter.write_line(
            "gpuscale measured nothing; give the numbers of GPUs, e.g. --gpus 1,2"
        )


@pytest.fixture
def scaling(request: pytest.FixtureRequest) -> "Callable[[], Run]":
    """Measure the case of the test's `gpuscale` mark; calling it returns the Run."""
    measurement = request.config.pluginmanager.getplugin("gpuscale-session")
    if measurement is None:
        request.config.stash[_NOTHING_ASKED] = True
        pytest.skip("nothing to measure; give the numbers of GPUs, e.g. --gpus 1,2")
    measure: Callable[[], Run] = measurement.measure_for(request)
    return measure
