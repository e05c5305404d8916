"""The sampling process: `python -m gpuscale.measure.telemetry.sampler --output FILE --device U …`.

The sampler appends a line to FILE at each tick until SIGTERM or the end of the parent process. If
sampling is impossible, the sampler writes the reason to FILE and ends. FILE is in JSON Lines and
has no format version, because only processes of the same run exchange it.
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
from gpuscale.base.errors import DeviceAbsentError, DriverAbsentError

if TYPE_CHECKING:
    from gpuscale.measure.telemetry.device import Device

_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

HANG_S = 30
"""If a reading takes longer than this number of seconds, SIGALRM ends the sampler."""
INSPECTION_S = 1.0
"""Seconds between readings of counters that rarely change, such as links and errors."""


class SampledDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that the sampler was asked to sample."""

    name: str | None = None
    absent: str | None = None
    """The reason why the device is not sampled; None if it is sampled."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a samples file."""

    driver_version: str | None = None
    absent: str | None = None
    """The reason why there is no driver; None if a driver is present."""
    devices: dict[str, SampledDevice] = {}
    """Devices, keyed by UUID in the form given to `--device`."""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """Any line of a samples file after the header: readings of all devices at one time."""

    time_s: float
    """Unix time at which the reading began."""
    readings: dict[str, Reading]
    """Readings, keyed by device UUID in the form given to `--device`."""


def line_of(record: Header | Tick) -> str:
    """Return a header or tick as a line of a samples file."""
    return msgspec.json.encode(record).decode() + "\n"


def read_samples(path: Path) -> tuple[Header | None, list[Tick]]:
    """Return the header and the ticks of a samples file, which may be missing or still growing.

    Incomplete lines are left out, such as the last line while the sampler is writing it.
    """
    decoder, ticks = msgspec.json.Decoder(Tick), []
    try:
        first, *rest = path.read_bytes().split(b"\n")
        # A prefix of a JSON object is never an object, so a line that can be read is complete.
        header = msgspec.json.decode(first, type=Header)
    except (FileNotFoundError, msgspec.DecodeError):
        return None, []
    for line in rest:
        with suppress(msgspec.DecodeError):
            ticks.append(decoder.decode(line))
    return header, ticks


def main(arguments: Sequence[str] | None = None) -> int:
    """Sample until a signal stops the process; the exit code is 0 even without a GPU."""
    # Signals are blocked from the start and waited for between ticks: no handler runs in the
    # middle of a line, and no signal falls between a check and a sleep.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
    # Imported here, so that readers of the file do not load the driver's binding.
    from gpuscale.measure.smi import open_smi
    from gpuscale.measure.telemetry.devices import find_devices

    parser = argparse.ArgumentParser(prog="python -m gpuscale.measure.telemetry.sampler")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--device", action="append", nargs="+", metavar=("UUID", "ADDRESS"), required=True
    )
    parser.add_argument("--interval-s", type=float, default=0.1)
    parser.add_argument("--parent-pid", type=int, default=os.getppid())
    options = parser.parse_args(arguments)
    addresses = {uuid: address[0] if address else None for uuid, *address in options.device}
    devices: dict[str, Device] = {}
    described: dict[str, SampledDevice] = {}
    with options.output.open("w", encoding="utf-8", buffering=1) as output:
        try:
            with open_smi() as smi:
                for uuid, device in find_devices(smi, addresses).items():
                    if isinstance(device, DeviceAbsentError):
                        described[uuid] = SampledDevice(absent=str(device))
                    else:
                        devices[uuid], described[uuid] = device, SampledDevice(name=device.name)
                header = Header(driver_version=smi.driver_version(), devices=described)
                output.write(line_of(header))
                if devices:
                    _sample(devices, output, options.interval_s, parent=options.parent_pid)
        except DriverAbsentError as error:
            output.write(line_of(Header(absent=str(error))))
    return 0


def _sample(
    devices: Mapping[str, "Device"], output: TextIO, interval_s: float, *, parent: int
) -> None:
    """Write one line per tick until a stop signal arrives or the process `parent` ends.

    Stop signals must be blocked. When a parent ends, even by `kill -9`, its children get another
    parent. Checking for this at each tick needs no signal that could be lost during start-up, and
    PR_SET_PDEATHSIG would end the sampler together with the thread that started it.
    """
    started = inspection_due = time.monotonic()
    tick, is_last = 0, False
    while is_last or os.getppid() == parent:
        now_s, begun = time.time(), time.monotonic()
        # While the driver hangs, neither signals nor the parent can be checked.
        signal.alarm(HANG_S)
        readings = {uuid: device.read() for uuid, device in devices.items()}
        # At the end too, so that the counters cover the run, and energy its last window.
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
    """Return the number of the next tick on a fixed grid; a slow reading makes it skip ticks."""
    return max(tick, math.floor(elapsed_s / interval_s)) + 1


if __name__ == "__main__":
    sys.exit(main())
