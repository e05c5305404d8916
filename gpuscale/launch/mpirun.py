"""Ranks on the nodes of a job of LSF, PBS or SGE: one process for each, started by Open MPI."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpuscale.errors import UsageError
from gpuscale.host import VARIABLE_FAMILIES, VARIABLES_OF_THE_JOB
from gpuscale.launch.placement import Placement
from gpuscale.launch.rank_variables import HOST_PATTERN
from gpuscale.launch.scheduler import Demand

_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_")
_NEEDED = {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", HOST_PATTERN}
_OF_THE_SCHEDULER = frozenset({"LSB_AFFINITY_HOSTFILE"})
"""Where LSF has given cores, Open MPI would take this for the place of each rank."""
_SETTINGS = ("OMPI_MCA_", "OMPI_ALLOW_", "PRTE_MCA_", "PMIX_MCA_")


class OpenMpi:
    """The job that this process runs in, as its scheduler's variables name the hosts."""

    name = "mpirun"

    def hosts(self) -> tuple[str, ...]:
        """The hosts of the job.

        Raises:
            UsageError: `mpirun` is missing, or no scheduler tells the hosts.
        """
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

    def arguments(self, program: Sequence[str], placement: Placement, demand: Demand) -> list[str]:
        """See `mpirun_arguments`."""
        # The launcher gives it to mpirun also where this process has none.
        exported = {"PYTHONPATH", *variables_of_ranks(os.environ)}
        return mpirun_arguments(
            program, placement, exported=sorted(exported), as_root=os.geteuid() == 0
        )

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """What is inherited, without what would tell mpirun where ranks go, or who started it."""
        return {
            name: value
            for name, value in inherited.items()
            if name not in _OF_THE_SCHEDULER
            and (not name.startswith(_PREFIXES) or name.startswith(_SETTINGS))
        }


def variables_of_ranks(given: Mapping[str, str]) -> Iterator[str]:
    """The names of the variables that ranks on other nodes are to have as well.

    Open MPI's daemons there start them with what a login has, and with what it is told to carry.
    """
    for name in given:
        is_setting = name.startswith(VARIABLE_FAMILIES) and name not in VARIABLES_OF_THE_JOB
        if name in _NEEDED or is_setting:
            yield name


def mpirun_arguments(
    program: Sequence[str],
    placement: Placement,
    *,
    exported: Sequence[str],
    as_root: bool = False,
) -> list[str]:
    """Open MPI's command line for one process a rank, laid on the hosts in blocks.

    `exported` names variables of this process's environment that ranks on all hosts get. No
    process is bound to cores, as no launcher here does: see launch.slurm.srun_arguments.
    """
    slots = (
        f"{host}:{placement.ranks_on(position)}" for position, host in enumerate(placement.hosts)
    )
    return [
        "mpirun",
        *(["--allow-run-as-root"] if as_root else []),
        "-np",
        str(placement.ranks),
        "--host",
        ",".join(slots),
        "--map-by",
        "slot",
        "--bind-to",
        "none",
        *(word for name in exported for word in ("-x", name)),
        *program,
    ]


def job_hosts(given: Mapping[str, str]) -> tuple[str, ...]:
    """The hosts of a job of LSF, PBS or SGE, each once, in its order.

    Args:
        given: The job's environment variables.
    """
    if lsf := given.get("LSB_MCPU_HOSTS"):
        names = lsf.split()[::2]
    elif path := given.get("PBS_NODEFILE") or given.get("PE_HOSTFILE"):
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        names = [line.split()[0] for line in lines if line.strip()]
    else:
        names = []
    return tuple(dict.fromkeys(names))
