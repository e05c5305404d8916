"""GPUs and their drivers, of any vendor: open the driver, find devices and read their counters."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

from gpuscale.base.errors import (
    DeviceAbsentError,
    DeviceGoneError,
    DriverAbsentError,
    DriverBrokenError,
    NotSupportedError,
    QueryError,
)
from gpuscale.base.gpu_counters import MOMENTS, Field, Query, Reading, clock_events

AMD_DRIVER = Path("/dev/kfd")
"""Path that exists if AMD's compute driver is loaded."""
_DRIVERS = ("gpuscale.measure.telemetry.nvml", "gpuscale.measure.telemetry.amd")
"""Modules that implement `Smi`, imported only when a driver is opened."""

_AT_EVERY_TICK = [moment for moment, field in MOMENTS.items() if field.when == "windows"]
# Increasing counters are interpolated in time, so they are read right after the clock.
_AT_EVERY_TICK.sort(key=lambda moment: MOMENTS[moment].reduce != "increase")
_SELDOM = [moment for moment in MOMENTS if moment not in _AT_EVERY_TICK]


class Device:
    """A GPU or a partition of one; name and UUID are None if the driver does not report them."""

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

    def __init__(self, own: Mapping[str, Callable[[], Any]]) -> None:
        """Prepare to read counters; functions in `own` (by `Field.moment`) supplement queries."""
        self.never_offered: dict[str, str] = {}
        """Permanent reasons why counters cannot be read, keyed by `Field.moment`."""
        self._gone: str | None = None
        self._questions = {**own}
        for moment, field in MOMENTS.items():
            queries = [query for query in field.queries if query.is_amd is self.is_amd]
            if queries:
                forms = (partial(self.number, field, query) for query in queries)
                self._questions[moment] = Forms(*forms)

    def description(self) -> dict[str, Any]:
        """Return the fields of a `GpuDevice` that only the driver reports."""
        facts: dict[str, Any] = {
            "pci_address": self.pci_address,
            "firmware": self.firmware,
            "partition": self.partition,
        }
        for name, query in self.limits.items():
            with suppress(QueryError):
                facts[name] = self.answer(query) / query.divisor
        return facts

    def read(self) -> Reading:
        """Return the fast-changing counters, with the reason for each that cannot be read."""
        return self._read(_AT_EVERY_TICK)

    def inspect(self, reading: Reading) -> Reading:
        """Return the given reading plus slowly changing counters."""
        seldom = self._read(_SELDOM)
        return Reading(
            answers=reading.answers | seldom.answers, absent=reading.absent | seldom.absent
        )

    def number(self, field: Field, query: Query) -> Any:
        """Send a query for a field to the device; return the value in the field's unit."""
        answer = self.answer(query)
        if field.reduce == "shares":
            return clock_events(int(answer))
        return int(answer) if field.quantity.whole else float(answer) / query.divisor

    def _read(self, moments: Sequence[str]) -> Reading:
        reading = Reading()
        for moment in moments:
            if moment in self._questions:
                self._ask(moment, reading)
        return reading

    def _ask(self, moment: str, into: Reading) -> None:
        reason = self._gone or self.never_offered.get(moment)
        if reason is None:
            try:
                into.answers[moment] = self._questions[moment]()
                return
            except QueryError as error:
                reason = str(error)
                if isinstance(error, DeviceGoneError):
                    self._gone = reason
                elif isinstance(error, NotSupportedError):
                    self.never_offered[moment] = reason
        into.absent[moment] = reason


class Forms:
    """Alternative calls for one value, newest first; the first that the driver offers is used."""

    def __init__(self, *forms: Callable[[], Any]) -> None:
        self._forms = [*forms]

    def __call__(self) -> Any:
        """Return the result of the newest form offered; raise NotSupportedError if none is."""
        while len(self._forms) > 1:
            try:
                return self._forms[0]()
            except NotSupportedError:
                del self._forms[0]
        return self._forms[0]()


class Smi(Protocol):
    """Interface of the modules `nvml` and `amd`, which document its functions."""

    NAME: str

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def driver_version(self) -> str | None: ...
    def find_device(self, uuid: str, addresses: Mapping[str, str | None]) -> Device: ...
    def all_devices(self) -> Iterator[tuple[int, Device | DeviceAbsentError]]: ...


@contextmanager
def open_smi() -> Iterator[Smi]:
    """Open NVML or AMD SMI while the context lasts; raise DriverAbsentError if neither starts."""
    absent: list[DriverAbsentError] = []
    for name in _DRIVERS:
        smi = cast("Smi", import_module(name))
        try:
            smi.start()
        except DriverBrokenError:
            raise
        except DriverAbsentError as error:
            absent.append(error)
            continue
        try:
            yield smi
        finally:
            smi.stop()
        return
    raise absent[AMD_DRIVER.exists()]


def find_devices(
    smi: Smi, addresses: Mapping[str, str | None]
) -> dict[str, Device | DeviceAbsentError]:
    """Return each device, or an error that says why it is absent, by UUID as in `addresses`."""
    found: dict[str, Device | DeviceAbsentError] = {}
    for uuid in addresses:
        try:
            found[uuid] = smi.find_device(uuid, addresses)
        except DeviceAbsentError as error:
            found[uuid] = error
        except QueryError as error:
            found[uuid] = DeviceAbsentError(f"{smi.NAME} cannot list the GPUs: {error}")
    return found
