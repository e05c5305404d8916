"""Which hosts of a job a run goes to, and how many ranks each of them gets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuscale.errors import UsageError

EXCLUDED_HOSTS = "GPUSCALE_EXCLUDED_HOSTS"
"""The variable that names hosts of a job that no rank is to be started on, between commas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the ranks of one run are started, in blocks: the first host has the first ranks."""

    hosts: tuple[str, ...]
    """By the scheduler's names and in its order."""
    ranks: int
    ranks_per_host: int
    """Of every host but the last ones, which may have fewer."""

    def ranks_on(self, position: int) -> int:
        """How many ranks the host at that position has."""
        before = self.ranks_per_host * position
        return max(0, min(self.ranks_per_host, self.ranks - before))


def place(ranks: int, hosts: Sequence[str], *, slots: int, first: int) -> Placement:
    """The smallest number of hosts that hold the ranks, evenly filled.

    Args:
        ranks: How many processes.
        hosts: All hosts of the job, in the scheduler's order.
        slots: Ranks that a host has room for. Where all hosts together have less room than is
            needed, each takes more.
        first: Which host to begin with, counted round: successive runs take different ones in
            turn, as they do with devices, so that T(1) is not always that of the first node.
    """
    needed = min(len(hosts), math.ceil(ranks / slots))
    chosen = {(first + offset) % len(hosts) for offset in range(needed)}
    return Placement(
        hosts=tuple(host for position, host in enumerate(hosts) if position in chosen),
        ranks=ranks,
        ranks_per_host=math.ceil(ranks / needed),
    )


def without_excluded(hosts: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The hosts of a job that may be used: a night that tries again leaves out a bad one.

    Raises:
        UsageError: none is left.
    """
    excluded = environment.get(EXCLUDED_HOSTS, "").split(",")
    left = tuple(host for host in hosts if host not in excluded)
    if not left:
        raise UsageError(
            f"{EXCLUDED_HOSTS} names all hosts of this job ({', '.join(hosts)}); unset it"
        )
    return left
