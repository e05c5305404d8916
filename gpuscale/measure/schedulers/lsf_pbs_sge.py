"""Support for the schedulers IBM Spectrum LSF, PBS and Grid Engine (SGE) with its descendants."""

import math
import re
from collections.abc import Mapping, Sequence

from gpuscale.measure.schedulers.scheduler import UNKNOWN, Demand, Ending, JobState, Scheduler

_LSF_WAITS = ("PEND", "PSUSP", "WAIT", "PROV")
_LSF_RUNS = ("RUN", "USUSP", "SSUSP")
_PBS_ENDINGS = {
    -29: Ending.TIME_UP,
    # A node's daemon restarted or could not be reached, or memory ran out.
    **dict.fromkeys((-4, -5, -6, -14, -20, -26, -27), Ending.RESOURCES_LOST),
}
"""Reasons why a job has ended, keyed by the negative exit codes that PBS itself assigns."""
_PBS_KILLED = 256
"""If a signal kills a job's shell, PBS reports this plus the signal number as the exit code."""
_SGE_TIME_UP = "37"
_SGE_RAN = frozenset({"15", _SGE_TIME_UP, "100"})
"""Values of `failed` in qacct's output for jobs that ran: error in the epilog, time limit, signal.
With other non-zero values, `exit_status` is not the exit code of the job."""
_SGE_GONE = "do not exist"
"""Part of qstat's message for an ended job; after another error, the job may still be running."""


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
    # Sites can configure bjobs to exit with the exit code of the job.
    ignores_exit_code = True
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
        if found is None:
            return UNKNOWN
        word, code = found[1], found[2]
        if word == "DONE":
            return JobState("ended", word, 0, Ending.COMPLETED)
        if word == "EXIT":
            return JobState("ended", word, int(code) if code.isdigit() else None)
        if word in _LSF_WAITS or word in _LSF_RUNS:
            return JobState("running" if word in _LSF_RUNS else "waiting", word)
        return UNKNOWN


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
            return JobState("ended", word, ending=_PBS_ENDINGS.get(code, Ending.FAILED))
        ending = Ending.FAILED if code else Ending.COMPLETED
        if code >= _PBS_KILLED:
            code += 128 - _PBS_KILLED
        return JobState("ended", word, code, ending)


class Sge(Scheduler):
    """The scheduler Grid Engine, to which `qsub` submits jobs."""

    name = "sge"
    title = "SGE"
    directive = "#$"
    script_ending = "sge"
    submit_command = ("qsub", "-terse")
    job_number = re.compile(r"^(\d+)\s*$", re.MULTILINE)
    cancel_program = "qdel"
    job_variable = "JOB_ID"
    folder_variable = "SGE_O_WORKDIR"
    nodes_variable = "PE_HOSTFILE"
    # Sites define their own resource names for GPUs and parallel environments for several nodes.
    default_gpu_option = None
    launcher = None

    options = (
        "-S /bin/bash",
        "-N {job_name}",
        "-q {partition}",
        "-P {account}",
        "-cwd",
        "-j y",
        "-o {job_name}-$JOB_ID.log",
        "-r n",
        "-l h_rt={time_limit}",
        "{gpus}",
    )
    variables_option = "-v"
    state_commands = (("qstat", "-j"), ("qacct", "-j"))
    ignores_exit_code = True

    def is_here(self, environment: Mapping[str, str]) -> bool:
        # JOB_ID alone is too common a name to mean SGE.
        return self.job_variable in environment and "SGE_TASK_ID" in environment

    def read_state(self, answers: Sequence[str]) -> JobState:
        if "job_number:" in answers[0]:
            # qstat -j shows usage lines only for running jobs.
            runs = re.search(r"^usage\s+\d+:", answers[0], re.MULTILINE) is not None
            stuck = re.search(r"^error reason\s+\d+:\s*(.*)$", answers[0], re.MULTILINE)
            if stuck is not None and not runs:
                remark = "it could not be started and stays in the queue; qdel removes it"
                return JobState("ended", f"Eqw ({stuck[1].strip()})", remark=remark)
            return JobState("running" if runs else "waiting", "r" if runs else "qw")
        accounted = _record_of_job(answers[1]) if _SGE_GONE in answers[0] and answers[1:] else ""
        status = re.search(r"^exit_status\s+(\d+)", accounted, re.MULTILINE)
        failed = re.search(r"^failed\s+(\d+)\s*(?::\s*(.*))?$", accounted, re.MULTILINE)
        if status is None:
            return UNKNOWN
        # A parallel job's tasks may have records seconds before the job itself has one.
        is_final = not re.search(r"^granted_pe\s+(?!NONE)\S", accounted, re.MULTILINE)
        if failed is None or not int(failed[1]):
            return JobState("ended", "done", int(status[1]), Ending.COMPLETED, is_final=is_final)
        word = f"failed {failed[1]} {failed[2] or ''}".strip()
        code = int(status[1]) if failed[1] in _SGE_RAN else None
        ending = Ending.TIME_UP if failed[1] == _SGE_TIME_UP else Ending.FAILED
        return JobState("ended", word, code or None, ending, is_final=is_final)


def _record_of_job(accounted: str) -> str:
    """Return the job's own record from qacct's output; '' if only its tasks have ended.

    Tasks that a job starts with `qrsh -inherit`, as Open MPI does, have separate records, each
    written when the task ends. The job itself ends last and runs longest.
    """
    records = re.split(r"^=+\n", accounted, flags=re.MULTILINE)
    found = (re.search(r"^ru_wallclock\s+([\d.]+)", text, re.MULTILINE) for text in records)
    lasted_s = [float(wallclock[1]) if wallclock else 0.0 for wallclock in found]
    return records[-1] if lasted_s[-1] == max(lasted_s) else ""
