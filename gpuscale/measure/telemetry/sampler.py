"""The sampling process: `python -m gpuscale.measure.telemetry.sampler --output FILE --uuid U …`.

It appends a line to FILE at each tick until SIGTERM or the end of its parent, or ends at once with
the reason in FILE. FILE is JSON Lines between two processes of one run: it has no version.
"""

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec

from gpuscale.base.counters import Reading

if TYPE_CHECKING:
    # Only the process itself loads the binding, not whoever reads what it left.
    from gpuscale.measure.telemetry.device import NvmlDevice

_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

HANG_S = 30
"""A reading that takes longer ends the process, by SIGALRM."""
INSPECTION_S = 1.0
"""Seconds between looks at what changes seldom, such as links and error counters."""


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
    """The header and the ticks of a file that may still be growing or be missing.

    A line that is cut short, as the last one is while the sampler writes it, is left out.
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Samples until it is told to stop; the exit status is 0 also where there is no GPU."""
    # Blocked from the start and waited for between ticks: no handler runs in the midst of a
    # line, and no signal falls between a check and a sleep.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
    from gpuscale.measure.nvml import DeviceAbsentError, DriverAbsentError, open_nvml
    from gpuscale.measure.telemetry.device import find_device

    parser = argparse.ArgumentParser(prog="python -m gpuscale.measure.telemetry.sampler")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--uuid", action="append", required=True)
    parser.add_argument("--interval-s", type=float, default=0.1)
    parser.add_argument("--parent-pid", type=int, default=os.getppid())
    options = parser.parse_args(arguments)
    devices: dict[str, NvmlDevice] = {}
    described: dict[str, SampledDevice] = {}
    with options.output.open("w", encoding="utf-8", buffering=1) as output:
        try:
            with open_nvml() as driver_version:
                for uuid in dict.fromkeys(options.uuid):
                    try:
                        device = devices[uuid] = find_device(uuid)
                        described[uuid] = SampledDevice(name=device.name)
                    except DeviceAbsentError as error:
                        described[uuid] = SampledDevice(absent=str(error))
                output.write(line_of(Header(driver_version=driver_version, devices=described)))
                if devices:
                    _sample(devices, output, options.interval_s, parent=options.parent_pid)
        except DriverAbsentError as error:
            output.write(line_of(Header(absent=str(error))))
    return 0


def _sample(
    devices: Mapping[str, "NvmlDevice"], output: TextIO, interval_s: float, *, parent: int
) -> None:
    """Writes one line a tick until a stop signal, which must be blocked, or until `parent` ends.

    A process whose parent ends gets another one, after `kill -9` too. Asking for it at each
    tick needs no signal that could be lost before it is set up, and unlike PR_SET_PDEATHSIG
    it does not take the end of the thread that started us for the end of the process.
    """
    started = inspection_due = time.monotonic()
    tick, is_last = 0, False
    while is_last or os.getppid() == parent:
        now_s, begun = time.time(), time.monotonic()
        # A driver that hangs leaves no chance to look for signals or for the parent.
        signal.alarm(HANG_S)
        readings = {uuid: device.read() for uuid, device in devices.items()}
        # At the end the counters then cover the run, and energy its last window.
        if is_last or begun >= inspection_due:
            inspection_due = begun + INSPECTION_S
            readings = {uuid: device.inspect(readings[uuid]) for uuid, device in devices.items()}
        signal.alarm(0)
        output.write(line_of(Tick(time_s=now_s, readings=readings)))
        if is_last:
            return
        tick = next_tick(tick, time.monotonic() - started, interval_s)
        wait_s = started + tick * interval_s - time.monotonic()
        is_last = signal.sigtimedwait(_STOP, max(0.0, wait_s)) is not None


def next_tick(tick: int, elapsed_s: float, interval_s: float) -> int:
    """The number of the tick to wait for, on a fixed grid from the start."""
    # A late tick does not shift later ones, and those that a slow reading has missed are left out.
    return max(tick, math.floor(elapsed_s / interval_s)) + 1


if __name__ == "__main__":
    sys.exit(main())
