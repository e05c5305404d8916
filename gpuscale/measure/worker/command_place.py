"""The place of a process that starts a command, and the ranks that the command starts there."""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass

from gpuscale.base.host import descendants, processes_with, variables_of
from gpuscale.measure.run_directory import RunDirectory, write_atomically
from gpuscale.records import RunRequest
from gpuscale.records.request import CommandRequest

RANK_COUNT_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which torchrun, DeepSpeed, Open MPI, MPICH and Slurm pass the number of ranks."""
LOCAL_COUNT_VARIABLE = "LOCAL_WORLD_SIZE"
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of this process among those that start a command on the hosts of a run."""

    request: RunRequest
    directory: RunDirectory
    number: int | None
    """Number of this process; None on a single node, which has only this one."""

    @property
    def command(self) -> CommandRequest:
        """The request for the command."""
        assert self.request.command is not None
        return self.request.command

    @property
    def rank(self) -> int | None:
        """The rank that this process starts; None if the command starts ranks, or on one node."""
        return self.number if self.request.launch == "per-rank" else None

    @property
    def hosts(self) -> list[str]:
        """The hosts of the run, as named by the launcher."""
        return ["localhost"] if self.number is None else self.directory.host_names()

    @property
    def node(self) -> int:
        """Index of the node in `hosts`."""
        block = self.directory.ranks_per_host(self.request.gpus)
        return self.number or 0 if self.rank is None else self.rank // block

    def gpus_on(self, node: int) -> int:
        """Return the number of the run's GPUs on a node: equal ones, but the last has the rest."""
        block = self.directory.ranks_per_host(self.request.gpus)
        return min(block, self.request.gpus - node * block)

    @property
    def covers_all_nodes(self) -> bool:
        """True if the command is started on one of several nodes, and starts ranks on all."""
        return self.number is not None and self.request.launch == "once"

    @property
    def label(self) -> str:
        """Words for the place, such as ` as rank 2 on n2`; empty if ranks may be on any host."""
        if self.number is None or self.covers_all_nodes:
            return ""
        as_rank = "" if self.rank is None else f" as rank {self.rank}"
        return f"{as_rank} on {socket.gethostname()}"

    def processes(self) -> set[int]:
        """Return the process IDs of the command on this node."""
        return processes_with(self.directory.variable) if self.covers_all_nodes else descendants()

    def count_ranks(self) -> tuple[set[int], set[int]]:
        """Return the numbers of all ranks, and of those here, which the command's processes show.

        A set is empty if they show none, and has several numbers if they disagree. The launcher
        finds the ranks of this node in `started`.
        """
        names = (*RANK_COUNT_VARIABLES, *_RANK_VARIABLES, LOCAL_COUNT_VARIABLE)
        found: dict[str, set[int]] = {name: set() for name in names}
        for process in self.processes():
            # It may have ended, or belong to another user.
            with suppress(OSError):
                variables = variables_of(process)
                for name in names:
                    count = variables.get(name, "")
                    if count.isdigit() and count != os.environ.get(name):
                        found[name].add(int(count))
        numbers = next(filter(None, (found[name] for name in _RANK_VARIABLES)), set[int]())
        if self.number is not None:
            path = self.directory.started(self.number)
            write_atomically(path, " ".join(map(str, sorted(numbers))))
        counts = (found[name] for name in RANK_COUNT_VARIABLES)
        return set[int]().union(*counts), found[LOCAL_COUNT_VARIABLE]
