"""Support for the scheduler SGE (Grid Engine) and its descendants."""

import re
from collections.abc import Mapping, Sequence

from gpuscale.measure.schedulers.scheduler import UNKNOWN, Ending, JobState, Scheduler

_TIME_UP = "37"
_RAN = frozenset({"15", _TIME_UP, "100"})
"""Values of `failed` in qacct's output for jobs that ran: error in the epilog, time limit, signal.
With other non-zero values, `exit_status` is not the exit code of the job."""
_GONE = "do not exist"
"""Part of qstat's message for an ended job; after another error, the job may still be running."""


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
        accounted = _record_of_job(answers[1]) if _GONE in answers[0] and answers[1:] else ""
        status = re.search(r"^exit_status\s+(\d+)", accounted, re.MULTILINE)
        failed = re.search(r"^failed\s+(\d+)\s*(?::\s*(.*))?$", accounted, re.MULTILINE)
        if status is None:
            return UNKNOWN
        # A parallel job's tasks may have records seconds before the job itself has one.
        is_final = not re.search(r"^granted_pe\s+(?!NONE)\S", accounted, re.MULTILINE)
        if failed is None or not int(failed[1]):
            return JobState("ended", "done", int(status[1]), Ending.COMPLETED, is_final=is_final)
        word = f"failed {failed[1]} {failed[2] or ''}".strip()
        code = int(status[1]) if failed[1] in _RAN else None
        ending = Ending.TIME_UP if failed[1] == _TIME_UP else Ending.FAILED
        return JobState("ended", word, code or None, ending, is_final=is_final)


def _record_of_job(accounted: str) -> str:
    """Return the job's own record from qacct's output; '' if only its tasks have ended.

    Tasks that a job starts with `qrsh -inherit`, as Open MPI does, have separate records, each
    written when the task ends. The job's own record is the last and has the longest duration.
    """
    records = re.split(r"^=+\n", accounted, flags=re.MULTILINE)
    found = (re.search(r"^ru_wallclock\s+([\d.]+)", text, re.MULTILINE) for text in records)
    lasted_s = [float(wallclock[1]) if wallclock else 0.0 for wallclock in found]
    return records[-1] if lasted_s[-1] == max(lasted_s) else ""
