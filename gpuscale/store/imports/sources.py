"""The tools whose records can be imported (`SOURCES`), and readers for most of them."""

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpuscale.base.errors import DecodeError
from gpuscale.base.host import UNRECORDED_GPU
from gpuscale.records.record import from_json
from gpuscale.store.files import read_with
from gpuscale.store.imports import reframe, table
from gpuscale.store.imports.session import Defaults, RecordedValue, Session, moment_s
from gpuscale.workload.printed_figures import Mlperf, NcclTests, positive

_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.* on\s+(\S+) device")
_TIME_COLUMNS = ("time", "timestamp", "date", "datetime", "commit_ts")
_VERSIONS = ("commit", "version", "sha", "git_hash")


class ImportedTool(NamedTuple):
    """A tool whose records can be imported; `words` describes its files in the help text."""

    words: str
    sessions: Callable[[Path, str, Defaults], Iterator[Session]]
    """Function that yields the sessions in a file's text; raises DecodeError for other formats."""
    endings: tuple[str, ...]
    """Suffixes by which the tool's files are found in folders."""


class _Stats(msgspec.Struct):
    median: float


class _Benchmark(msgspec.Struct):
    fullname: str
    stats: _Stats


class _Machine(msgspec.Struct):
    node: str | None = None
    cpu: dict[str, Any] = {}


class _BenchmarkFile(msgspec.Struct):
    datetime: datetime
    benchmarks: list[_Benchmark]
    machine_info: _Machine
    commit_info: dict[str, Any] = {}


def pytest_benchmark(path: Path, text: str, _: Defaults) -> Iterator[Session]:
    """Yield a file's only session; a benchmark is one run, because its rounds share a process."""
    file = from_json(_BenchmarkFile, text)
    at = file.datetime if file.datetime.tzinfo else file.datetime.replace(tzinfo=UTC)
    commit = file.commit_info.get("id")
    yield Session(
        key=str(commit or path.stem)[:12],
        began_s=at.timestamp(),
        revision=str(commit) if commit else None,
        system=file.machine_info.cpu.get("brand_raw"),
        host=file.machine_info.node,
        values=tuple(
            RecordedValue(case=each.fullname, metric="median_s", value=each.stats.median, unit="s")
            for each in file.benchmarks
        ),
    )


def nccl_tests(path: Path, text: str, _: Defaults) -> Iterator[Session]:
    """Yield the session of a log; logs have no times, so the file's modification time is used."""
    reader, lines = NcclTests(), text.splitlines()
    hosts = {int(found[1]): found[2] for found in filter(None, map(_RANK.match, lines))}
    values = tuple(
        RecordedValue(
            # Named as `gpuscale run --figure nccl-tests` names them.
            case=f"{reader.collective or path.stem.removesuffix('_perf')}_perf",
            metric=metric,
            value=bandwidth_gb_s,
            unit="GB/s",
            device=UNRECORDED_GPU,
            gpus=max(1, len(hosts)),
            hosts=tuple(dict.fromkeys(hosts.values())),
        )
        for line in lines
        for metric, printed in reader.figures(line).items()
        if (bandwidth_gb_s := positive(printed)) is not None
    )
    if not values:
        raise DecodeError("", "has no line with a bandwidth as nccl-tests and rccl-tests print it")
    yield Session(key=path.stem, began_s=path.stat().st_mtime, host=hosts.get(0), values=values)


def mlperf(path: Path, text: str, _: Defaults) -> Iterator[Session]:
    """Yield the session of an MLPerf result file, which contains a single training run."""
    reader = Mlperf()
    found = [each for line in text.splitlines() for each in reader.figures(line).items()]
    if reader.began_at_s is None:
        raise DecodeError("", "has no line ':::MLLOG' with run_start")
    case = reader.values.get("submission_benchmark", path.parent.name)
    values = tuple(
        RecordedValue(case=case, metric=metric, value=time_s, unit="s")
        for metric, printed in found
        if (time_s := positive(printed))
    )
    yield Session(
        key=path.stem,
        began_s=reader.began_at_s,
        system=reader.values.get("submission_platform"),
        values=values,
        without_value=() if values else (f"{case} ({reader.status})",),
    )


def csv_table(path: Path, text: str, _: Defaults) -> Iterator[Session]:
    """Yield a session for each group of CSV rows with equal time and version; omit values <= 0."""
    lines = csv.DictReader(text.splitlines(), restval="")
    names = {name.strip().lower(): name for name in lines.fieldnames or ()}
    time = next((names[name] for name in _TIME_COLUMNS if name in names), None)
    if time is None:
        known = ", ".join(_TIME_COLUMNS)
        raise DecodeError("", f"has no column of times; give it one of the headers {known}", line=1)
    version = next((names[name] for name in _VERSIONS if name in names), None)
    # Lines with the same time are repetitions.
    found = defaultdict[tuple[str | None, float], list[RecordedValue]](list)
    for row in lines:
        revision = row[version] or None if version else None
        if (began_s := moment_s(row[time])) is None:
            expected = "expected a time such as 2026-03-01T03:00:00 or Unix seconds"
            raise DecodeError("", f"{expected}, found '{row[time]}'", line=lines.line_num)
        found[revision, began_s] += (
            RecordedValue(case=path.stem, metric=name.strip(), value=value)
            for name, text_ in row.items()
            if name not in (time, version, None) and (value := positive(text_))
        )
    for (revision, began_s), values in found.items():
        key = f"{path.stem}-{revision}" if revision else path.stem
        yield Session(key=key, began_s=began_s, revision=revision, values=tuple(values))


SOURCES: Mapping[str, ImportedTool] = {
    "reframe": ImportedTool(
        "run reports (JSON) and performance logs of ReFrame",
        reframe.sessions,
        # ReFrame renames a log whose columns change.
        (".json", ".log", *(f".log.h{number}" for number in range(10))),
    ),
    "pytest-benchmark": ImportedTool(
        "JSON files of pytest-benchmark, each a single run since its rounds are no restarts",
        pytest_benchmark,
        (".json",),
    ),
    "nccl-tests": ImportedTool(
        "logs of nccl-tests and rccl-tests, at the times of the files",
        nccl_tests,
        (".log", ".txt", ".out"),
    ),
    "mlperf": ImportedTool("result files of MLPerf Training", mlperf, (".txt", ".log")),
    "csv": ImportedTool(
        "tables with a column of times and columns of values, as Otava reads them",
        csv_table,
        (".csv",),
    ),
    "table": ImportedTool(
        "tables kept by hand, with a column of GPUs and one of times or throughput",
        table.sessions,
        (".csv", ".md"),
    ),
}


def sessions_of(path: Path, source: ImportedTool, defaults: Defaults) -> list[Session]:
    """Read all sessions in a file that the tool `source` wrote."""
    return read_with(path, lambda text: [*source.sessions(path, text, defaults)])
