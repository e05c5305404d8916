"""Logs of nccl-tests and rccl-tests, as the bus bandwidth of each collective and size."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gpuscale.base.errors import DecodeError
from gpuscale.base.units import format_bytes
from gpuscale.store.imports.session import RecordedValue, Session, positive

_SMALLEST_BYTES = 1 << 20
"""Messages below 1 MiB measure latency, of which a bandwidth says little."""
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.* on\s+(\S+) device")
_COLLECTIVE = re.compile(r"#\s+Collective test starting:\s*(\w+)|\b(\w+)_perf\b")
_ROW = re.compile(r"\s*(\d+)\s+\d+\s+\w+\s+(?:\w+\s+)?(?:-?\d+\s+)?(.*)")
_NUMBERS_OF_PASS = 4
"""Time, algorithm bandwidth, bus bandwidth and the number of wrong values."""


def sessions(path: Path, text: str) -> Iterator[Session]:
    """Yield the session of a log, which has no time of its own: that of the file counts."""
    name = next(
        (found[1] or found[2] for found in map(_COLLECTIVE.search, text.splitlines()) if found),
        path.stem,
    ).removesuffix("_perf")
    ranks = filter(None, map(_RANK.match, text.splitlines()))
    hosts = {int(found[1]): found[2] for found in ranks}
    at_s = path.stat().st_mtime
    values = tuple(
        RecordedValue(
            case=case,
            metric="busbw_gb_s",
            value=bandwidth,
            unit="GB/s",
            more_is_better=True,
            gpus=max(1, len(hosts)),
            hosts=tuple(dict.fromkeys(hosts.values())),
            at_s=at_s,
        )
        for line in text.splitlines()
        for case, bandwidth in _bandwidths(line, name)
    )
    if not values:
        raise DecodeError("", "has no line of a bandwidth as nccl-tests and rccl-tests print it")
    yield Session(
        key=path.stem,
        began_at=datetime.fromtimestamp(at_s, UTC),
        host=hosts.get(0),
        values=values,
    )


def _bandwidths(line: str, name: str) -> Iterator[tuple[str, float]]:
    """Yield the name and bus bandwidth of each pass in a line: out of place, then in place."""
    row = _ROW.fullmatch(line)
    if row is None or int(row[1]) < _SMALLEST_BYTES:
        return
    numbers = row[2].split()
    for place, how in enumerate(("", " in place")):
        of_pass = numbers[place * _NUMBERS_OF_PASS :][:_NUMBERS_OF_PASS]
        if len(of_pass) == _NUMBERS_OF_PASS and (bandwidth := positive(of_pass[2])):
            yield f"{name} {format_bytes(int(row[1]))}{how}", bandwidth
