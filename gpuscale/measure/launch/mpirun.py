"""Open MPI's `mpirun`, which starts processes on the nodes of a scheduler's job."""

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import ClassVar

from gpuscale.base.environment import JOB_VARIABLES, VARIABLE_PREFIXES
from gpuscale.base.errors import UsageError
from gpuscale.measure.launch.rendezvous import HOST_PATTERN
from gpuscale.measure.schedulers import nodes_of_job
from gpuscale.measure.schedulers.placement import Placement, ProcessStarter

_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_")
_NEEDED = {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", HOST_PATTERN}
_PLACES_OF_CORES = "LSB_AFFINITY_HOSTFILE"
"""Environment variable that LSF sets if a job requests cores; it would affect rank placement."""
_SETTINGS = ("OMPI_MCA_", "OMPI_ALLOW_", "PRTE_MCA_", "PMIX_MCA_")


class OpenMpi(ProcessStarter):
    """Starts processes with `mpirun` on the nodes of the job in which this process runs."""

    name = "mpirun"
    place_variables: ClassVar[Mapping[str, str]] = {
        "RANK": "OMPI_COMM_WORLD_RANK",
        "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
        "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    }
    limits_cores = False
    passes_input = False
    node_variable = ""

    def hosts(self) -> tuple[str, ...]:
        """Return the hosts of the job, as named by the scheduler; raise UsageError if unknown."""
        if shutil.which("mpirun") is None:
            raise UsageError("--launcher mpirun: 'mpirun' is not on PATH; load an Open MPI module")
        found = nodes_of_job(os.environ)
        if not found:
            raise UsageError(
                "--launcher mpirun: no hosts of a job here (LSB_MCPU_HOSTS, PBS_NODEFILE, "
                "PE_HOSTFILE and SLURM_JOB_NODELIST are not set); start it inside of a job, or set "
                "PBS_NODEFILE to a file with a host on each line"
            )
        return found

    def arguments(self, program: Sequence[str], placement: Placement) -> list[str]:
        """Return the `mpirun` command line that starts the ranks, in blocks on the hosts.

        Processes may use all cores unless the site binds them; schedulers/slurm.py explains why.
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
        """Return False for variables that an outer launcher set, or that affect rank placement."""
        if variable == _PLACES_OF_CORES:
            return False
        return not variable.startswith(_PREFIXES) or variable.startswith(_SETTINGS)
