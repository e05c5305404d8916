"""OpenPBS and PBS Professional."""

import re
from collections.abc import Mapping, Sequence

from gpuscale.clusters.schedulers.base import UNKNOWN, Demand, Ending, JobState, Scheduler

_TIME_UP = -29
_RESOURCES_LOST = (-4, -5, -6, -14, -20, -26, -27)
"""PBS's own exit codes: a node's daemon began anew, could not be reached, or memory ran out."""
_KILLED = 256
"""From here on an exit code stands for the signal that killed the job's shell."""


class Pbs(Scheduler):
    """`qsub` of PBS."""

    name = "pbs"
    title = "PBS"
    directive = "#PBS"
    script_ending = "pbs"
    submit_command = ("qsub",)
    # With the server's name behind it, as PBS_JOBID has it.
    job_number = re.compile(r"^(\d+(?:\.\S+)?)\s*$", re.MULTILINE)
    cancel_program = "qdel"
    job_variable = "PBS_JOBID"
    folder_variable = "PBS_O_WORKDIR"
    default_gpu_option = "ngpus={gpus}"
    launcher = "mpirun"

    options = (
        "-S /bin/bash",
        "-N {job_name}",
        "-q {partition}",
        "-A {account}",
        "-l select={nodes}:{chunk}:mpiprocs={tasks_per_node}",
        "-l place={place}",
        "-l walltime={time_limit}",
        "-r n",
        "-j oe",
        # Written in place, not copied there after the job's end.
        "-k doe",
    )
    variables_option = "-v"
    # PBS puts no number into a name that one chooses.
    log_name = "{job_name}.o{job}"
    # A server that keeps no history refuses -x.
    questions = (("qstat", "-x", "-f"), ("qstat", "-f"))

    def demanded(self, demand: Demand, gpus: str) -> Mapping[str, object]:
        """See `Scheduler`."""
        # Where nobody knows the cores, one for each GPU: PBS would give one in all.
        cores = (demand.cores_per_task or demand.gpus_per_node) * demand.tasks_per_node
        return {
            "chunk": f"ncpus={cores}:{gpus}" if gpus else f"ncpus={cores}",
            "place": "scatter:excl" if demand.whole_nodes else "scatter",
        }

    def read_state(self, answers: Sequence[str]) -> JobState:
        """See `Scheduler`."""
        told = re.search(r"^\s*job_state = (\w)", answers[-1], re.MULTILINE)
        status = re.search(r"^\s*Exit_status = (-?\d+)", answers[-1], re.MULTILINE)
        if told is None:
            return UNKNOWN
        if told[1] != "F":
            return JobState(stage="running" if told[1] in "RESB" else "waiting", word=told[1])
        if status is None:
            return JobState(stage="ended", word="F")
        code, word = int(status[1]), f"F, Exit_status {status[1]}"
        if code < 0:
            lost = Ending.RESOURCES_LOST if code in _RESOURCES_LOST else Ending.FAILED
            ending = Ending.TIME_UP if code == _TIME_UP else lost
            return JobState(stage="ended", word=word, ending=ending)
        return JobState(
            stage="ended",
            word=word,
            exit_code=code if code < _KILLED else code - _KILLED + 128,
            ending=Ending.FAILED if code else Ending.COMPLETED,
        )
