"""Sample the GPUs of a node during runs, in a process that launch/keeper.py forks.

The sampler writes one file per run: a header, which gives the reason if sampling is impossible,
and then a line for each reading of all GPUs. The file is in JSON Lines and has no format version,
because only processes of the same run write and read it.
"""

import math
import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from select import select
from typing import TextIO

import msgspec

from gpuscale.base.errors import DeviceAbsentError, DriverAbsentError, QueryError
from gpuscale.base.process_ends import die_with_parent
from gpuscale.measure.telemetry.device import Device, Smi, open_smi
from gpuscale.records.gpu_and_port_counters import Reading

_LONGEST_ORDER_BYTES = 65536
_PATIENCE_S = 10.0
"""Seconds to wait for the driver, which takes seconds to wake GPUs without persistence mode."""
HANG_S = 30
"""Maximum duration of a reading, in seconds; SIGALRM ends the sampler if it is exceeded."""
INSPECTION_S = 1.0
"""Seconds between readings of counters that rarely change, such as links and errors."""


class SampledDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU in the header of a samples file, with the reason if it is not sampled."""

    name: str | None = None
    absent: str | None = None
    """The reason why the device is not sampled; None if it is sampled."""


Header = dict[str, SampledDevice]
"""The first line of a samples file: the devices by UUID, as in `SamplingOrder.addresses`."""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a samples file after the header: readings of all devices at one time."""

    time_s: float
    """Unix time at which the reading began."""
    readings: dict[str, Reading]
    """Readings, keyed by device UUID as in `SamplingOrder.addresses`."""


def line_of(record: Header | Tick) -> str:
    """Encode a header or tick as one line of a samples file."""
    return msgspec.json.encode(record).decode() + "\n"


def read_samples(path: Path) -> tuple[Header | None, list[Tick]]:
    """Return the header and the ticks of a samples file, which may still be growing.

    The header is None if missing or incomplete; other incomplete lines are left out.
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


class SamplingOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A message to the sampler process: sample these GPUs until the next message arrives."""

    addresses: dict[str, str | None]
    """PCI address of each device by UUID; None if unknown."""
    output: str
    interval_s: float = 0.1


class DriverProcess:
    """A separate process that samples GPUs, so that ranks do not inherit an open driver.

    The process is forked once, before its parent imports torch. Forking after the import, once per
    run, would take tens of milliseconds because of the memory that torch maps.
    """

    def __init__(self) -> None:
        self._pipe, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pipe.settimeout(_PATIENCE_S)
        self.is_usable = True
        """False once the driver has hung or failed."""
        # The child must not write signals into the pipe that wakes the keeper.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGALRM})
        self.number = os.fork()
        if not self.number:
            with suppress(BaseException):
                die_with_parent()
                self._pipe.close()
                serve(theirs)
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def start(self, addresses: Mapping[str, str | None], output: Path) -> int | None:
        """Start sampling GPUs into a file; return the number of processes on the GPUs, if known."""
        order = SamplingOrder(addresses={**addresses}, output=str(output))
        answer = self._answer(msgspec.json.encode(order))
        return int(answer) if answer.isdigit() else None

    def stop(self) -> None:
        """Take a last sample and stop sampling."""
        self._answer(b"stop")

    def _answer(self, message: bytes) -> bytes:
        with suppress(OSError):
            self._pipe.send(message)
            if answer := self._pipe.recv(100):
                return answer
        # A late answer must not be mistaken for the answer to the next message.
        self.is_usable = False
        self._pipe.close()
        with suppress(ProcessLookupError):
            os.kill(self.number, signal.SIGKILL)
        return b""


def serve(pipe: socket.socket) -> None:
    """Carry out sampling orders that arrive through the pipe, until its other end is closed."""
    while message := pipe.recv(_LONGEST_ORDER_BYTES):
        order = msgspec.json.decode(message, type=SamplingOrder)
        with Path(order.output).open("w", encoding="utf-8", buffering=1) as output:
            try:
                with open_smi() as smi:
                    header, devices, others = _opened(smi, order.addresses)
                    output.write(line_of(header))
                    pipe.send(str(others).encode())
                    _sample(devices, output, order.interval_s, pipe)
            except (DriverAbsentError, ImportError) as error:
                absent = SampledDevice(absent=str(error))
                output.write(line_of(dict.fromkeys(order.addresses, absent)))
                pipe.send(b"None")
                pipe.recv(_LONGEST_ORDER_BYTES)
        pipe.send(b"done")


def _opened(
    smi: Smi, addresses: Mapping[str, str | None]
) -> tuple[Header, dict[str, Device], int | None]:
    """Return the header, devices keyed by UUID, and their process count (None if unknown)."""
    devices, described, others = dict[str, Device](), dict[str, SampledDevice](), None
    for uuid, address in addresses.items():
        try:
            devices[uuid] = smi.find_device(uuid, address)
            described[uuid] = SampledDevice(name=devices[uuid].name)
        except DeviceAbsentError as error:
            described[uuid] = SampledDevice(absent=str(error))
        except QueryError as error:
            described[uuid] = SampledDevice(absent=f"{smi.NAME} cannot list the GPUs: {error}")
    with suppress(QueryError):
        if len(devices) == len(described):
            others = sum(device.compute_processes() for device in devices.values())
    return described, devices, others


def _sample(
    devices: Mapping[str, Device], output: TextIO, interval_s: float, pipe: socket.socket
) -> None:
    """Write a line of readings per tick until a message arrives or the pipe's other end closes."""
    started = inspection_due = time.monotonic()
    tick, is_last = 0, False
    while True:
        now_s, begun = time.time(), time.monotonic()
        # While the driver hangs, no order to stop can be received: the alarm ends this process.
        signal.alarm(HANG_S)
        readings = {uuid: device.read() for uuid, device in devices.items()}
        # Also at the last tick, so that these counters cover the whole run.
        if is_last or begun >= inspection_due:
            inspection_due = begun + INSPECTION_S
            readings = {uuid: device.inspect(readings[uuid]) for uuid, device in devices.items()}
        signal.alarm(0)
        if devices:
            output.write(line_of(Tick(time_s=now_s, readings=readings)))
        if is_last:
            break
        tick = next_tick(tick, time.monotonic() - started, interval_s)
        wait_s = started + tick * interval_s - time.monotonic()
        is_last = bool(select([pipe], [], [], max(0.0, wait_s))[0])
    pipe.recv(_LONGEST_ORDER_BYTES)


def next_tick(tick: int, elapsed_s: float, interval_s: float) -> int:
    """Return the number of the next tick on a fixed grid, skipping ticks that are already past."""
    return max(tick, math.floor(elapsed_s / interval_s)) + 1
