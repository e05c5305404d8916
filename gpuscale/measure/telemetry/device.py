"""GPUs and their drivers, of any vendor: open the driver, find devices and read their counters."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

from gpuscale.base import errors
from gpuscale.records.gpu_and_port_counters import MOMENTS, Field, Query, Reading, clock_events

AMD_DRIVER = Path("/dev/kfd")
"""Path that exists if AMD's compute driver is loaded."""
_DRIVERS = ("gpuscale.measure.telemetry.nvml", "gpuscale.measure.telemetry.amd")
"""Modules that implement `Smi`, imported only when a driver is opened."""

_AT_EVERY_TICK = [moment for moment, field in MOMENTS.items() if field.when == "windows"]
# Increasing counters are interpolated in time, so they are read right after the clock.
_AT_EVERY_TICK.sort(key=lambda moment: MOMENTS[moment].reduce != "increase")
_SELDOM = [moment for moment in MOMENTS if moment not in _AT_EVERY_TICK]


class Device:
    """A GPU or a GPU partition; name and UUID are None if the driver does not report them."""

    is_amd = False
    """True if the device is queried by AMD SMI, False if by NVML."""
    name: str | None
    uuid: str | None
    firmware: str | None = None
    pci_address: str | None = None
    partition: str | None = None
    limits: ClassVar[Mapping[str, Query]]
    """Queries for the power and clock limits that a `GpuDevice` records, keyed by field."""
    key: str
    """Identifier that torch also reports: NVIDIA's UUID in CUDA's form, or AMD's PCI address."""

    compute_processes: Callable[[], int]
    """Method that returns the number of processes that are computing on the device."""
    answer: Callable[[Query], Any]
    """Method that returns the answer to a query, in the driver's unit, or raises QueryError."""

    def __init__(self, own: Mapping[str, Sequence[Callable[[], Any]]]) -> None:
        """Prepare to read counters; `own` lists functions to try for counters without a query."""
        self.never_offered: dict[str, str] = {}
        """Permanent reasons why counters cannot be read, keyed by `Field.moment`."""
        self._questions = {moment: [*functions] for moment, functions in own.items()}
        for moment, field in MOMENTS.items():
            if queries := [q for q in field.queries if q.call.startswith("amdsmi_") is self.is_amd]:
                self._questions[moment] = [partial(self.number, field, query) for query in queries]

    def description(self) -> dict[str, Any]:
        """Return the fields of a `GpuDevice` that only the driver reports."""
        facts: dict[str, Any] = {
            "pci_address": self.pci_address,
            "firmware": self.firmware,
            "partition": self.partition,
        }
        for name, query in self.limits.items():
            with suppress(errors.QueryError):
                facts[name] = self.answer(query) / query.divisor
        return facts

    def read(self) -> Reading:
        """Read the fast-changing counters; for each that cannot be read, record the reason."""
        return self._extended(Reading(), _AT_EVERY_TICK)

    def inspect(self, reading: Reading) -> Reading:
        """Add the slowly changing counters to a reading, and return it."""
        return self._extended(reading, _SELDOM)

    def number(self, field: Field, query: Query) -> Any:
        """Send a query for a field to the device; return the value in the field's unit."""
        answer = self.answer(query)
        if field.reduce == "shares":
            return clock_events(int(answer))
        return int(answer) if field.quantity.whole else float(answer) / query.divisor

    def _extended(self, reading: Reading, moments: Iterable[str]) -> Reading:
        for moment in filter(self._questions.__contains__, moments):
            if reason := self.never_offered.get(moment):
                reading.absent[moment] = reason
                continue
            try:
                reading.answers[moment] = _first_offered(self._questions[moment])
            except errors.QueryError as error:
                reading.absent[moment] = str(error)
                if isinstance(error, errors.DeviceGoneError):
                    self.never_offered = dict.fromkeys(MOMENTS, str(error))
                elif isinstance(error, errors.NotSupportedError):
                    self.never_offered[moment] = str(error)
        return reading


def _first_offered(functions: list[Callable[[], Any]]) -> Any:
    """Call functions until one is supported, and return its result; remove unsupported ones."""
    while len(functions) > 1:
        try:
            return functions[0]()
        except errors.NotSupportedError:
            del functions[0]
    return functions[0]()


class Smi(Protocol):
    """Interface to a GPU driver, implemented by the modules `nvml` and `amd`."""

    NAME: str

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def driver_version(self) -> str | None: ...
    def find_device(self, uuid: str, address: str | None) -> Device: ...
    def all_devices(self) -> Iterator[tuple[int, Device | errors.DeviceAbsentError]]: ...


@contextmanager
def open_smi() -> Iterator[Smi]:
    """Open NVML or AMD SMI while the context lasts; raise DriverAbsentError if neither starts."""
    absent: list[errors.DriverAbsentError] = []
    for name in _DRIVERS:
        smi = cast("Smi", import_module(name))
        try:
            smi.start()
        except errors.DriverBrokenError:
            raise
        except errors.DriverAbsentError as error:
            absent.append(error)
            continue
        try:
            yield smi
        finally:
            smi.stop()
        return
    raise absent[AMD_DRIVER.exists()]
