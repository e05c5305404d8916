"""Ranks on the nodes of a Slurm job: one task for each, started by `srun`."""

import os
import shutil
from collections.abc import Mapping, Sequence
from subprocess import PIPE, SubprocessError, check_output

from gpuscale.base.errors import UsageError
from gpuscale.measure.launch.placement import Placement, ProcessStarter

_PATIENCE_S = 30.0
_OTHERS_S = 10
"""How long the tasks of a step go on after the first has ended."""
_OF_THE_JOB_SCRIPT = (
    # What the job asked for as a whole is no measure for a step on some of its nodes, and srun
    # would take these as if they were its own options.
    *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_TASKS_PER_NODE"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET"),
    *("SLURM_NTASKS_PER_GPU", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_GPU"),
    *("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET", "SLURM_TRES_PER_TASK"),
    *("SLURM_GPU_BIND", "SLURM_CPU_BIND", "SLURM_DISTRIBUTION", "SLURM_HINT", "SLURM_HOSTFILE"),
    *("SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_OVERCOMMIT", "SLURM_LABELIO", "SLURM_WAIT"),
)
_BY_JOB_OR_TASK = {"SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET"}


class Slurm(ProcessStarter):
    """The Slurm job that this process runs in."""

    name = "slurm"
    place_variables: Mapping[str, str] = {
        "RANK": "SLURM_PROCID",
        "LOCAL_RANK": "SLURM_LOCALID",
        "WORLD_SIZE": "SLURM_NTASKS",
    }
    limits_cores = True
    # Slurm's name of a node need not be the one that the node has for itself.
    node_variable = "SLURMD_NODENAME"

    def hosts(self) -> tuple[str, ...]:
        """The nodes of the job; a UsageError where its steps could not share their GPUs."""
        nodes = os.environ.get("SLURM_JOB_NODELIST")
        if nodes is None:
            raise UsageError(
                "--launcher slurm: this is no Slurm job (SLURM_JOB_NODELIST is not set); start it "
                "inside of sbatch or salloc, e.g. 'salloc --nodes=2 --exclusive pytest …'"
            )
        if "SLURM_GPUS_PER_NODE" not in os.environ and _BY_JOB_OR_TASK & set(os.environ):
            raise UsageError(
                "--launcher slurm: the job has its GPUs by task or as a whole, so steps on some of "
                "its nodes do not see all of theirs; ask for them by node, with --gpus-per-node=4 "
                "or --gres=gpu:4 in place of --gpus and --gpus-per-task"
            )
        if shutil.which("srun") is None:
            raise UsageError("--launcher slurm: 'srun' is not on PATH; load your site's Slurm")
        return hostnames(nodes)

    def arguments(self, program: Sequence[str], placement: Placement) -> list[str]:
        """The `srun` command line for a step of one task a rank.

        Every task sees all GPUs of its node, which is what srun does where the job asked for them
        by node, so that a run can choose among them. (`--gpu-bind=none` would say so, but Slurm
        22.05 then gives no GPU to steps of several tasks on a node.) Cores are as many for each
        rank of any run, and tasks are not bound to single ones among them: binding that depends
        on the number of ranks would give T(n) a help that T(1) does not get.
        """
        cores = placement.cores_per_rank
        return [
            "srun",
            f"--nodes={len(placement.hosts)}",
            f"--nodelist={','.join(placement.hosts)}",
            f"--ntasks={placement.ranks}",
            f"--ntasks-per-node={placement.ranks_per_host}",
            *([] if cores is None else [f"--cpus-per-task={cores}"]),
            "--distribution=block",
            "--cpu-bind=none",
            # pytest may itself run in a step of this job, which would hold the resources.
            "--overlap",
            *(["--overcommit"] if placement.oversubscribed else []),
            "--mpi=none",
            "--export=ALL",
            # A keeper that dies takes its ranks along; those elsewhere may still say what they saw.
            "--kill-on-bad-exit=0",
            f"--wait={_OTHERS_S}",
            *program,
        ]

    def reaches(self, variable: str) -> bool:
        """It is none by which the job script's own options would tell srun something."""
        return variable not in _OF_THE_JOB_SCRIPT and not variable.startswith("SLURM_CPU_BIND_")


def hostnames(nodes: str) -> tuple[str, ...]:
    """The hosts that a node list of Slurm, such as `n[1-2,7]`, stands for, in its order."""
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        told = check_output(command, text=True, stderr=PIPE, timeout=_PATIENCE_S)
    except (OSError, SubprocessError) as error:
        problem = f"'{' '.join(command)}': {error}"
        raise UsageError(f"cannot tell the nodes of the job: {problem}") from None
    return tuple(told.split())
