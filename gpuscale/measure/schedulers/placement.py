"""The places of a run's processes on the hosts of a job, and the programs that start them."""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import msgspec

from gpuscale.base.errors import UsageError

EXCLUDED_HOSTS = "GPUSCALE_EXCLUDED_HOSTS"
"""Environment variable with hosts of a job on which no rank is started, separated by commas."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of processes, which lie there in blocks: the first host has the first ranks."""

    hosts: tuple[str, ...]
    """Host names as the scheduler has them, in its order."""
    ranks: int
    ranks_per_host: int
    """Ranks per host; the last hosts may have fewer."""
    cores_per_rank: int | None = None
    """None if a rank may use all cores of its node."""
    oversubscribed: bool = False
    """Ranks may share cores: there are more of them than the nodes have."""

    def ranks_on(self, position: int) -> int:
        """The number of ranks on the host at that position."""
        return max(0, min(self.ranks_per_host, self.ranks - self.ranks_per_host * position))


class ProcessStarter(Protocol):
    """One program that starts a command several times on the hosts of a job."""

    name: ClassVar[str]
    """Its name on the command line and in results."""
    place_variables: ClassVar[Mapping[str, str]]
    """Its variables for the place of a process, by torch.distributed's names for them."""
    node_variable: ClassVar[str]
    """Its variable for the name of a process's node; empty if it has none."""
    limits_cores: ClassVar[bool]
    """True if it gives a step no more cores than its ranks asked for."""

    def hosts(self) -> tuple[str, ...]:
        """The hosts of the job, in the order in which ranks are laid on them.

        Raises a UsageError without a job, or if its program is missing.
        """

    def arguments(self, program: Sequence[str], placement: Placement) -> list[str]:
        """The command line that starts `program` once for each rank of the placement."""

    def reaches(self, variable: str) -> bool:
        """Return True if that command is to have a variable of this process, too."""


def place(ranks: int, hosts: Sequence[str], *, slots: int, first: int) -> Placement:
    """The smallest number of hosts that hold the ranks, evenly filled.

    A host has room for as many ranks as it has slots; if all together have too few, each takes
    more.
    Hosts are counted round from the `first`: successive runs take different ones in turn, as they
    do with devices, so that T(1) is not always that of the first node.
    """
    needed = min(len(hosts), math.ceil(ranks / slots))
    chosen = {(first + offset) % len(hosts) for offset in range(needed)}
    return Placement(
        hosts=tuple(host for position, host in enumerate(hosts) if position in chosen),
        ranks=ranks,
        ranks_per_host=math.ceil(ranks / needed),
    )


def without_excluded(hosts: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The hosts of a job without those that a night leaves out when it tries again."""
    excluded = environment.get(EXCLUDED_HOSTS, "").split(",")
    left = tuple(host for host in hosts if host not in excluded)
    if not left:
        named = ", ".join(hosts)
        raise UsageError(f"{EXCLUDED_HOSTS} names all hosts of this job ({named}); unset it")
    return left
