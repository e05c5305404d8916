"""Support for the scheduler IBM Spectrum LSF."""

import math
import re
from collections.abc import Mapping, Sequence

from gpuscale.measure.schedulers.scheduler import UNKNOWN, Demand, Ending, JobState, Scheduler

_WAITS = ("PEND", "PSUSP", "WAIT", "PROV")
_RUNS = ("RUN", "USUSP", "SSUSP")


class Lsf(Scheduler):
    """The scheduler LSF, to which `bsub` submits jobs."""

    name = "lsf"
    title = "LSF"
    directive = "#BSUB"
    script_ending = "lsf"
    submit_command = ("bsub",)
    # bsub parses #BSUB lines only in a script that it reads from standard input.
    takes_stdin = True
    job_number = re.compile(r"Job <(\d+)>")
    cancel_program = "bkill"
    job_variable = "LSB_JOBID"
    folder_variable = "LS_SUBCWD"
    nodes_variable = "LSB_MCPU_HOSTS"
    default_gpu_option = '-gpu "num={gpus}:j_exclusive=yes"'
    launcher = "mpirun"

    # A login shell, because other shells do not define `module`.
    options = (
        "-L /bin/bash",
        "-J {job_name}",
        "-q {partition}",
        "-P {account}",
        "-n {tasks}",
        '-R "span[ptile={tasks_per_node}]"',
        '-R "affinity[thread*{cores_per_task}]"',
        "{gpus}",
        "-W {minutes}",
        "-rn",
        "-o {job_name}-%J.log",
    )
    state_commands = (("bjobs", "-noheader", "-o", "stat exit_code delimiter=':'"),)

    def nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        # The variable lists host names, each followed by the number of slots on that host.
        return tuple(dict.fromkeys(environment.get(self.nodes_variable, "").split()[::2]))

    def demanded(self, demand: Demand, gpus: str) -> Mapping[str, object]:
        tasks = demand.nodes * demand.tasks_per_node
        return {"tasks": tasks, "minutes": math.ceil(demand.limit_s / 60)}

    def read_state(self, answers: Sequence[str]) -> JobState:
        found = re.match(r"\s*([A-Z]+):(\S*)", answers[0])
        word, code = found.groups() if found else ("", "")
        if word == "DONE":
            return JobState("ended", word, 0, Ending.COMPLETED)
        if word == "EXIT":
            return JobState("ended", word, int(code) if code.isdigit() else None)
        if word in _RUNS:
            return JobState("running", word)
        return JobState("waiting", word) if word in _WAITS else UNKNOWN
