"""Import the records of other tools as sessions; `SOURCES` has a module for each tool."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from gpuscale.store.imports import mlperf, nccl_tests, pytest_benchmark, reframe, table
from gpuscale.store.imports.session import Session


class Source(NamedTuple):
    """A tool whose records can be imported."""

    words: str
    sessions: Callable[[Path, str], Iterator[Session]]
    """Function that yields the sessions in a text; DecodeError if it is not a file of the tool."""
    endings: tuple[str, ...]
    """Suffixes by which the tool's files are found in folders."""


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
