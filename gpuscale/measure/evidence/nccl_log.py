"""Read the log of NCCL or RCCL, which shows how the library connects the ranks.

The patterns match the lines that NCCL 2.4 to 2.30 and RCCL 2.18 to 2.21 write with
`NCCL_DEBUG=INFO`, and lines of libfabric's plugins in the same logs. Other lines are ignored.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuscale.base.text import clean

_LOG_BYTES = 1_000_000
"""Bytes read from the start of each process's log, which includes NCCL's search for paths."""
_USERS = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
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

    Return {} if the user has set any of these variables or the folder does not exist. Ranks on CPUs
    get the variables too, which gloo ignores, so that tests need no GPU.
    """
    if any(name in variables for name in _USERS) or not folder.is_dir():
        return {}
    file = str(folder / "nccl").replace("%", "%%")
    values = ("INFO", f"{file}.%h.%p", "INIT,GRAPH,NET")
    return dict(zip(_USERS, values, strict=True))


def read_logs(folder: Path, host: str) -> tuple[dict[str, str], str | None]:
    """Read and delete a host's NCCL logs; return the properties of connections, and a problem.

    The problem is the reason why no property was found; None if some were found or there are no
    logs. Other hosts may write to the same folder, for example if hosts have no disks.
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
    """Return the properties of NCCL's connections in a node's logs, by name; {} if there are none.

    Channels, rings and trees are those of the largest communicator; a process may create several
    communicators at a time, in separate threads.
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
    """Return the ranks, channels, rings or trees that a parsed log line reports; {} if none."""
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
