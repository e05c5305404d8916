"""The samples file: JSON Lines, one header and one line a tick, written by the sampler.

It is a file between two processes of one run, not one to keep: it has no version.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A device at one moment, by the `moment` of what was asked."""

    answers: dict[str, Any] = {}
    """Numbers; the names of clock events that hold; of each NVLink whether it is active; NVLink's
    error counters by kind; the XIDs since the last time, of which the first only starts them."""
    absent: dict[str, str] = {}
    """The driver's reason for each question without an answer."""
    buffered: dict[str, list[tuple[float, float]]] = {}
    """Unix times and numbers that the driver itself sampled since the last time, by buffer."""

    def __contains__(self, moment: str) -> bool:
        return moment in self.answers or moment in self.absent


class SampledDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that the sampler was asked for."""

    name: str | None = None
    absent: str | None = None
    """Why it is not sampled; None where it is."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: what the sampler found."""

    driver_version: str | None = None
    absent: str | None = None
    """Why nothing is sampled: there is no driver; None where there is one."""
    devices: dict[str, SampledDevice] = {}
    """By UUID, as asked for."""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """Every later line: all sampled devices at one moment."""

    time_s: float
    """Unix time at which the reading began."""
    readings: dict[str, Reading]
    """By UUID, as asked for."""


def line_of(record: Header | Tick) -> str:
    """A header or tick as a line of the file."""
    return msgspec.json.encode(record).decode() + "\n"


def read_samples(path: Path) -> tuple[Header | None, list[Tick]]:
    """The header and the ticks of a file that may still be growing.

    A line that is cut short, as the last one is while the sampler writes it, is left out. A
    file that does not exist or has no whole first line has no header and no ticks.
    """
    decoder, ticks = msgspec.json.Decoder(Tick), []
    try:
        first, *rest = path.read_bytes().split(b"\n")
        # No prefix of an object's text is itself an object, so what can be read is whole.
        header = msgspec.json.decode(first, type=Header)
    except (FileNotFoundError, msgspec.DecodeError):
        return None, []
    for line in rest:
        with suppress(msgspec.DecodeError):
            ticks.append(decoder.decode(line))
    return header, ticks
