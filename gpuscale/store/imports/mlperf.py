"""Import training times from result files of MLPerf Training (`:::MLLOG` lines)."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gpuscale.base.errors import DecodeError
from gpuscale.store.imports.session import RecordedValue, Session
from gpuscale.workload.benchmark_output import Mlperf, positive


def sessions(path: Path, text: str) -> Iterator[Session]:
    """Yield the session of a result file, which contains a single training."""
    reader = Mlperf()
    found = [*(each for line in text.splitlines() for each in reader.figures(line).items())]
    if (at_s := reader.began_at_s) is None:
        raise DecodeError("", "has no line ':::MLLOG' with run_start")
    case = reader.told.get("submission_benchmark", path.parent.name)
    values = tuple(
        RecordedValue(case=case, metric=metric, value=time_s, unit="s", at_s=at_s)
        for metric, told in found
        if (time_s := positive(told))
    )
    yield Session(
        key=path.stem,
        began_at=datetime.fromtimestamp(at_s, UTC),
        system=reader.told.get("submission_platform"),
        values=values,
        without_value=() if values else (f"{case} ({reader.status})",),
    )
