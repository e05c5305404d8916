"""Ranks on the nodes of a job of LSF, PBS or SGE: one process for each, started by Open MPI."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuscale.errors import UsageError
from gpuscale.host import VARIABLE_FAMILIES, VARIABLES_OF_THE_JOB
from gpuscale.launch.placement import HOST_PATTERN, Placement, group_variables
from gpuscale.run_directory import RunDirectory

_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_")
_NEEDED = {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", HOST_PATTERN}
_OF_THE_SCHEDULER = frozenset({"LSB_AFFINITY_HOSTFILE"})
"""Where LSF has given cores, Open MPI would take this for the place of each rank."""
_PLACE = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
}
_SETTINGS = ("OMPI_MCA_", "OMPI_ALLOW_", "PRTE_MCA_", "PMIX_MCA_")


class OpenMpi:
    """The job that this process runs in, as its scheduler's variables name the hosts."""

    name = "mpirun"

    def hosts(self) -> tuple[str, ...]:
        """The hosts of the job, as its scheduler tells them."""
        if shutil.which("mpirun") is None:
            raise UsageError("--launcher mpirun: 'mpirun' is not on PATH; load an Open MPI module")
        found = job_hosts(os.environ)
        if not found:
            raise UsageError(
                "--launcher mpirun: no hosts of a job here (LSB_MCPU_HOSTS, PBS_NODEFILE and "
                "PE_HOSTFILE are not set); start it inside of a job, or set PBS_NODEFILE to a file "
                "with a host on each line"
            )
        return found

    def arguments(self, program: Sequence[str], placement: Placement) -> list[str]:
        """Open MPI's command line for one process a rank, laid on the hosts in blocks.

        No process is bound to cores, as no launcher here does: see launch/slurm.py.
        """
        # The launcher gives PYTHONPATH to mpirun also where this process has none.
        exported = sorted({"PYTHONPATH"} | variables_of_ranks(os.environ))
        slots = (
            f"{host}:{placement.ranks_on(place)}" for place, host in enumerate(placement.hosts)
        )
        return [
            "mpirun",
            *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
            *("-np", str(placement.ranks)),
            *("--host", ",".join(slots)),
            *("--map-by", "slot"),
            *("--bind-to", "none"),
            *(word for name in exported for word in ("-x", name)),
            *program,
        ]

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The inherited one, without what would tell mpirun where ranks go, or who started it."""
        return {
            name: value
            for name, value in inherited.items()
            if name not in _OF_THE_SCHEDULER
            and (not name.startswith(_PREFIXES) or name.startswith(_SETTINGS))
        }

    def rank_variables(self, given: Mapping[str, str], directory: RunDirectory) -> dict[str, str]:
        """The variables of a rank that `mpirun` started, from Open MPI's own and the launcher's."""
        return group_variables(given, _PLACE, directory.host_names(), directory)

    def node_name(self, given: Mapping[str, str], hosts: Sequence[str]) -> str:
        """The host of this process's rank: there is one task a node, in the order of the hosts."""
        return hosts[int(given["OMPI_COMM_WORLD_RANK"])]


def variables_of_ranks(given: Mapping[str, str]) -> set[str]:
    """The names of the variables that ranks on other nodes are to have as well.

    Open MPI's daemons there start them with what a login has, and with what it is told to carry.
    """
    settings = {name for name in given if name.startswith(VARIABLE_FAMILIES)}
    return (settings - VARIABLES_OF_THE_JOB) | (_NEEDED & set(given))


def job_hosts(given: Mapping[str, str]) -> tuple[str, ...]:
    """The hosts of a job of LSF, PBS or SGE with these variables, each once, in its order."""
    if lsf := given.get("LSB_MCPU_HOSTS"):
        names = lsf.split()[::2]
    elif path := given.get("PBS_NODEFILE") or given.get("PE_HOSTFILE"):
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        names = [line.split()[0] for line in lines if line.strip()]
    else:
        names = []
    return tuple(dict.fromkeys(names))
