"""The placement of a run's processes on the hosts of a job, and the programs that start them."""

import math
import socket
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import msgspec
from msgspec.structs import replace

from gpuscale.base.devices import SITE, is_gpu, is_map
from gpuscale.records import Environment, RunRequest


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The assignment of ranks to hosts, in blocks: the first host has the first ranks."""

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
        """Return the number of ranks on the host at a position in `hosts`."""
        return max(0, min(self.ranks_per_host, self.ranks - self.ranks_per_host * position))

    def host_of(self, rank: int) -> str:
        """Return the host of a rank."""
        return self.hosts[rank // self.ranks_per_host]


class ProcessStarter(Protocol):
    """Interface to a program that starts the ranks or keepers on the hosts of a job."""

    name: ClassVar[str]
    """Name of the program in gpuscale's options and results."""
    place_variables: ClassVar[Mapping[str, str]]
    """Environment variables with rank, local rank and world size, keyed by torchrun's names."""
    node_variable: ClassVar[str]
    """Environment variable in which processes find their node's name; empty if none is set."""
    limits_cores: ClassVar[bool]
    """True if the program limits a job step to the cores that its ranks requested."""
    passes_input: ClassVar[bool]
    """True if the standard input of the program reaches all processes that it starts."""

    def hosts(self) -> tuple[str, ...]:
        """Return the hosts of the job, in the order in which they receive ranks.

        Raise a UsageError outside a job or if the program is missing.
        """

    def arguments(self, program: Sequence[str], placement: Placement) -> list[str]:
        """Return the command line that starts `program` once for each rank of the placement."""

    def reaches(self, variable: str) -> bool:
        """Return True if the started processes should inherit this environment variable."""


class ThisNode(ProcessStarter):
    """Starts a single process on this node, without any scheduler."""

    name = "local"
    place_variables: ClassVar[Mapping[str, str]] = {}
    node_variable = ""
    limits_cores = False
    passes_input = True

    def hosts(self) -> tuple[str, ...]:
        """Return the name of this host."""
        return (socket.gethostname(),)

    def arguments(self, program: Sequence[str], placement: Placement) -> list[str]:
        """Return the command line of the program itself, as no starter is needed."""
        return [*program]

    def reaches(self, variable: str) -> bool:
        """Return True: the process inherits every variable."""
        return True


def place(ranks: int, hosts: Sequence[str], *, slots: int, first: int) -> Placement:
    """Place the ranks evenly on the smallest number of hosts that can hold them.

    A host takes one rank per slot, or more if all hosts together have too few slots. Hosts are
    chosen cyclically, starting at index `first` (modulo the number of hosts), so that successive
    runs use different hosts and T(1) is not always measured on the same host.
    """
    needed = min(len(hosts), math.ceil(ranks / slots))
    chosen = {(first + offset) % len(hosts) for offset in range(needed)}
    return Placement(
        hosts=tuple(host for position, host in enumerate(hosts) if position in chosen),
        ranks=ranks,
        ranks_per_host=math.ceil(ranks / needed),
    )


def place_run(request: RunRequest, environment: Environment, hosts: Sequence[str]) -> Placement:
    """Return the placement of a run's processes, each with a share of its node's cores."""
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
