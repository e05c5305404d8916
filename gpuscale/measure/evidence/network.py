"""Read a node's network: ports in `/sys/class`, TCP in `/proc/net`, connections in NCCL's log.

Counters of ports cover the whole host; those of TCP cover this process's network namespace. The
patterns for the log match lines that NCCL 2.4 to 2.30, RCCL 2.18 to 2.21 and libfabric's plugins
write with `NCCL_DEBUG=INFO`; other lines are ignored.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from gpuscale.base.host import text_of
from gpuscale.base.text import clean
from gpuscale.records.gpu_and_port_counters import PORT_COUNTERS, PORT_COUNTERS_BY_NAME, PortKind
from gpuscale.records.probes import Port

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ETHERNET = "1"
"""Type of a network interface with Ethernet frames; loopback and IPoIB have other types."""


class _Fact(NamedTuple):
    """Rule for reading a field of a `Port` from a file; without a match, the field stays unset."""

    field: str
    file: str
    """Path relative to the folder of the port, or to that of the port's PCIe device."""
    pattern: str
    of: Callable[[str], Any] = float
    """Function that converts the text of the pattern's group to the field's value."""


# The kernel reports an unknown speed as -1 or 0, and the width of a PCIe link that is down, or
# whose registers cannot be read, as 0 or 255.
_NUMBER, _SPEED, _WIDTH = r"(\d+(?:\.\d+)?)", r"([1-9]\d*)", r"(?!255\b)([1-9]\d*)"
_DEVICE_FACTS = (
    _Fact("model", "uevent", r"(?s).*\bPCI_ID=(\S+)", str.lower),
    _Fact("numa_node", "numa_node", r"(\d+)", int),
    _Fact("pcie_width", "current_link_width", _WIDTH, int),
    _Fact("pcie_gt_s", "current_link_speed", _NUMBER),
)
_PORTS: Mapping[PortKind, tuple[str, *tuple[_Fact, ...]]] = {
    "infiniband": (
        "infiniband/*/ports/*",
        _Fact("kind", "link_layer", r"(Ethernet)", lambda _: "roce"),
        _Fact("state", "state", r"\d: (\w+)", str.lower),
        _Fact("rate_gbit_s", "rate", rf"{_NUMBER} Gb/sec"),
        _Fact("width", "rate", r"[\d.]+ Gb/sec \(([1-9]\d*)X", int),
    ),
    "slingshot": (
        "cxi/cxi*",
        _Fact("state", "device/properties/link", "([01])", {"0": "down", "1": "up"}.get),
        _Fact("rate_gbit_s", "device/properties/speed", _SPEED, lambda mbit_s: int(mbit_s) / 1000),
        # Extended speed mode (ESM), whose rates the standard PCIe registers cannot express.
        _Fact("pcie_gt_s", "device/properties/current_esm_link_speed", _NUMBER),
    ),
    "ethernet": (
        "net/*",
        _Fact("state", "operstate", r"(\w+)", str),
        _Fact("rate_gbit_s", "speed", _SPEED, lambda mbit_s: int(mbit_s) / 1000),
    ),
}
"""Glob pattern of the folders of each kind of port in `/sys/class`, then the facts in each."""

_Readings = dict[tuple[str, str | None], tuple[Port, Mapping[str, int | str]]]
"""Ports and their counters, keyed by name and PCI address: another adapter may take over a name
after a hotplug. For a counter that cannot be read, the reason takes the place of the value."""
_GONE = dict.fromkeys(PORT_COUNTERS_BY_NAME, "the port vanished during the run")
_NEW = dict.fromkeys(PORT_COUNTERS_BY_NAME, "the port appeared during the run")


class NetworkMeter:
    """Measures how much this node's port counters grow between the meter's creation and `read`."""

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._root, self._before = root, _readings(root)

    def read(self) -> tuple[Port, ...]:
        """Return this node's ports, with the growth of their counters since the meter's start."""
        return tuple(_grown(self._before, _readings(self._root)))


def read_ports(root: Path = Path("/")) -> tuple[Port, ...]:
    """Return the current state of the ports of this node's network adapters."""
    return tuple(port for port, _ in _readings(root).values() if port.pci_address is not None)


