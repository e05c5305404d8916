"""What a sampler needs from a driver, apart from any one driver's library."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpuscale.errors import GpuscaleError


class DriverAbsentError(GpuscaleError):
    """There is no usable driver on this machine; the message is the reason to record."""


class DeviceAbsentError(GpuscaleError):
    """The driver does not offer the device that was asked for; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one device said at one moment; a field that it did not offer is None, never 0."""

    utilization: float | None = None
    """Share of the driver's last sampling period with a kernel running, 0 to 1."""
    memory_used_bytes: int | None = None
    """Memory that processes have allocated on the device, of this and of other jobs."""
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    """The driver's reason for each of the fields above that is None, by field name."""


class DeviceProbe(Protocol):
    """One device of a driver."""

    @property
    def name(self) -> str | None:
        """The model; None where the driver does not tell it."""
        ...

    def read(self) -> Reading:
        """The present state. Never raises: what cannot be read is absent, with its reason."""
        ...


class Probe(Protocol):
    """An open driver."""

    @property
    def driver_version(self) -> str | None:
        """The version of the driver; None where it does not tell it."""
        ...

    def find(self, uuid: str) -> DeviceProbe:
        """The device with that UUID, with or without the driver's prefix.

        Raises:
            DeviceAbsentError: the driver does not know it or cannot reach it.
        """
        ...

    def close(self) -> None:
        """Lets go of the driver; the devices found are not read after it."""
        ...
