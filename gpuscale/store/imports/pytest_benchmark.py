"""Import JSON files of pytest-benchmark; every benchmark in a file becomes one run."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from gpuscale.records.json_text import from_json
from gpuscale.store.imports.session import RecordedValue, Session


class _Stats(msgspec.Struct):
    median: float


class _Benchmark(msgspec.Struct):
    fullname: str
    stats: _Stats


class _Machine(msgspec.Struct):
    node: str | None = None
    cpu: dict[str, Any] = {}


class _File(msgspec.Struct):
    datetime: datetime
    benchmarks: list[_Benchmark]
    machine_info: _Machine
    commit_info: dict[str, Any] = {}


def sessions(path: Path, text: str) -> Iterator[Session]:
    """Yield the session of a file; rounds are not restarts, so a benchmark is a single run."""
    file = from_json(_File, text)
    at = file.datetime if file.datetime.tzinfo else file.datetime.replace(tzinfo=UTC)
    yield Session(
        key=str(file.commit_info.get("id") or path.stem)[:12],
        began_at=at.astimezone(UTC),
        system=file.machine_info.cpu.get("brand_raw"),
        host=file.machine_info.node,
        values=tuple(
            RecordedValue(
                case=benchmark.fullname,
                metric="median_s",
                value=benchmark.stats.median,
                unit="s",
                at_s=at.timestamp(),
            )
            for benchmark in file.benchmarks
        ),
    )
