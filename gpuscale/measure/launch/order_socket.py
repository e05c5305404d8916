"""Connections on which keepers get their orders if no standard input reaches them.

`mpirun --stdin all` reaches no process on mpirun's own host (seen with Open MPI 4.1.4 and 5.0.11),
and under LSF and PBS that host is the first of the job.
"""

import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from gpuscale.measure.launch.rendezvous import address_towards
from gpuscale.measure.run_directory import write_atomically

_FILE = "orders-from.json"
_GREETING_S = 10.0
_TAKEN = b"\n"


class _Door(msgspec.Struct, frozen=True):
    addresses: tuple[str, ...]
    """The launcher's address as seen from the host of each keeper."""
    port: int
    key: str
    """What keepers show, so that no stranger reads the orders."""


class OrderSocket:
    """The launcher's side: a port to which each keeper connects.

    Args:
        folder: Folder of the keepers, which only this user can read.
        hosts: The host of each keeper.
    """

    def __init__(self, folder: Path, hosts: Sequence[str]) -> None:
        self._server = socket.create_server(("", 0), backlog=len(hosts))
        self._key = secrets.token_hex(16).encode()
        addresses = tuple(map(_own_address, hosts))
        door = _Door(addresses, self._server.getsockname()[1], self._key.decode())
        write_atomically(folder / _FILE, msgspec.json.encode(door).decode())

    def fileno(self) -> int:
        """Return the descriptor that is readable once a keeper has connected."""
        return self._server.fileno()

    def take(self) -> BinaryIO | None:
        """Return a new keeper's stream for orders; None if a stranger has connected."""
        connection, _ = self._server.accept()
        with suppress(OSError), connection:
            connection.settimeout(_GREETING_S)
            shown = connection.recv(len(self._key), socket.MSG_WAITALL)
            if secrets.compare_digest(shown, self._key):
                connection.sendall(_TAKEN)
                connection.settimeout(None)
                return connection.makefile("wb")
        return None

    def close(self) -> None:
        """Let nobody connect any more."""
        self._server.close()


def _own_address(host: str) -> str:
    try:
        return address_towards(host)
    except OSError:
        # mpirun itself reports a host that cannot be reached.
        return socket.gethostname()


def connect(folder: Path, number: int) -> int | None:
    """Return the descriptor from which a keeper reads its orders; None if it is standard input.

    Raises OSError if the launcher cannot be reached.
    """
    if not (folder / _FILE).exists():
        return None
    door = msgspec.json.decode((folder / _FILE).read_bytes(), type=_Door)
    connection = socket.create_connection((door.addresses[number], door.port), _GREETING_S)
    connection.sendall(door.key.encode())
    if connection.recv(1) != _TAKEN:
        raise ConnectionRefusedError
    connection.settimeout(None)
    return connection.detach()
