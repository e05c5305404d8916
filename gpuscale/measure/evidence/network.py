"""Read the network ports of this node below `/sys/class`, and TCP's counters in `/proc/net`.

The counters of ports are of the whole host, those of TCP of this process's network namespace.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpuscale.base.port_counters import PORT_COUNTERS, PORT_COUNTERS_BY_NAME
from gpuscale.records.port import Port

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_RATE = re.compile(r"([\d.]+) Gb/sec \((\d+)X")
_ETHERNET = "1"
"""Type of a network interface with Ethernet frames; loopback, tunnels and IPoIB have others."""
_NO_WIDTH = (0, 255)
"""Widths of a PCIe link that is down, or whose registers cannot be read."""


_Readings = dict[tuple[str, str | None], tuple[Port, Mapping[str, int | str]]]
"""Each port with the values of its counters, or the reasons why they cannot be read, by name and
PCI address: after a hotplug another adapter may have the name."""
_GONE = dict.fromkeys(PORT_COUNTERS_BY_NAME, "the port vanished during the run")
_NEW = dict.fromkeys(PORT_COUNTERS_BY_NAME, "the port appeared during the run")


class NetworkMeter:
    """Measures the ports of this node from the creation of the meter until the call of `read`."""

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._root, self._before = root, _readings(root)

    def read(self) -> tuple[Port, ...]:
        """Return the ports with the growth of their counters."""
        return tuple(_grown(self._before, _readings(self._root)))


def read_ports(root: Path = Path("/")) -> tuple[Port, ...]:
    """Return the ports of this node's adapters as they are now."""
    return tuple(port for port, _ in _readings(root).values() if port.pci_address is not None)


def _grown(before: _Readings, after: _Readings) -> Iterator[Port]:
    """Yield the ports with the growth of their counters, and the lower of their rates."""
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
    for pattern, port_of in _PLACES.items():
        for folder in sorted((root / "sys/class").glob(pattern)):
            if (port := port_of(folder)) is not None:
                found.append((port, _counters(port, folder)))
    return {(port.name, port.pci_address): (port, counters) for port, counters in found}


def _infiniband(folder: Path) -> Port:
    adapter, rate = folder.parents[1], _RATE.match(_text(folder / "rate"))
    return Port(
        name=f"{adapter.name} port {folder.name}",
        kind="roce" if _text(folder / "link_layer") == "Ethernet" else "infiniband",
        # The kernel says `4: ACTIVE`.
        state=_text(folder / "state").rpartition(" ")[2].lower() or None,
        rate_gbit_s=float(rate[1]) if rate else None,
        width=int(rate[2]) if rate else None,
        **_pci(adapter / "device"),
    )


def _slingshot(folder: Path) -> Port:
    properties, pci = folder / "device/properties", _pci(folder / "device")
    # An extended speed, which the registers of PCIe cannot express.
    pci["pcie_gt_s"] = _number(properties / "current_esm_link_speed") or pci.get("pcie_gt_s")
    return Port(
        name=folder.name,
        kind="slingshot",
        state={"1": "up", "0": "down"}.get(_text(properties / "link")),
        rate_gbit_s=_gbit_s(properties / "speed"),
        **pci,
    )


def _ethernet(folder: Path) -> Port | None:
    pci = _pci(folder / "device")
    # A virtual interface that belongs to a bridge passes on what the bridge counts.
    is_passed_on = not pci and (folder / "master").exists()
    if _text(folder / "type") != _ETHERNET or is_passed_on:
        return None
    if not pci and not _number(folder / "statistics/rx_bytes"):
        return None
    return Port(
        name=folder.name,
        kind="ethernet",
        state=_text(folder / "operstate") or None,
        rate_gbit_s=_gbit_s(folder / "speed"),
        **pci,
    )


_PLACES: Mapping[str, Callable[[Path], Port | None]] = {
    "infiniband/*/ports/*": _infiniband,
    "cxi/cxi*": _slingshot,
    "net/*": _ethernet,
}
"""Functions that return the port in a folder below `/sys/class`, or None to leave it out."""


def _tcp(root: Path) -> Iterator[tuple[Port, Mapping[str, int | str]]]:
    counters: dict[str, int | str] = {}
    for counter in PORT_COUNTERS:
        if "tcp" in counter.kinds:
            lines = _text(root / "proc/net" / counter.folder).splitlines()
            # Names and values alternate: `Tcp: InSegs RetransSegs` and `Tcp: 9 2`.
            for names, values in zip(lines[::2], lines[1::2], strict=False):
                columns = dict(zip(names.split(), values.split(), strict=False))
                if counter.name in columns:
                    counters[counter.name] = int(columns[counter.name])
    if counters:
        yield Port(name="TCP", kind="tcp"), counters


def _counters(port: Port, folder: Path) -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for counter in PORT_COUNTERS:
        if port.kind in counter.kinds:
            try:
                text = (folder / counter.folder / counter.name).read_text(encoding="ascii")
                # Slingshot's counters come with the time: `1204@1795426392.731`.
                found[counter.name] = int(text.partition("@")[0])
            except OSError as error:
                found[counter.name] = error.strerror or "not readable"
            except ValueError:
                found[counter.name] = "not a number"
    return found


def _pci(device: Path) -> dict[str, Any]:
    """Return the fields of a port that describe the PCIe device behind it; empty if virtual."""
    addresses = _PCI_ADDRESS.findall(str(device.resolve())) if device.exists() else []
    if not addresses:
        return {}
    ids = [_text(device / name).removeprefix("0x") for name in ("vendor", "device")]
    found: dict[str, Any] = {"numa_node": _count(device / "numa_node")}
    for field, file in (("pcie_", "current"), ("pcie_max_", "max")):
        width = _count(device / f"{file}_link_width")
        found[f"{field}width"] = None if width in _NO_WIDTH else width
        found[f"{field}gt_s"] = _number(device / f"{file}_link_speed")
    return {"pci_address": addresses[-1], "model": ":".join(ids) if all(ids) else None, **found}


def _gbit_s(file: Path) -> float | None:
    """Return a speed that the kernel reports in Mb/s; for an unknown one it reports -1 or 0."""
    speed_mbit_s = _count(file)
    return speed_mbit_s / 1000 if speed_mbit_s else None


def _count(file: Path) -> int | None:
    number = _number(file)
    return None if number is None or number < 0 else int(number)


def _number(file: Path) -> float | None:
    """Return the number at the beginning of a file, such as `32.0 GT/s PCIe`; None if none is."""
    with suppress(ValueError, IndexError):
        return float(_text(file).split()[0])
    return None


def _text(file: Path) -> str:
    """Return the text of a file without blanks at its ends; empty if it cannot be read."""
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace").strip()
    return ""
