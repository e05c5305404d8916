"""The log of NCCL or RCCL, in which the library says how it connects the ranks.

The patterns are those of the lines that NCCL 2.4 to 2.30 and RCCL 2.18 to 2.21 write with
`NCCL_DEBUG=INFO`, and that plugins for libfabric write through them. Other lines are passed over.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from gpuscale.base.printable import clean
from gpuscale.base.units import counted
from gpuscale.records import Communicator

_LOG_BYTES = 1_000_000
"""Maximum part of a process's log that is read: it begins with what connects the ranks."""
_USERS = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
_RING = 4
"""NCCL's number of the pattern of rings; lower numbers are trees."""
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
            r"(?:Channel|Ring|Coll|CollNet) \d.* via (?P<via>.+)",
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
    """Return the variables that make NCCL write its logs into a folder on the node.

    There are none if the user has set any of them. Ranks on CPUs get them too: gloo ignores them,
    and so the tests need no GPU.
    """
    if any(name in variables for name in _USERS):
        return {}
    file = str(folder / "nccl").replace("%", "%%")
    values = ("INFO", f"{file}.%h.%p", "INIT,GRAPH,NET")
    return dict(zip(_USERS, values, strict=True))


def read_logs(folder: Path) -> tuple[Communicator | None, str | None]:
    """Return what the logs in a folder say, or the reason why they say nothing; remove the logs."""
    texts = []
    try:
        for path in sorted(folder.glob("nccl.*")):
            with path.open("rb") as log:
                texts.append(log.read(_LOG_BYTES).decode(errors="replace"))
            path.unlink()
    except OSError as error:
        return None, str(error)
    found = communicator_of(texts)
    if found is None and any(texts):
        lines = sum(text.count("\n") for text in texts)
        return None, f"gpuscale knows none of the {counted(lines, 'line')} of NCCL's log"
    return found, None


def communicator_of(logs: Iterable[str]) -> Communicator | None:
    """Return what the logs of a node's processes say; None if no line is known.

    A process may have several communicators; each thread makes one at a time.
    """
    seen: dict[str, set[str]] = defaultdict(set)
    made: list[dict[str, Any]] = []
    for log in logs:
        in_work: dict[str, dict[str, Any]] = defaultdict(dict)
        # The last line may be cut short.
        for line in log.split("\n")[:-1]:
            head, _, message = line.partition(_MARK)
            if known := _KNOWN.match(message):
                said = {name: text for name, text in known.groupdict().items() if text}
                thread = "".join(_THREAD.findall(head))
                _take_connection(said, seen)
                in_work[thread] |= _numbers(said)
                if "Init COMPLETE" in said.get("rest", ""):
                    made.append(in_work.pop(thread))
        made += in_work.values()
    largest = max(made, key=lambda own: ("channels" in own, own.get("ranks", 0)), default={})
    found = Communicator(
        version=min(seen["version"], default=None),
        plugin=min(map(clean, seen["plugin"]), default=None),
        adapters=tuple(sorted(map(clean, seen["adapters"]))),
        transports=tuple(sorted(map(clean, seen["transports"]))),
        gpu_direct=_share(seen["direct"]),
        **largest,
    )
    return None if found == Communicator(ranks=found.ranks) else found


def _share(direct: set[str]) -> Literal["on", "partly", "off"] | None:
    if not direct:
        return None
    return "partly" if len(direct) > 1 else "on" if "on" in direct else "off"


def _take_connection(said: Mapping[str, str], seen: Mapping[str, set[str]]) -> None:
    """Add what a line says about the library, its adapters and its connections."""
    if "version" in said:
        seen["version"].add(f"{said['library']} {said['version']}")
    if "plugin" in said:
        seen["plugin"].add(said["plugin"])
    # Without addresses, which differ from node to node.
    names = (_ADDRESS.sub("", name) for name in _ADAPTER.findall(said.get("adapters", "")))
    seen["adapters"].update(names, filter(None, [said.get("provider")]))
    if transport := _TRANSPORT.match(said.get("via", "")):
        seen["transports"].add(transport["inside"] or transport["between"] or "SHM")
        if transport["between"]:
            seen["direct"].add("on" if transport["direct"] else "off")


def _numbers(said: Mapping[str, str]) -> dict[str, Any]:
    """Return what a line says about the communicator that its thread makes."""
    if "ranks" in said:
        return {"ranks": int(said["ranks"])}
    if "channels" in said:
        nvls = int(said["nvls"]) if "nvls" in said else None
        return {"channels": int(said["channels"]), "nvls_channels": nvls}
    if (pattern := int(said.get("pattern", 0))) and pattern <= _RING:
        rates = f"{float(said['inside']):g}/{float(said['between']):g} GB/s"
        name = "rings" if pattern == _RING else "trees"
        return {name: f"{said['paths']} × {rates} over {said['kinds']}"}
    return {}
