"""Import CSV files with a column of times and columns of values, such as those that Otava reads."""

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gpuscale.base.errors import DecodeError
from gpuscale.store.imports.session import RecordedValue, Session
from gpuscale.workload.benchmark_output import positive

_TIME_COLUMNS = ("time", "timestamp", "date", "datetime", "commit_ts")
_VERSIONS = ("commit", "version", "sha", "git_hash", "allocation")


def sessions(path: Path, text: str) -> Iterator[Session]:
    """Yield a session for each time; every column of positive numbers becomes a metric."""
    lines = csv.DictReader(text.splitlines())
    names = {name.strip().lower(): name for name in lines.fieldnames or ()}
    time = next((names[name] for name in _TIME_COLUMNS if name in names), None)
    if time is None:
        known = ", ".join(_TIME_COLUMNS)
        raise DecodeError("", f"has no column of times; name one of them {known}", line=1)
    version = next((names[name] for name in _VERSIONS if name in names), None)
    found: dict[tuple[str, datetime], list[RecordedValue]] = {}
    for row in lines:
        at = _moment(row[time] or "", lines.line_num)
        values = (
            RecordedValue(case=path.stem, metric=name.strip(), value=value, at_s=at.timestamp())
            for name, text_ in row.items()
            if name not in (time, version, None) and (value := positive(text_))
        )
        key = f"{path.stem}-{row[version]}" if version else path.stem
        # Lines of one moment are repetitions.
        found.setdefault((key, at), []).extend(values)
    for (key, at), recorded in found.items():
        yield Session(key=key, began_at=at, values=tuple(recorded))


def _moment(text: str, line: int) -> datetime:
    """Parse a time in ISO 8601 or Unix seconds; a time without an offset is in UTC."""
    seconds = positive(text)
    try:
        if seconds is not None:
            return datetime.fromtimestamp(seconds, UTC)
        found = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError, OSError):
        problem = f"expected a time such as 2026-03-01T03:00:00 or Unix seconds, found '{text}'"
        raise DecodeError("", problem, line=line) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
