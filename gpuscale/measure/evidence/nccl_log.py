"""Read the log of NCCL or RCCL, which shows how the library connects the ranks.

The patterns match the lines that NCCL 2.4 to 2.30 and RCCL 2.18 to 2.21 write with
`NCCL_DEBUG=INFO`, and that plugins for libfabric write through them. Other lines are ignored.
"""

import os
import re
import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuscale.base.printable import clean

_LOG_BYTES = 1_000_000
"""Maximum part of a process's log that is read; it begins with the search for paths."""
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

    Return none if the user has set any of them, or if the folder does not exist. Ranks on CPUs get
    them too: gloo ignores them, so the tests need no GPU.
    """
    if any(name in variables for name in _USERS) or not folder.is_dir():
        return {}
    file = str(folder / "nccl").replace("%", "%%")
    values = ("INFO", f"{file}.%h.%p", "INIT,GRAPH,NET")
    return dict(zip(_USERS, values, strict=True))


def own_log_bytes() -> int | None:
    """Return the size of the log that NCCL writes in this process; None without a log."""
    host = socket.gethostname().partition(".")[0]
    signs = {"%%": "%", "%h": host, "%p": str(os.getpid())}
    pattern = os.environ.get("NCCL_DEBUG_FILE", "")
    file = Path(re.sub("%[%hp]", lambda sign: signs[sign[0]], pattern))
    return file.stat().st_size if file.is_file() else None


def read_logs(folder: Path, host: str) -> tuple[dict[str, str], str | None]:
    """Return the facts in a host's logs, and the reason if there are none; delete the logs.

    Nodes may share the folder, as nodes without disks do.
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
    """Return the facts in the logs of a node's processes, in NCCL's terms; empty if none is known.

    If there are several communicators, the numbers are those of the one with the most ranks. A
    process may create several at a time, each in a thread.
    """
    said: dict[str, set[str]] = defaultdict(set)
    ways = set[str]()
    made: list[dict[str, str]] = []
    for log in logs:
        in_work: dict[str, dict[str, str]] = defaultdict(dict)
        # The last line may be cut short.
        for line in log.split("\n")[:-1]:
            head, _, message = line.partition(_MARK)
            # Connections are most of the lines, and few of their ends differ.
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
    """Add the library, plugin and adapters that a line names to `said`."""
    if "version" in parts:
        said["library"].add(f"{parts['library']} {parts['version']}")
    if "plugin" in parts:
        said["network plugin"].add(parts["plugin"])
    # Without addresses, which differ from node to node.
    names = (_ADDRESS.sub("", name) for name in _ADAPTER.findall(parts.get("adapters", "")))
    said["adapters"].update(names, filter(None, [parts.get("provider")]))


def _numbers(parts: Mapping[str, str]) -> dict[str, str]:
    """Return the numbers in a line about the communicator that its thread creates."""
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
