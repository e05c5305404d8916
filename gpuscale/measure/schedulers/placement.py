"""Placement of ranks: their hosts, the programs that start them, and the rendezvous."""

import fcntl
import math
import os
import random
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, Protocol

import msgspec
from msgspec.structs import replace

from gpuscale.base.host import SITE, is_gpu, is_map
from gpuscale.records import Environment, RunRequest

HOST_PATTERN = "GPUSCALE_RENDEZVOUS_HOST"
"""Environment variable with a pattern for the name under which ranks reach the first host, such as
`{host}i` on JUWELS Booster, whose nodes have a second name for InfiniBand."""
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_RENDEZVOUS_PORTS = range(12_000, 32_000)
"""Ports on which rank 0 may wait for the other ranks, below the range of ephemeral ports."""
_SIOCGIFADDR = 0x8915
_ANY_PORT = 9


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The assignment of ranks to hosts in contiguous blocks: the first ranks on the first host."""

    hosts: tuple[str, ...]
    """Host names as used by the scheduler, in the scheduler's order."""
    ranks: int
    ranks_per_host: int
    """Ranks per host; the last hosts may have fewer."""
    cores_per_rank: int | None = None
    """Number of cores per rank; None if a rank may use all cores of its node."""
    is_bound_by_site: bool = False
    """True to keep the site's default binding of ranks to CPUs, False to bind no ranks."""
    oversubscribed: bool = False
    """True if the ranks need more cores than the nodes have, so that ranks share cores."""

    def ranks_on(self, position: int) -> int:
        """Return the number of ranks on the host at this index of `hosts`."""
        return max(0, min(self.ranks_per_host, self.ranks - self.ranks_per_host * position))

    def host_of(self, rank: int) -> str:
        return self.hosts[rank // self.ranks_per_host]


class ProcessStarter(Protocol):
    """Interface to a program, such as srun, that starts processes on the hosts of a job."""

    name: ClassVar[str]
    """Name of the program in gpuscale's options and results."""
    place_variables: ClassVar[Mapping[str, str]] = {}
    """Environment variables with rank, local rank and world size, keyed by torchrun's names."""
    node_variable: ClassVar[str] = ""
    """Environment variable in which processes find their node's name; empty if none is set."""
    limits_cores: ClassVar[bool] = False
    """True if the program limits a job step to the cores that its ranks requested."""
    passes_input: ClassVar[bool] = True
    """True if the standard input of the program reaches all processes that it starts."""

    def hosts(self) -> tuple[str, ...]:
        """Return the job's hosts in rank order; raise UsageError if job or program is missing."""

    def arguments(self, program: Sequence[str], placement: Placement) -> list[str]:
        """Return the command line that starts `program` once for each rank of the placement."""

    def reaches(self, variable: str) -> bool:
        """Return True if the started processes should get this environment variable."""
        return True


class ThisNode(ProcessStarter):
    """Starts a single process on this node, without any scheduler."""

    name = "local"

    def hosts(self) -> tuple[str, ...]:
        return (socket.gethostname(),)

    def arguments(self, program: Sequence[str], placement: Placement) -> list[str]:
        return [*program]


def place(ranks: int, hosts: Sequence[str], *, slots: int, first: int) -> Placement:
    """Place the ranks evenly on the smallest number of hosts that can hold them.

    A host takes up to `slots` ranks, or more if all hosts together have too few slots. Hosts are
    chosen cyclically, starting at index `first` (modulo the number of hosts), so that successive
    runs use different hosts and single-GPU runs are not all measured on the same host.
    """
    needed = min(len(hosts), math.ceil(ranks / slots))
    chosen = {(first + offset) % len(hosts) for offset in range(needed)}
    return Placement(
        hosts=tuple(host for position, host in enumerate(hosts) if position in chosen),
        ranks=ranks,
        ranks_per_host=math.ceil(ranks / needed),
    )


def place_run(request: RunRequest, environment: Environment, hosts: Sequence[str]) -> Placement:
    """Place a run's processes; cores are unlimited if `cpu_bind` is a map or `launch` is `once`."""
    cores, gpus = environment.cores_per_node, environment.gpus_per_node
    gpus_per_process = math.ceil(request.gpus / request.processes)
    cores_per_rank = (request.configuration.threads_per_rank or 1) * gpus_per_process
    slots = max(1, cores // cores_per_rank)
    if is_gpu(request.configuration.device):
        cores_per_rank = max(1, cores // gpus) * gpus_per_process
        slots = max(1, gpus // gpus_per_process)
    first = 0 if request.launch == "once" else request.index - 1
    placement = place(request.processes, hosts, slots=slots, first=first)
    if request.launch == "once" or is_map(request.cpu_bind):
        # Processes of a command share all cores of a node, and a CPU map selects among them.
        return placement
    oversubscribed = placement.ranks_per_host * cores_per_rank > cores
    return replace(
        placement,
        is_bound_by_site=request.cpu_bind == SITE,
        cores_per_rank=1 if oversubscribed else cores_per_rank,
        oversubscribed=oversubscribed,
    )


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
    """Return `GLOO_SOCKET_IFNAME` with its value if gloo needs it for `hosts` and `given` lacks it.

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


def address_towards(host: str) -> str:
    """Return this host's address on the route to `host`, or this host's name if no route exists."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        # Connecting a UDP socket sends nothing, but makes the kernel select the route.
        probe.connect((host, _ANY_PORT))
        return str(probe.getsockname()[0])
    return socket.gethostname()


def _interface_towards(host: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        address = socket.inet_aton(address_towards(host))
        for _, name in socket.if_nameindex():
            # An interface without an address raises an error.
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                if fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24] == address:
                    return name
    return None
