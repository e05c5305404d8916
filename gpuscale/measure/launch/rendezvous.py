"""Rendezvous: how the ranks of a run find each other, and how keepers find their launcher."""

import fcntl
import os
import random
import secrets
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from gpuscale.measure.run_directory import write_atomically

HOST_PATTERN = "GPUSCALE_RENDEZVOUS_HOST"
"""Environment variable with a pattern for the name under which ranks reach the first host, such as
`{host}i` on JUWELS Booster, whose nodes have a second name for InfiniBand."""
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_RENDEZVOUS_PORTS = range(12_000, 32_000)
"""Ports on which rank 0 may wait for the other ranks, below the range of ephemeral ports."""
_SIOCGIFADDR = 0x8915
_ANY_PORT = 9
_FILE = "orders-from.json"
_GREETING_S = 10.0
_ACCEPTED = b"\n"


def _free_port() -> int:
    """Return a random free port; a fixed port might still be in use by the previous run."""
    while True:
        port = random.choice(_RENDEZVOUS_PORTS)
        with suppress(OSError), socket.socket() as tried:
            tried.bind(("", port))
            return port


def rank_variables(ranks: int, host: str | None = None) -> dict[str, str]:
    """Return the environment variables for torch's rendezvous that are the same for all ranks.

    `host` is the host of rank 0; None if all ranks are on this host.
    """
    variables = {"WORLD_SIZE": str(ranks), "MASTER_PORT": str(_free_port())}
    if host is None:
        return {**variables, "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost"}
    pattern = os.environ.get(HOST_PATTERN, "{host}")
    return {**variables, "MASTER_ADDR": pattern.replace("{host}", host)}


def gloo_variables(given: Mapping[str, str], hosts: Sequence[str]) -> dict[str, str]:
    """Return a setting of `GLOO_SOCKET_IFNAME` if gloo needs one to reach other hosts; else {}.

    By default gloo listens on the address to which the host's own name resolves. On many machines
    this is 127.0.1.1 (Debian writes it into /etc/hosts), which other hosts cannot reach.
    """
    me = socket.gethostname()
    if _GLOO_INTERFACE in given or len(hosts) < 2:
        return {}
    with suppress(OSError):
        if not socket.gethostbyname(me).startswith("127."):
            return {}
    # The name of a host may or may not include the domain.
    others = [host for host in hosts if host.split(".", 1)[0] != me.split(".", 1)[0]]
    found = next(filter(None, map(_interface_towards, others)), None)
    return {} if found is None else {_GLOO_INTERFACE: found}


def _address_towards(host: str) -> str:
    """Return this host's address on the route to another host; raise OSError without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Connecting a UDP socket sends nothing, but makes the kernel select the route.
        probe.connect((host, _ANY_PORT))
        address: str = probe.getsockname()[0]
        return address


def _interface_towards(host: str) -> str | None:
    """Return the interface through which this host reaches another host; None if unknown."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        address = socket.inet_aton(_address_towards(host))
        for _, name in socket.if_nameindex():
            # An interface without an address raises an error.
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                if fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24] == address:
                    return name
    return None


class _ServerFile(msgspec.Struct, frozen=True):
    addresses: tuple[str, ...]
    """The address at which each keeper reaches the launcher, in the order of the keepers."""
    port: int
    key: str
    """Secret that keepers send when they connect, so that no other process gets orders."""


class OrderSocket:
    """Server socket to which keepers connect for orders if standard input does not reach them.

    `mpirun --stdin all` reaches no process on mpirun's own host (seen with Open MPI 4.1.4 and
    5.0.11), and under LSF and PBS that host is the first of the job.

    Args:
        folder: Folder of the keepers, which only this user can read.
        hosts: The host of each keeper.
    """

    def __init__(self, folder: Path, hosts: Sequence[str]) -> None:
        self._server = socket.create_server(("", 0), backlog=len(hosts))
        self._key = secrets.token_hex(16).encode()
        addresses = tuple(map(_own_address, hosts))
        server = _ServerFile(addresses, self._server.getsockname()[1], self._key.decode())
        write_atomically(folder / _FILE, msgspec.json.encode(server).decode())

    def fileno(self) -> int:
        """Return the descriptor that is readable once a keeper has connected."""
        return self._server.fileno()

    def accept(self) -> BinaryIO | None:
        """Accept a connection; return a keeper's stream for orders, None for other processes."""
        connection, _ = self._server.accept()
        with suppress(OSError), connection:
            connection.settimeout(_GREETING_S)
            key = connection.recv(len(self._key), socket.MSG_WAITALL)
            if secrets.compare_digest(key, self._key):
                connection.sendall(_ACCEPTED)
                connection.settimeout(None)
                return connection.makefile("wb")
        return None

    def close(self) -> None:
        """Stop accepting connections."""
        self._server.close()


def _own_address(host: str) -> str:
    try:
        return _address_towards(host)
    except OSError:
        # mpirun itself reports a host that cannot be reached.
        return socket.gethostname()


def connect(folder: Path, number: int) -> int | None:
    """Return the descriptor from which a keeper reads its orders; None if it is standard input.

    Raise OSError with the reason if this node cannot reach the launcher or the folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} here")
    if not (folder / _FILE).exists():
        return None
    server = msgspec.json.decode((folder / _FILE).read_bytes(), type=_ServerFile)
    try:
        connection = socket.create_connection((server.addresses[number], server.port), _GREETING_S)
        connection.sendall(server.key.encode())
        is_accepted = connection.recv(1) == _ACCEPTED
    except OSError as error:
        raise OSError(f"cannot connect to where gpuscale runs ({error})") from error
    if not is_accepted:
        raise ConnectionRefusedError("gpuscale refuses this connection")
    connection.settimeout(None)
    return connection.detach()
