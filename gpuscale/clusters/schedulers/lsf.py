"""LSF."""

import math
import re
from collections.abc import Iterator, Sequence

from gpuscale.clusters.schedulers.base import UNKNOWN, Demand, Ending, JobState, Scheduler

_WAITS = ("PEND", "PSUSP", "WAIT", "PROV")
_RUNS = ("RUN", "USUSP", "SSUSP")


class Lsf(Scheduler):
    """`bsub`."""

    name = "lsf"
    title = "LSF"
    directive = "#BSUB"
    script_ending = "lsf"
    submit_command = ("bsub",)
    # bsub reads #BSUB lines only of a script that comes by standard input.
    takes_stdin = True
    job_number = re.compile(r"Job <(\d+)>")
    cancel_program = "bkill"
    # bjobs may be set up to end with the exit code of a job that has ended.
    tells_by_failing = True
    job_variable = "LSB_JOBID"
    folder_variable = "LS_SUBCWD"
    default_gpu_option = '-gpu "num={gpus}:j_exclusive=yes"'
    launcher = "mpirun"

    def options(self, demand: Demand) -> Iterator[str]:
        """See `Scheduler`."""
        # A login shell: elsewhere `module` is not defined.
        yield "-L /bin/bash"
        yield f"-J {demand.job_name}"
        if demand.partition is not None:
            yield f"-q {demand.partition}"
        if demand.account is not None:
            yield f"-P {demand.account}"
        yield f"-n {demand.nodes * demand.tasks_per_node}"
        yield f'-R "span[ptile={demand.tasks_per_node}]"'
        if demand.cores_per_task is not None:
            yield f'-R "affinity[thread*{demand.cores_per_task}]"'
        if gpus := self.gpu_request(demand):
            yield gpus
        yield f"-W {math.ceil(demand.limit_s / 60)}"
        yield "-rn"
        yield f"-o {self.log_name(demand.job_name, '%J')}"

    def questions(self, job: str) -> tuple[tuple[str, ...], ...]:
        """See `Scheduler`."""
        return (("bjobs", "-noheader", "-o", "stat exit_code delimiter=':'", job),)

    def read_state(self, answers: Sequence[str]) -> JobState:
        """See `Scheduler`."""
        told = re.match(r"\s*([A-Z]+):(\S*)", answers[0])
        if told is None:
            return UNKNOWN
        word, code = told[1], told[2]
        if word == "DONE":
            return JobState(stage="ended", word=word, exit_code=0, ending=Ending.COMPLETED)
        if word == "EXIT":
            return JobState(
                stage="ended", word=word, exit_code=int(code) if code.isdigit() else None
            )
        if word in _WAITS or word in _RUNS:
            return JobState(stage="running" if word in _RUNS else "waiting", word=word)
        return UNKNOWN