def _grown(before: _Readings, after: _Readings) -> Iterator[Port]:
    """Yield each port of either reading with counter growth and the lower of its two link rates."""
    for key in {**before, **after}:
        (old, then), (new, now) = before.get(key, (None, _NEW)), after.get(key, (None, _GONE))
        port = new or replace(before[key][0], state="vanished")
        rates = [p.rate_gbit_s for p in (old, new) if p is not None and p.rate_gbit_s is not None]
        growth, at_least, absent = {}, [], dict[str, tuple[str, ...]]()
        for name in sorted(then.keys() & now.keys()):
            grown = PORT_COUNTERS_BY_NAME[name].growth(then[name], now[name])
            if isinstance(grown, str):
                absent[grown] = (*absent.get(grown, ()), name)
            elif any(grown):
                growth[name], is_floor = grown
                at_least += [name] if is_floor else []
        yield replace(
            port,
            rate_gbit_s=min(rates, default=None),
            growth=growth,
            at_least=tuple(at_least),
            absent=absent,
        )


def _readings(root: Path) -> _Readings:
    found = [*_tcp(root)]
    for kind, (pattern, *facts) in _PORTS.items():
        for folder in sorted((root / "sys/class").glob(pattern)):
            port = _port(kind, folder, facts)
            if kind != "ethernet" or _is_counted(port, folder):
                found.append((port, _counters(kind, folder)))
    return {(port.name, port.pci_address): (port, counters) for port, counters in found}


def _port(kind: PortKind, folder: Path, own_facts: Sequence[_Fact]) -> Port:
    adapter, name = folder, folder.name
    if kind == "infiniband":
        adapter, name = folder.parents[1], f"{folder.parents[1].name} port {name}"
    device = adapter / "device"
    # A virtual interface has no PCI address.
    addresses = _PCI_ADDRESS.findall(str(device.resolve())) or [None]
    facts: dict[str, Any] = {"name": name, "kind": kind, "pci_address": addresses[-1]}
    for place, known in ((device, _DEVICE_FACTS), (folder, own_facts)):
        for fact in known:
            if match := re.match(fact.pattern, text_of(place / fact.file)):
                facts[fact.field] = fact.of(match[1])
    return Port(**facts)


def _is_counted(port: Port, folder: Path) -> bool:
    """Return True if an Ethernet interface is physical, or has traffic and is in no bridge."""
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


_LOG_BYTES = 1_000_000
"""Number of bytes to read from the start of each process's log; NCCL reports connections there."""
_RING = 4
"""NCCL's number for the ring pattern; lower numbers are tree patterns."""
_MARK = " NCCL INFO "
_THREAD = re.compile(r"\d+:\d+ \[")
_KNOWN = re.compile(
    "|".join(
        (
            r"(?P<library>[NR]CCL) version(?: :)? (?P<version>\d[\d.]*(?:\+\w[\w.]*)?)",
            r"NET/\w+ ?: Using(?P<adapters>(?: \[\d+\]\S+)+)",
            r"NET/OFI (?:Using|Initializing) (?P<plugin>aws-ofi-\S+ \S+)",
            r"NET/OFI Selected [Pp]rovider is (?P<provider>.+)",
            r"Pattern (?P<pattern>\d+), crossNic \d+, nChannels (?P<paths>\d+), (?:bw|speed) "
            r"(?P<inside>[\d.]+)/(?P<between>[\d.]+), type (?P<kinds>\w+/\w+)",
            r"(?P<channels>\d+) coll channels,(?: \d+ collnet channels,)?"
            r"(?: (?P<nvls>\d+) nvls channels,)? \d+ p2p channels",
            r"(?:\[Rank \d+\] |\w+ )*comm \S+ rank \d+ n[rR]anks (?P<ranks>\d+)(?P<rest>.*)",
        )
    )
)
_TRANSPORT = re.compile(
    r"(?P<inside>P2P/(?:direct pointer|common device|\w+))|SHM|direct shared memory"
    r"|(?P<between>(?:COLL)?NET/.+?)/\d+(?:\(\d+\))?(?P<direct>/GDRDMA)?"
)
_ADAPTER = re.compile(r"\[\d+\](\S+)")
_ADDRESS = re.compile(r":.*<\d+>$")


