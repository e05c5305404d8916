"""One interface to the GPU drivers of all vendors; most of the code needs to know no vendor."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from gpuscale.base.counters import Query
from gpuscale.base.errors import DeviceAbsentError, DriverAbsentError, DriverBrokenError
from gpuscale.measure import amdsmi, nvml

AMD_DRIVER = Path("/dev/kfd")
"""Path that exists if AMD's compute driver is loaded."""


class Smi(Protocol):
    """Interface of the modules `nvml` and `amdsmi`, which document its functions."""

    NAME: str

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def driver_version(self) -> str | None: ...
    def find_handle(self, uuid: str, pci_address: str | None) -> Any: ...
    def all_handles(self) -> Iterator[tuple[int, Any | DeviceAbsentError]]: ...
    def answer(self, query: Query, handle: Any) -> Any: ...
    def key(self, handle: Any) -> str: ...
    def description(self, handle: Any) -> dict[str, Any]: ...


@contextmanager
def open_smi() -> Iterator[Smi]:
    """Open the driver interface of this machine, NVML or AMD SMI, while the context lasts."""
    absent: list[DriverAbsentError] = []
    modules: tuple[Smi, ...] = (nvml, amdsmi)
    for smi in modules:
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
