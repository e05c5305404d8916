"""Read the network ports of this node below `/sys/class`, and TCP's counters in `/proc/net`.

Counters of ports cover the whole host; those of TCP cover this process's network namespace.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from gpuscale.base.host import text_of
from gpuscale.records.ports import PORT_COUNTERS, PORT_COUNTERS_BY_NAME, Port, PortKind

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ETHERNET = "1"
"""Type of a network interface with Ethernet frames; loopback and IPoIB have other types."""


class _Fact(NamedTuple):
    """Rule for reading a field of a port from a file; the field stays unset without a match."""

    field: str
    file: str
    """Path relative to the folder of the port, or to that of the port's PCIe device."""
    pattern: str
    of: Callable[[str], Any] = float
    """Function that converts the text of the pattern's group to the field's value."""


def _of_mbit_s(text: str) -> float:
    return int(text) / 1000


# The kernel reports an unknown speed as -1 or 0, and the width of a PCIe link that is down, or
# whose registers cannot be read, as 0 or 255.
_NUMBER, _SPEED, _WIDTH = r"(\d+(?:\.\d+)?)", r"([1-9]\d*)", r"(?!255\b)([1-9]\d*)"
_DEVICE_FACTS = (
    _Fact("model", "uevent", r"(?s).*\bPCI_ID=(\S+)", str.lower),
    _Fact("numa_node", "numa_node", r"(\d+)", int),
    _Fact("pcie_width", "current_link_width", _WIDTH, int),
    _Fact("pcie_gt_s", "current_link_speed", _NUMBER),
)
_PORT_FACTS: Mapping[PortKind, tuple[_Fact, ...]] = {
    "infiniband": (
        _Fact("kind", "link_layer", r"(Ethernet)", lambda _: "roce"),
        _Fact("state", "state", r"\d: (\w+)", str.lower),
        _Fact("rate_gbit_s", "rate", rf"{_NUMBER} Gb/sec"),
        _Fact("width", "rate", r"[\d.]+ Gb/sec \(([1-9]\d*)X", int),
    ),
    "slingshot": (
        _Fact("state", "device/properties/link", "([01])", {"0": "down", "1": "up"}.get),
        _Fact("rate_gbit_s", "device/properties/speed", _SPEED, _of_mbit_s),
        # Extended speed mode (ESM), whose rates the standard PCIe registers cannot express.
        _Fact("pcie_gt_s", "device/properties/current_esm_link_speed", _NUMBER),
    ),
    "ethernet": (
        _Fact("state", "operstate", r"(\w+)", str),
        _Fact("rate_gbit_s", "speed", _SPEED, _of_mbit_s),
    ),
}
_PLACES: Mapping[str, PortKind] = {
    "infiniband/*/ports/*": "infiniband",
    "cxi/cxi*": "slingshot",
    "net/*": "ethernet",
}
"""Kind of port for each pattern of folders below `/sys/class` that describe such ports."""

_Readings = dict[tuple[str, str | None], tuple[Port, Mapping[str, int | str]]]
"""Each port with the values of its counters, or the reasons why they cannot be read, keyed by name
and PCI address, since another adapter may take over a name after a hotplug."""
_GONE = dict.fromkeys(PORT_COUNTERS_BY_NAME, "the port vanished during the run")
_NEW = dict.fromkeys(PORT_COUNTERS_BY_NAME, "the port appeared during the run")


class NetworkMeter:
    """Measures the ports of this node from the creation of the meter until the call of `read`."""

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._root, self._before = root, _readings(root)

    def read(self) -> tuple[Port, ...]:
        """Return the ports, with the growth of their counters since the meter was created."""
        return tuple(_grown(self._before, _readings(self._root)))


def read_ports(root: Path = Path("/")) -> tuple[Port, ...]:
    """Return the current state of the ports of this node's network adapters."""
    return tuple(port for port, _ in _readings(root).values() if port.pci_address is not None)


def _grown(before: _Readings, after: _Readings) -> Iterator[Port]:
    """Yield each port with its counters' growth and the lower of its rates before and after."""
    for key in {**before, **after}:
        (old, then), (new, now) = before.get(key, (None, _NEW)), after.get(key, (None, _GONE))
        port = new or replace(before[key][0], state="vanished")
        rates = [p.rate_gbit_s for p in (old, new) if p is not None and p.rate_gbit_s is not None]
        growth, at_least, absent = {}, [], dict[str, tuple[str, ...]]()
        for name in sorted(then.keys() & now.keys()):
            grown = PORT_COUNTERS_BY_NAME[name].growth(then[name], now[name])
            if isinstance(grown, str):
                absent[grown] = (*absent.get(grown, ()), name)
            elif grown.grown_by or grown.is_floor:
                growth[name] = grown.grown_by
                at_least += [name] if grown.is_floor else []
        yield replace(
            port,
            rate_gbit_s=min(rates, default=None),
            growth=growth,
            at_least=tuple(at_least),
            absent=absent,
        )


def _readings(root: Path) -> _Readings:
    found = [*_tcp(root)]
    for pattern, kind in _PLACES.items():
        for folder in sorted((root / "sys/class").glob(pattern)):
            port = _port(kind, folder)
            if kind != "ethernet" or _is_counted(port, folder):
                found.append((port, _counters(kind, folder)))
    return {(port.name, port.pci_address): (port, counters) for port, counters in found}


def _port(kind: PortKind, folder: Path) -> Port:
    adapter, name = folder, folder.name
    if kind == "infiniband":
        adapter, name = folder.parents[1], f"{folder.parents[1].name} port {name}"
    device = adapter / "device"
    # A virtual interface has no PCI address.
    addresses = _PCI_ADDRESS.findall(str(device.resolve())) or [None]
    facts: dict[str, Any] = {"name": name, "kind": kind, "pci_address": addresses[-1]}
    for place, known in ((device, _DEVICE_FACTS), (folder, _PORT_FACTS[kind])):
        for fact in known:
            if match := re.match(fact.pattern, text_of(place / fact.file)):
                facts[fact.field] = fact.of(match[1])
    return Port(**facts)


def _is_counted(port: Port, folder: Path) -> bool:
    """Return True for interfaces of adapters and for virtual ones that carry their own traffic."""
    if text_of(folder / "type") != _ETHERNET:
        return False
    # Traffic of a virtual interface in a bridge is counted by the bridge itself.
    is_used = text_of(folder / "statistics/rx_bytes") not in ("", "0")
    return port.pci_address is not None or (is_used and not (folder / "master").exists())


def _tcp(root: Path) -> Iterator[tuple[Port, Mapping[str, int | str]]]:
    columns: dict[str, str] = {}
    for file in ("snmp", "netstat"):
        lines = text_of(root / "proc/net" / file).splitlines()
        # Names and values alternate: `Tcp: InSegs RetransSegs` and `Tcp: 9 2`.
        for names, values in zip(lines[::2], lines[1::2], strict=False):
            columns |= zip(names.split(), values.split(), strict=False)
    if found := {name: int(columns[name]) for name in PORT_COUNTERS_BY_NAME if name in columns}:
        yield Port(name="TCP", kind="tcp"), found


def _counters(kind: PortKind, folder: Path) -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for counter in PORT_COUNTERS:
        if counter.kind == kind:
            try:
                text = (folder / counter.folder / counter.name).read_text(encoding="ascii")
                # Slingshot's counters include a time stamp: `1204@1795426392.731`.
                found[counter.name] = int(text.partition("@")[0])
            except OSError as error:
                found[counter.name] = error.strerror or "not readable"
            except ValueError:
                found[counter.name] = "not a number"
    return found
