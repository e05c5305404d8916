"""The samples file: JSON Lines, one header and one line a tick, written by the sampler.

It is a file between two processes of one run, not one to keep: it has no version.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpuscale.records import PcieLink
from gpuscale.telemetry.probe import Condition, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledDevice:
    """A device that the sampler was asked for."""

    name: str | None = None
    absent: str | None = None
    """Why it is not sampled; None where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line: what the sampler found."""

    interval_s: float
    driver_version: str | None = None
    absent: str | None = None
    """Why nothing is sampled: there is no driver; None where there is one."""
    devices: Mapping[str, SampledDevice]
    """By UUID, as asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Every later line: all sampled devices at one moment."""

    time_s: float
    """Unix time at which the reading began."""
    readings: Mapping[str, Reading]
    """By UUID, as asked for."""
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    """By UUID, in every so many ticks; read right after the readings."""


def header_line(header: Header) -> str:
    """The header as a line of the file."""
    return json.dumps(asdict(header)) + "\n"


def tick_line(tick: Tick) -> str:
    """A tick as a line of the file."""
    return json.dumps(asdict(tick)) + "\n"


def read_samples(path: Path) -> tuple[Header | None, Iterator[Tick]]:
    """The header and the ticks of a file that may still be growing.

    A line that is cut short, as the last one is while the sampler writes it, is left out. A
    file that does not exist or has no whole first line has no header and no ticks.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        text = ""
    lines = (_object(line) for line in text.splitlines())
    first = next(lines, None)
    if first is None:
        return None, iter(())
    return _header(first), (_tick(line) for line in lines if line is not None)


def _object(line: str) -> dict[str, Any] | None:
    # No prefix of an object's text is itself an object, so what parses is whole.
    try:
        return dict(json.loads(line))
    except ValueError:
        return None


def _header(line: dict[str, Any]) -> Header:
    devices = {uuid: SampledDevice(**device) for uuid, device in line.pop("devices").items()}
    return Header(**line, devices=devices)


def _tick(line: dict[str, Any]) -> Tick:
    return Tick(
        time_s=line["time_s"],
        readings={uuid: _reading(reading) for uuid, reading in line["readings"].items()},
        conditions={uuid: _condition(found) for uuid, found in line["conditions"].items()},
    )


def _reading(value: dict[str, Any]) -> Reading:
    reasons = value.pop("clock_event_reasons")
    return Reading(**value, clock_event_reasons=_tuple(reasons))


def _condition(value: dict[str, Any]) -> Condition:
    pcie, active, xids = value.pop("pcie"), value.pop("nvlink_active"), value.pop("xids")
    utilization, power = value.pop("utilization_samples"), value.pop("power_samples")
    return Condition(
        **value,
        utilization_samples=_pairs(utilization),
        power_samples=_pairs(power),
        pcie=None if pcie is None else PcieLink(**pcie),
        nvlink_active=_tuple(active),
        xids=_tuple(xids),
    )


def _tuple(values: list[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def _pairs(values: list[list[float]] | None) -> tuple[tuple[float, float], ...] | None:
    return None if values is None else tuple((time_s, value) for time_s, value in values)
