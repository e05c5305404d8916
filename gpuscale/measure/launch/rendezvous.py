"""How the ranks of a run find one another: ports, hosts and network interfaces."""

import fcntl
import os
import random
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress

HOST_PATTERN = "GPUSCALE_RENDEZVOUS_HOST"
"""Environment variable with a pattern for the name under which ranks reach the first host, such as
`{host}i` on JUWELS Booster, whose nodes have a second name for InfiniBand."""
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_RENDEZVOUS_PORTS = range(12_000, 32_000)
"""Ports on which rank 0 may wait for the other ranks, below the range of ephemeral ports."""
_SIOCGIFADDR = 0x8915
_ANY_PORT = 9


def free_port() -> int:
    """Return a random free port; a fixed port might still be in use by the previous run."""
    while True:
        port = random.choice(_RENDEZVOUS_PORTS)
        with suppress(OSError), socket.socket() as tried:
            tried.bind(("", port))
            return port


def rank_variables(ranks: int, host: str) -> dict[str, str]:
    """Return the environment variables for torch's rendezvous, with rank 0 on the given host."""
    pattern = os.environ.get(HOST_PATTERN, "{host}")
    return {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": pattern.replace("{host}", host),
        "MASTER_PORT": str(free_port()),
    }


def gloo_variables(given: Mapping[str, str], hosts: Sequence[str]) -> dict[str, str]:
    """Return a value for `GLOO_SOCKET_IFNAME` if gloo needs it to reach other hosts; else {}.

    By default gloo listens on the address to which the host's own name resolves. On many machines
    this is 127.0.1.1 (Debian writes it into /etc/hosts), which other hosts cannot reach.
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


def address_towards(host: str) -> str:
    """Return this host's address on the route to another host; OSError if there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Nothing is sent: this only asks the system for its route.
        probe.connect((host, _ANY_PORT))
        address: str = probe.getsockname()[0]
        return address


def _interface_towards(host: str) -> str | None:
    """The network interface through which this host reaches another host; None if it cannot."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        address = socket.inet_aton(address_towards(host))
        for _, name in socket.if_nameindex():
            # An interface without an address raises an error.
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                if fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24] == address:
                    return name
    return None
