"""OpenPBS and PBS Professional."""

import re
from collections.abc import Iterator, Sequence

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
    account_word = "account"
    launcher = "mpirun"

    def options(self, demand: Demand) -> Iterator[str]:
        """See `Scheduler`."""
        yield "-S /bin/bash"
        yield f"-N {demand.job_name}"
        if demand.partition is not None:
            yield f"-q {demand.partition}"
        if demand.account is not None:
            yield f"-A {demand.account}"
        # Where nobody knows the cores, one for each GPU: PBS would give one in all.
        cores = (demand.cores_per_task or demand.gpus_per_node) * demand.tasks_per_node
        chunk = [f"ncpus={cores}", self.gpu_request(demand), f"mpiprocs={demand.tasks_per_node}"]
        yield f"-l select={demand.nodes}:{':'.join(filter(None, chunk))}"
        yield f"-l place=scatter{':excl' if demand.whole_nodes else ''}"
        yield f"-l walltime={demand.time_limit}"
        yield "-r n"
        yield "-j oe"
        # Written in place, not copied there after the job's end.
        yield "-k doe"

    def log_name(self, job_name: str, job: str) -> str:
        """See `Scheduler`; PBS puts no number into a name that one chooses."""
        return f"{job_name}.o{job.partition('.')[0]}"

    def handed_on(self, names: Sequence[str]) -> tuple[str, ...]:
        """See `Scheduler`."""
        return ("-v", ",".join(names)) if names else ()

    def questions(self, job: str) -> tuple[tuple[str, ...], ...]:
        """See `Scheduler`."""
        # A server that keeps no history refuses -x.
        return ("qstat", "-x", "-f", job), ("qstat", "-f", job)

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
