"""Support for the scheduler PBS: OpenPBS and PBS Professional."""

import re
from collections.abc import Mapping, Sequence

from gpuscale.measure.schedulers.scheduler import UNKNOWN, Demand, Ending, JobState, Scheduler

_ENDINGS = {
    -29: Ending.TIME_UP,
    # A node's daemon restarted or could not be reached, or memory ran out.
    **dict.fromkeys((-4, -5, -6, -14, -20, -26, -27), Ending.RESOURCES_LOST),
}
"""Reasons why a job has ended, keyed by the negative exit codes that PBS itself assigns."""
_KILLED = 256
"""Exit code of a job whose shell a signal killed, minus the signal's number."""


class Pbs(Scheduler):
    """The scheduler PBS, to which `qsub` submits jobs."""

    name = "pbs"
    title = "PBS"
    directive = "#PBS"
    script_ending = "pbs"
    submit_command = ("qsub",)
    # The number includes the server's name, as in PBS_JOBID.
    job_number = re.compile(r"^(\d+(?:\.\S+)?)\s*$", re.MULTILINE)
    cancel_program = "qdel"
    job_variable = "PBS_JOBID"
    folder_variable = "PBS_O_WORKDIR"
    nodes_variable = "PBS_NODEFILE"
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
        # Write the log in its final folder, rather than copying it there when the job has ended.
        "-k doe",
    )
    variables_option = "-v"
    # PBS's default, the only name of a log into which PBS inserts the job number.
    log_name = "{job_name}.o{job}"
    # A server without job history rejects -x.
    state_commands = (("qstat", "-x", "-f"), ("qstat", "-f"))

    def demanded(self, demand: Demand, gpus: str) -> Mapping[str, object]:
        # If the number of cores is unknown, request one per GPU; PBS's default is one in all.
        cores = (demand.cores_per_task or demand.gpus_per_node) * demand.tasks_per_node
        return {
            "chunk": f"ncpus={cores}:{gpus}" if gpus else f"ncpus={cores}",
            "place": "scatter:excl" if demand.whole_nodes else "scatter",
        }

    def read_state(self, answers: Sequence[str]) -> JobState:
        found = re.search(r"^\s*job_state = (\w)", answers[-1], re.MULTILINE)
        status = re.search(r"^\s*Exit_status = (-?\d+)", answers[-1], re.MULTILINE)
        if found is None:
            return UNKNOWN
        if found[1] != "F":
            return JobState("running" if found[1] in "RESB" else "waiting", found[1])
        if status is None:
            return JobState("ended", "F")
        code, word = int(status[1]), f"F, Exit_status {status[1]}"
        if code < 0:
            return JobState("ended", word, ending=_ENDINGS.get(code, Ending.FAILED))
        ending = Ending.FAILED if code else Ending.COMPLETED
        return JobState("ended", word, code if code < _KILLED else code - _KILLED + 128, ending)
