"""The placement of a run's processes on the hosts of a job, and the programs that start them."""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import msgspec

from gpuscale.base.errors import UsageError

EXCLUDED_HOSTS = "GPUSCALE_EXCLUDED_HOSTS"
"""Environment variable with a comma-separated list of the hosts on which no rank may be started."""


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
    """True if the program binds ranks to CPUs as it does at this site, False if it binds none."""
    oversubscribed: bool = False
    """True if the ranks need more cores than the nodes have, so that ranks share cores."""

    def ranks_on(self, position: int) -> int:
        """Return the number of ranks on the host at a position in `hosts`."""
        return max(0, min(self.ranks_per_host, self.ranks - self.ranks_per_host * position))


class ProcessStarter(Protocol):
    """A program that starts a command several times on the hosts of a job."""

    name: ClassVar[str]
    """Name of the program in gpuscale's options and results."""
    place_variables: ClassVar[Mapping[str, str]]
    """The program's variables for rank, local rank and world size, keyed by torchrun's names."""
    node_variable: ClassVar[str]
    """Environment variable in which processes find their node's name; empty if none is set."""
    limits_cores: ClassVar[bool]
    """True if the program limits a job step to the cores that its ranks requested."""
    passes_input: ClassVar[bool]
    """True if the standard input of the program reaches all processes that it starts."""

    def hosts(self) -> tuple[str, ...]:
        """Return the hosts of the job, in the order in which they receive ranks.

        Raises UsageError outside a job or if the program is missing.
        """

    def arguments(self, program: Sequence[str], placement: Placement) -> list[str]:
        """Return the command line that starts `program` once for each rank of the placement."""

    def reaches(self, variable: str) -> bool:
        """Return True if the started processes should inherit this environment variable."""


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


def without_excluded(hosts: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts that `EXCLUDED_HOSTS` does not list; UsageError if it lists all hosts."""
    excluded = environment.get(EXCLUDED_HOSTS, "").split(",")
    left = tuple(host for host in hosts if host not in excluded)
    if not left:
        named = ", ".join(hosts)
        raise UsageError(f"{EXCLUDED_HOSTS} names all hosts of this job ({named}); unset it")
    return left
