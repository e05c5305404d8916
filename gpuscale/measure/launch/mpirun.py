"""Start processes with Open MPI's `mpirun`, and send orders to them through a socket."""

import os
import secrets
import shutil
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, ClassVar

import msgspec

from gpuscale.base.errors import UsageError
from gpuscale.base.host import JOB_VARIABLES
from gpuscale.measure.evidence.software import VARIABLE_PREFIXES
from gpuscale.measure.run_directory import RecordFile
from gpuscale.measure.schedulers import nodes_of_job
from gpuscale.measure.schedulers.placement import (
    HOST_PATTERN,
    Placement,
    ProcessStarter,
    address_towards,
)

_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_")
_NEEDED = {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", HOST_PATTERN}
_SETTINGS = ("OMPI_MCA_", "OMPI_ALLOW_", "PRTE_MCA_", "PMIX_MCA_")

_FILE = "orders-from.json"
_GREETING_S = 10.0
_ACCEPTED = b"\n"


class OpenMpi(ProcessStarter):
    """Starts processes with `mpirun` on the nodes of the job in which this process runs."""

    name = "mpirun"
    place_variables: ClassVar[Mapping[str, str]] = {
        "RANK": "OMPI_COMM_WORLD_RANK",
        "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
        "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    }
    passes_input = False

    def hosts(self) -> tuple[str, ...]:
        """Return the job's hosts; raise UsageError if they are unknown or `mpirun` is missing."""
        if not (found := nodes_of_job(os.environ)) or shutil.which("mpirun") is None:
            raise UsageError(
                "--launcher mpirun: no hosts of a job (LSB_MCPU_HOSTS, PBS_NODEFILE, PE_HOSTFILE, "
                "SLURM_JOB_NODELIST) or no 'mpirun' here; load an Open MPI module, and start it "
                "inside a job, or set PBS_NODEFILE to a file with a host on each line"
            )
        return found

    def arguments(self, program: Sequence[str], placement: Placement) -> list[str]:
        """Return the `mpirun` command line that starts `program` for each rank, host by host.

        Ranks are unbound unless the site binds them: binding by rank count would inflate speedups.
        """
        # Open MPI's daemons start ranks with a login shell's variables and those given by `-x`.
        settings = {name for name in os.environ if name.startswith(VARIABLE_PREFIXES)}
        exported = (settings - JOB_VARIABLES) | (_NEEDED & set(os.environ))
        # The environment of mpirun has this variable even if that of this process does not.
        exported.add("PYTHONPATH")
        places = enumerate(placement.hosts)
        slots = (f"{host}:{placement.ranks_on(place)}" for place, host in places)
        return [
            # In a Slurm job, mpirun starts its daemons by srun, alongside steps of other runs.
            *("env", "SLURM_OVERLAP=1"),
            "mpirun",
            *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
            *("-np", str(placement.ranks)),
            *("--host", ",".join(slots)),
            *("--map-by", "slot"),
            *(() if placement.is_bound_by_site else ("--bind-to", "none")),
            *(word for name in sorted(exported) for word in ("-x", name)),
            *program,
        ]

    def reaches(self, variable: str) -> bool:
        """Return False if ranks must not get this variable, set by LSF or an outer MPI launcher."""
        # LSF sets this variable if a job requests cores; mpirun would place ranks by it.
        if variable == "LSB_AFFINITY_HOSTFILE":
            return False
        return not variable.startswith(_PREFIXES) or variable.startswith(_SETTINGS)


class _ServerFile(msgspec.Struct, frozen=True):
    addresses: tuple[str, ...]
    """The address at which each keeper reaches the launcher, in the order of the keepers."""
    port: int
    key: str
    """Secret that keepers send when they connect, so that no other process gets orders."""


class OrderSocket:
    """Server socket that sends orders to keepers, the processes that fork ranks.

    Orders do not go through standard input: `mpirun --stdin all` reaches no process on the
    host where mpirun runs (seen with Open MPI 4.1.4 and 5.0.11), which is often the job's first.
    """

    def __init__(self, folder: Path, hosts: Sequence[str]) -> None:
        """Listen for connections from keepers on `hosts`; write addresses and a key to `folder`."""
        self._server = socket.create_server(("", 0), backlog=len(hosts))
        self._key = secrets.token_hex(16).encode()
        # mpirun itself reports a host that cannot be reached.
        addresses = tuple(map(address_towards, hosts))
        server = _ServerFile(addresses, self._server.getsockname()[1], self._key.decode())
        RecordFile(folder / _FILE, _ServerFile).write(server)

    def fileno(self) -> int:
        """Return the socket's descriptor, which becomes readable when a keeper connects."""
        return self._server.fileno()

    def accept(self) -> BinaryIO | None:
        """Accept a connection; return a stream for orders, or None if the peer is not a keeper."""
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


def connect(folder: Path, number: int) -> int | None:
    """Connect keeper `number` to the launcher; return a descriptor for orders, None to use stdin.

    Raise OSError with the reason if this node cannot reach the launcher or the folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} here")
    file = RecordFile(folder / _FILE, _ServerFile)
    if not file.path.exists():
        return None
    server = file.read()
    try:
        connection = socket.create_connection((server.addresses[number], server.port), _GREETING_S)
        connection.sendall(server.key.encode())
        if connection.recv(1) != _ACCEPTED:
            raise ConnectionRefusedError("refused")
    except OSError as error:
        raise OSError(f"cannot connect to where gpuscale runs ({error})") from error
    connection.settimeout(None)
    return connection.detach()
