"""How the ranks of a run find one another: ports, hosts and network interfaces."""

import fcntl
import os
import random
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress

HOST_PATTERN = "GPUSCALE_RENDEZVOUS_HOST"
"""How the ranks reach the first host, with `{host}` for its name: `{host}i` on JUWELS Booster,
whose nodes have a second name for InfiniBand."""
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_RENDEZVOUS_PORTS = range(12_000, 32_000)
"""Ports on which the first rank may wait for the others, below the range of ephemeral ports."""
_SIOCGIFADDR = 0x8915
_ANY_PORT = 9


def free_port() -> int:
    """A random port that is free on this host; the last run's port may still be in use."""
    while True:
        port = random.choice(_RENDEZVOUS_PORTS)
        with suppress(OSError), socket.socket() as tried:
            tried.bind(("", port))
            return port


def rank_variables(ranks: int, host: str) -> dict[str, str]:
    """The variables by which ranks find one another, if the first of them is on the host."""
    pattern = os.environ.get(HOST_PATTERN, "{host}")
    return {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": pattern.replace("{host}", host),
        "MASTER_PORT": str(free_port()),
    }


def gloo_variables(given: Mapping[str, str], hosts: Sequence[str]) -> dict[str, str]:
    """`GLOO_SOCKET_IFNAME` if gloo needs it to reach the other hosts; empty otherwise.

    By itself gloo listens where the host's own name leads. On many machines that is 127.0.1.1
    (Debian writes it into /etc/hosts), which is of no use to the other hosts.
    """
    me = socket.gethostname()
    if _GLOO_INTERFACE in given or len(hosts) < 2:
        return {}
    with suppress(OSError):
        if not socket.gethostbyname(me).startswith("127."):
            return {}
    # A host has names with and without its domain.
    others = [host for host in hosts if host.split(".", 1)[0] != me.split(".", 1)[0]]
    found = next(filter(None, map(_interface_towards, others)), None)
    return {} if found is None else {_GLOO_INTERFACE: found}


def _interface_towards(host: str) -> str | None:
    """The interface by which this host sends to another; None if it cannot reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        # Nothing is sent: this only asks the system for its route.
        probe.connect((host, _ANY_PORT))
        address = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            # An interface without an address raises an error.
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                if fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24] == address:
                    return name
    return None
