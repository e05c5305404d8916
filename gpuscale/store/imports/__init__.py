"""Records of other tools, as sessions of values; `SOURCES` has a module for each tool."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from gpuscale.store.imports import mlperf, nccl_tests, pytest_benchmark, reframe, table
from gpuscale.store.imports.session import Session


class Source(NamedTuple):
    """A tool whose records can be imported."""

    words: str
    sessions: Callable[[Path, str], Iterator[Session]]
    """Function that reads a file's text; raises a DecodeError if the tool writes no such files."""
    endings: tuple[str, ...]
    """Endings of the files that are looked for in folders."""


SOURCES: Mapping[str, Source] = {
    "reframe": Source(
        "run reports (JSON) and performance logs of ReFrame", reframe.sessions, (".json", ".log")
    ),
    "pytest-benchmark": Source(
        "JSON files of pytest-benchmark, each a single run since its rounds are no restarts",
        pytest_benchmark.sessions,
        (".json",),
    ),
    "nccl-tests": Source(
        "logs of nccl-tests and rccl-tests, at the times of the files",
        nccl_tests.sessions,
        (".log", ".txt", ".out"),
    ),
    "mlperf": Source("result files of MLPerf Training", mlperf.sessions, (".txt", ".log")),
    "csv": Source(
        "tables with a column of times and columns of values, as Otava reads them",
        table.sessions,
        (".csv",),
    ),
}
