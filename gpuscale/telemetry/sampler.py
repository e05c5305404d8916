"""The sampling process: `python -m gpuscale.telemetry.sampler --output FILE --uuid U …`.

It appends a line to FILE at each tick until SIGTERM or the end of its parent, however that
comes about. It ends at once, with the reason in FILE, where there is nothing to sample.
"""

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from gpuscale.telemetry.nvml import open_nvml
from gpuscale.telemetry.probe import DeviceAbsentError, DeviceProbe, DriverAbsentError, Probe
from gpuscale.telemetry.samples import Header, SampledDevice, Tick, header_line, tick_line

_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

HANG_S = 30
"""A reading that takes longer ends the process, by SIGALRM."""

INSPECTION_S = 1.0
"""Seconds between looks at what changes seldom, such as links and error counters."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Samples until it is told to stop; the exit status is 0 also where there is no GPU."""
    # Blocked from the start and waited for between ticks: no handler runs in the midst of a
    # line, and no signal falls between a check and a sleep.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
    options = _parser().parse_args(arguments)
    uuids = tuple(dict.fromkeys(options.uuid))
    with options.output.open("w", encoding="utf-8", buffering=1) as output:
        try:
            probe = open_nvml()
        except DriverAbsentError as error:
            header = Header(interval_s=options.interval_s, absent=str(error), devices={})
            output.write(header_line(header))
            return 0
        try:
            devices = _find(probe, uuids, output, options.interval_s)
            if devices:
                sample(devices, output, interval_s=options.interval_s, parent=options.parent_pid)
        finally:
            probe.close()
    return 0


def _find(
    probe: Probe, uuids: Sequence[str], output: TextIO, interval_s: float
) -> dict[str, DeviceProbe]:
    """Looks for the devices and writes the header that says which were found."""
    found: dict[str, DeviceProbe] = {}
    described: dict[str, SampledDevice] = {}
    for uuid in uuids:
        try:
            found[uuid] = probe.find(uuid)
            described[uuid] = SampledDevice(name=found[uuid].name)
        except DeviceAbsentError as error:
            described[uuid] = SampledDevice(absent=str(error))
    header = Header(interval_s=interval_s, driver_version=probe.driver_version, devices=described)
    output.write(header_line(header))
    return found


def sample(
    devices: Mapping[str, DeviceProbe], output: TextIO, *, interval_s: float, parent: int
) -> None:
    """Writes one line a tick until a stop signal, which must be blocked, or until `parent` ends.

    A process whose parent ends gets another one, after `kill -9` too. Asking for it at each
    tick needs no signal that could be lost before it is set up, and unlike PR_SET_PDEATHSIG
    it does not take the end of the thread that started us for the end of the process.
    """
    started = inspection_due = time.monotonic()
    tick = 0
    while os.getppid() == parent:
        inspects = time.monotonic() >= inspection_due
        if inspects:
            inspection_due = time.monotonic() + INSPECTION_S
        output.write(tick_line(_take(devices, inspects=inspects)))
        tick = next_tick(tick, time.monotonic() - started, interval_s)
        wait_s = started + tick * interval_s - time.monotonic()
        if signal.sigtimedwait(_STOP, max(0.0, wait_s)) is not None:
            # The counters then cover the end of the run, and energy the end of its last window.
            output.write(tick_line(_take(devices, inspects=True)))
            return


def _take(devices: Mapping[str, DeviceProbe], *, inspects: bool) -> Tick:
    now_s = time.time()
    # A driver that hangs leaves no chance to look for signals or for the parent.
    signal.alarm(HANG_S)
    readings = {uuid: device.read() for uuid, device in devices.items()}
    conditions = {uuid: device.inspect() for uuid, device in devices.items()} if inspects else {}
    signal.alarm(0)
    return Tick(time_s=now_s, readings=readings, conditions=conditions)


def next_tick(tick: int, elapsed_s: float, interval_s: float) -> int:
    """The number of the tick to wait for, on a fixed grid from the start.

    A late tick does not shift the later ones, and ticks that a slow reading has missed are
    left out, not made up for in a burst.
    """
    return max(tick, math.floor(elapsed_s / interval_s)) + 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpuscale.telemetry.sampler",
        description="Sample the state of GPUs into a file.",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--interval-s", type=_positive_seconds, default=0.1, metavar="SECONDS")
    parser.add_argument(
        "--uuid", action="append", required=True, help="a device, as CUDA or NVML names it"
    )
    parser.add_argument(
        "--parent-pid",
        type=int,
        default=os.getppid(),
        metavar="PID",
        help="the process whose end also ends the sampling (the one that started this)",
    )
    return parser


def _positive_seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