def log_variables(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make NCCL write its logs into a folder on the node.

    Return {} if the user has set any of these variables or the folder does not exist. CPU ranks get
    the variables too, so that tests need no GPU; gloo ignores them.
    """
    file = str(folder / "nccl").replace("%", "%%")
    wanted = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{file}.%h.%p"}
    wanted["NCCL_DEBUG_SUBSYS"] = "INIT,GRAPH,NET"
    return wanted if folder.is_dir() and wanted.keys().isdisjoint(variables) else {}


def read_logs(folder: Path, host: str) -> tuple[dict[str, str], str | None]:
    """Return the properties of the connections in a host's NCCL logs, and any problem.

    The problem is None if connections were found or NCCL wrote no log. The host's logs are deleted.
    Diskless hosts may share the folder, so logs of other hosts are ignored.
    """
    texts = []
    try:
        for path in sorted(folder.glob(f"nccl.{host.partition('.')[0]}.*")):
            with path.open("rb") as log:
                texts.append(log.read(_LOG_BYTES).decode(errors="replace"))
            path.unlink()
    except OSError as error:
        return {}, f"NCCL's log cannot be read: {error.strerror}"
    found = connections_in(texts)
    return found, None if found or not any(texts) else "gpuscale knows no line of NCCL's log"


def connections_in(logs: Iterable[str]) -> dict[str, str]:
    """Return what a node's NCCL logs say about connections, keyed by property; {} if nothing.

    If processes created several communicators, the channels, rings and trees are those of the
    largest one. Lines are grouped by thread, because communicators can be created concurrently.
    """
    said: dict[str, set[str]] = defaultdict(set)
    ways = set[str]()
    made: list[dict[str, str]] = []
    for log in logs:
        in_work: dict[str, dict[str, str]] = defaultdict(dict)
        # The last line may be cut short.
        for line in log.split("\n")[:-1]:
            head, _, message = line.partition(_MARK)
            # Most lines report a connection `via` one of a few transports.
            message, _, way = message.partition(" via ")
            if way:
                ways.add(way)
            elif known := _KNOWN.match(message):
                parts = {name: text for name, text in known.groupdict().items() if text}
                thread = "".join(_THREAD.findall(head))
                _take_adapters(parts, said)
                in_work[thread] |= _numbers(parts)
                if "Init COMPLETE" in parts.get("rest", ""):
                    made.append(in_work.pop(thread))
        made += in_work.values()
    for transport in filter(None, map(_TRANSPORT.match, ways)):
        if between := transport["between"]:
            said["transport between nodes"].add(between)
            said["GDRDMA"].add("on" if transport["direct"] else "off")
        else:
            said["transport inside nodes"].add(transport["inside"] or "SHM")
    largest = max(made, key=lambda own: ("channels" in own, int(own.get("ranks", 0))), default={})
    if len(said["GDRDMA"]) > 1:
        said["GDRDMA"] = {"partly"}
    facts = {name: clean(", ".join(sorted(values))) for name, values in said.items() if values}
    facts |= {name: text for name, text in largest.items() if name != "ranks"}
    return dict(sorted(facts.items()))


def _take_adapters(parts: Mapping[str, str], said: Mapping[str, set[str]]) -> None:
    """Add the library, network plugin and adapters from a parsed log line to the sets in `said`."""
    if "version" in parts:
        said["library"].add(f"{parts['library']} {parts['version']}")
    if "plugin" in parts:
        said["network plugin"].add(parts["plugin"])
    # Addresses are removed, since they differ between nodes.
    names = (_ADDRESS.sub("", name) for name in _ADAPTER.findall(parts.get("adapters", "")))
    said["adapters"].update(names, filter(None, [parts.get("provider")]))


def _numbers(parts: Mapping[str, str]) -> dict[str, str]:
    """Return what a parsed log line says about ranks, channels, rings or trees; {} if nothing."""
    if "ranks" in parts:
        return {"ranks": parts["ranks"]}
    if channels := {name: parts[name] for name in ("channels", "nvls") if name in parts}:
        if nvls := channels.pop("nvls", None):
            channels |= {"NVLS": "off"} if nvls == "0" else {"NVLS": "on", "NVLS channels": nvls}
        return channels
    if (pattern := int(parts.get("pattern", 0))) and pattern <= _RING:
        rates = f"{float(parts['inside']):g}/{float(parts['between']):g} GB/s"
        name = "rings" if pattern == _RING else "trees"
        return {name: f"{parts['paths']} × {rates} over {parts['kinds']}"}
    return {}
