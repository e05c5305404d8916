"""What a sampler needs from a driver, apart from any one driver's library."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpuscale.errors import GpuscaleError
from gpuscale.records import PcieLink


class DriverAbsentError(GpuscaleError):
    """There is no usable driver on this machine; the message is the reason to record."""


class DriverBrokenError(DriverAbsentError):
    """There is a driver on this machine, but it does not work."""


class DeviceAbsentError(GpuscaleError):
    """The driver does not offer the device that was asked for; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What changes from moment to moment; a field that was not offered is None, never 0."""

    utilization: float | None = None
    """Share of the driver's last sampling period with a kernel running, 0 to 1."""
    memory_used_bytes: int | None = None
    """Memory that processes have allocated on the device, of this and of other jobs."""
    power_w: float | None = None
    energy_j: float | None = None
    """A counter: joules since some moment before."""
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    clock_event_reasons: tuple[str, ...] | None = None
    """Why the clocks are not higher, as nvidia-smi names it; empty where nothing holds them."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """The driver's reason for each of the fields above that is None, by field name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What changes seldom, and is read less often; None is what was not offered."""

    pcie: PcieLink | None = None
    power_limit_w: float | None = None
    nvlink_active: tuple[bool, ...] | None = None
    """Of each link, in the order of their numbers."""
    nvlink_errors: Mapping[str, int] | None = None
    """Counters over all links: `replay`, `recovery` and `crc`; from Blackwell on `recovery` and
    `effective`, the errors that forward error correction left."""
    ecc_corrected: int | None = None
    """A counter: since the driver was loaded or the GPU reset, like the next."""
    ecc_uncorrected: int | None = None
    xids: tuple[int, ...] | None = None
    """The driver's error events since the last time, of which the first only starts them."""
    utilization_samples: tuple[tuple[float, float], ...] | None = None
    """What the driver itself sampled since the last time: Unix times, and shares from 0 to 1."""
    power_samples: tuple[tuple[float, float], ...] | None = None
    """The same in watts; None also where the power of `Reading` is better."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """The driver's reason for each of the fields above that is None, by field name; but for the
    samples, in whose place the readings stand."""


LABELS = {
    "utilization": "utilization",
    "memory_used_bytes": "memory",
    "power_w": "power",
    "energy_j": "energy",
    "sm_clock_mhz": "SM clock",
    "memory_clock_mhz": "memory clock",
    "temperature_c": "temperature",
    "clock_event_reasons": "clock events",
    "pcie": "PCIe",
    "power_limit_w": "power limit",
    "nvlink_active": "NVLink",
    "nvlink_errors": "NVLink errors",
    "ecc_corrected": "ECC errors",
    "ecc_uncorrected": "ECC errors",
    "xids": "XID events",
}
"""What people call the fields of `Reading` and `Condition`."""


class DeviceProbe(Protocol):
    """One device of a driver."""

    @property
    def name(self) -> str | None:
        """The model; None where the driver does not tell it."""
        ...

    @property
    def uuid(self) -> str | None:
        """The driver's own name for this one device; None where it does not tell it."""
        ...

    def read(self) -> Reading:
        """The present state. Never raises: what cannot be read is absent, with its reason."""
        ...

    def inspect(self) -> Condition:
        """The slower part of the present state. Never raises, like `read`."""
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

    def all_devices(self) -> Sequence[DeviceProbe | DeviceAbsentError]:
        """Every GPU by the driver's own number, or why that one cannot be reached."""
        ...

    def close(self) -> None:
        """Lets go of the driver; the devices found are not read after it."""
        ...
