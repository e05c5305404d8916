"""Output of benchmarks that gpuscale reads by name, as they run and from their logs."""

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from gpuscale.base.units import format_bytes

_SMALLEST_BYTES = 1 << 20
"""Smallest message, in bytes, whose bandwidth is read; smaller messages measure latency."""
_COLLECTIVE = re.compile(r"#\s+Collective test starting:\s*(\w+)|\b(\w+)_perf\b")
_ROW = re.compile(r"\s*(\d+)\s+\d+\s+\w+\s+(?:\w+\s+)?(?:-?\d+\s+)?(.*)")
_SIZE = re.compile(r"(?:\.0+)? (?=[KMGT]iB)")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*(\S+)")
_NUMBERS_OF_PASS = 4
"""Number of values for each pass: time, algorithm bandwidth, bus bandwidth, wrong values."""
_MLPERF = ":::MLLOG "


def positive(value: object) -> float | None:
    """Return the value of a measurement if it is a finite number above 0; None if not."""
    with suppress(ValueError, OverflowError):
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return found if 0 < (found := float(value)) < math.inf else None
    return None


class NcclTests:
    """Reads the lines of nccl-tests and rccl-tests in order; there may be several collectives."""

    def __init__(self) -> None:
        self.collective = ""
        """The collective that was named last; older versions name none."""

    def figures(self, line: str) -> dict[str, str | float]:
        """Return the figures in a line: bus bandwidths by collective and size, or their average."""
        if average := _AVERAGE.search(line):
            return {"busbw_gb_s": average[1]}
        return dict(self._bandwidths(line))

    def _bandwidths(self, line: str) -> Iterator[tuple[str, float]]:
        """Yield the bus bandwidths of a line's two passes: out of place, then in place."""
        if told := _COLLECTIVE.search(line):
            self.collective = (told[1] or told[2]).removesuffix("_perf")
        row = _ROW.fullmatch(line)
        if row is None or int(row[1]) < _SMALLEST_BYTES:
            return
        numbers = row[2].split()
        for place, how in enumerate(("", " in place")):
            of_pass = numbers[place * _NUMBERS_OF_PASS :][:_NUMBERS_OF_PASS]
            if len(of_pass) == _NUMBERS_OF_PASS and (bandwidth := positive(of_pass[2])):
                size = _SIZE.sub("", format_bytes(int(row[1])))
                yield f"{self.collective} {size}{how} gb_s".strip().replace(" ", "_"), bandwidth


class _Event(msgspec.Struct):
    key: str
    time_ms: float
    value: Any = None
    metadata: dict[str, Any] = {}


class Mlperf:
    """Reads the `:::MLLOG` lines of a training in order."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        """The last value that was printed for each key."""
        self.began_at_s: float | None = None
        self.status = "not ended"

    def figures(self, line: str) -> dict[str, str | float]:
        """Return the time to train if the line ends a successful training; otherwise empty."""
        _, mark, rest = line.partition(_MLPERF)
        # Lines of several ranks may be mixed.
        with suppress(msgspec.DecodeError):
            event = msgspec.json.decode(rest if mark else "", type=_Event)
            if event.value:
                self.told[event.key] = str(event.value)
            if event.key == "run_start":
                self.began_at_s = event.time_ms / 1e3
            elif event.key == "run_stop" and self.began_at_s is not None:
                self.status = str(event.metadata.get("status", "not ended"))
                if self.status == "success":
                    return {"time_to_train_s": event.time_ms / 1e3 - self.began_at_s}
        return {}
