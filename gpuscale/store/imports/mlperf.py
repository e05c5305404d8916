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
    case = str(_value(events, "submission_benchmark") or path.parent.name)
    began = datetime.fromtimestamp(start.time_ms / 1e3, UTC)
    values, without = [], []
    status = None if stop is None else stop.metadata.get("status")
    if stop is not None and status == "success":
        values.append(
            RecordedValue(
                case=case,
                metric="time_to_train_s",
                value=(stop.time_ms - start.time_ms) / 1e3,
                unit="s",
                at_s=start.time_ms / 1e3,
            )
        )
    else:
        without.append(f"{case} ({status or 'not ended'})")
    system = _value(events, "submission_platform")
    yield Session(
        key=path.stem,
        began_at=began,
        system=None if system is None else str(system),
        values=tuple(values),
        without_value=tuple(without),
    )


def _value(events: dict[str, _Event], key: str) -> Any:
    return events[key].value if key in events else None
