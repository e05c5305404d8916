"""Result files of MLPerf Training (`:::MLLOG` lines), as the time that a training took."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from gpuscale.base.errors import DecodeError
from gpuscale.store.imports.session import RecordedValue, Session

_MARK = ":::MLLOG "


class _Event(msgspec.Struct):
    key: str
    time_ms: float
    value: Any = None
    metadata: dict[str, Any] = {}


def sessions(path: Path, text: str) -> Iterator[Session]:
    """Yield the session of a result file, which holds one training."""
    events: dict[str, _Event] = {}
    for line in text.splitlines():
        _, mark, rest = line.partition(_MARK)
        if mark:
            # Lines of several ranks may be mixed.
            with suppress(msgspec.DecodeError):
                event = msgspec.json.decode(rest, type=_Event)
                events[event.key] = event
    start, stop = events.get("run_start"), events.get("run_stop")
    if start is None:
        raise DecodeError("", "has no line ':::MLLOG' with run_start")
    told = {key: str(event.value) for key, event in events.items() if event.value}
    case = told.get("submission_benchmark", path.parent.name)
    status = "not ended" if stop is None else stop.metadata.get("status")
    values = []
    if stop is not None and status == "success":
        time_s, at_s = (stop.time_ms - start.time_ms) / 1e3, start.time_ms / 1e3
        metric = "time_to_train_s"
        values.append(RecordedValue(case=case, metric=metric, value=time_s, unit="s", at_s=at_s))
    yield Session(
        key=path.stem,
        began_at=datetime.fromtimestamp(start.time_ms / 1e3, UTC),
        system=told.get("submission_platform"),
        values=tuple(values),
        without_value=() if values else (f"{case} ({status or 'not ended'})",),
    )
