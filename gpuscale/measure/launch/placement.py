"""Where the processes of a run go on the hosts of a job, and how they find each other there."""

import fcntl
import math
import os
import random
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from gpuscale.base.errors import UsageError

EXCLUDED_HOSTS = "GPUSCALE_EXCLUDED_HOSTS"
"""The variable that names hosts of a job that no rank is to be started on, between commas."""
HOST_PATTERN = "GPUSCALE_RENDEZVOUS_HOST"
"""How the ranks reach the first host, with `{host}` for its name: `{host}i` on JUWELS Booster,
whose nodes have a second name for InfiniBand."""
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_RENDEZVOUS_PORTS = range(12_000, 32_000)
"""Where the first rank may wait for the others: below what systems hand out by themselves."""
_SIOCGIFADDR = 0x8915
_ANY_PORT = 9


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where processes are started, in blocks: the first host has the first ranks."""

    hosts: tuple[str, ...]
    """By the scheduler's names and in its order."""
    ranks: int
    ranks_per_host: int
    """Of every host but the last ones, which may have fewer."""
    cores_per_rank: int | None = None
    """None for all cores of the node."""
    oversubscribed: bool = False
    """Ranks may share cores: there are more of them than the nodes have."""

    def ranks_on(self, position: int) -> int:
        """The number of ranks on the host at that position."""
        return max(0, min(self.ranks_per_host, self.ranks - self.ranks_per_host * position))


class ProcessStarter(Protocol):
    """One program that starts a command several times on the hosts of a job."""

    name: str
    """Its name on the command line and in results."""
    place_variables: Mapping[str, str]
    """Its variables for the place of a process, by torch.distributed's names for them."""
    node_variable: str
    """Its variable for the name of a process's node; empty if it has none."""
    limits_cores: bool
    """True if it gives a step no more cores than its ranks asked for."""

    def hosts(self) -> tuple[str, ...]:
        """The hosts of the job, in the order in which ranks are laid on them.

        Raises a UsageError without a job, or if its program is missing.
        """

    def arguments(self, program: Sequence[str], placement: Placement) -> list[str]:
        """The command line that starts `program` once for each rank of the placement."""

    def reaches(self, variable: str) -> bool:
        """Whether that command is to have a variable of this process, too."""


def free_port() -> int:
    """A port for the first rank of a run, free on this host; the last run's may not be so again."""
    while True:
        port = random.choice(_RENDEZVOUS_PORTS)
        with suppress(OSError), socket.socket() as tried:
            tried.bind(("", port))
            return port


def rank_variables(ranks: int, host: str) -> dict[str, str]:
    """The variables by which ranks find one another; the first of them is on the host."""
    pattern = os.environ.get(HOST_PATTERN, "{host}")
    return {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": pattern.replace("{host}", host),
        "MASTER_PORT": str(free_port()),
    }


def place(ranks: int, hosts: Sequence[str], *, slots: int, first: int) -> Placement:
    """The smallest number of hosts that hold the ranks, evenly filled.

    A host has room for as many ranks as it has slots; where all together have too few, each takes
    more. Hosts are counted round from the `first`: successive runs take different ones in turn, as
    they do with devices, so that T(1) is not always that of the first node.
    """
    needed = min(len(hosts), math.ceil(ranks / slots))
    chosen = {(first + offset) % len(hosts) for offset in range(needed)}
    return Placement(
        hosts=tuple(host for position, host in enumerate(hosts) if position in chosen),
        ranks=ranks,
        ranks_per_host=math.ceil(ranks / needed),
    )


def without_excluded(hosts: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The hosts of a job that may be used: a night that tries again leaves out a bad one."""
    excluded = environment.get(EXCLUDED_HOSTS, "").split(",")
    left = tuple(host for host in hosts if host not in excluded)
    if not left:
        named = ", ".join(hosts)
        raise UsageError(f"{EXCLUDED_HOSTS} names all hosts of this job ({named}); unset it")
    return left


def gloo_variables(given: Mapping[str, str], hosts: Sequence[str]) -> dict[str, str]:
    """`GLOO_SOCKET_IFNAME` where gloo needs it to reach the other hosts; nothing otherwise.

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
    """The interface by which this host sends to another; None where it cannot."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        # Nothing is sent: this only asks the system for its route.
        probe.connect((host, _ANY_PORT))
        address = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            # One without an address has no answer.
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                if fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24] == address:
                    return name
    return None
