"""What each scheduler is asked, and how its answers are read; no process is started here."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from gpuscale.clusters import Scheduler
from gpuscale.errors import SchedulerError

Stage = Literal["waiting", "running", "ended", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitCommand:
    """How a script is handed over."""

    arguments: tuple[str, ...]
    by_stdin: bool = False
    """Whether the script is read from standard input instead of from its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """Where a job is, as its scheduler said when it was asked."""

    stage: Stage
    word: str
    """The scheduler's own."""
    exit_code: int | None = None
    """Of a job that has ended; None where the scheduler does not tell."""


def submit_command(
    scheduler: Scheduler, script: str, environment: Mapping[str, str]
) -> SubmitCommand:
    """The command that submits a script file, with the variables of gpuscale that are set."""
    if scheduler == "slurm":
        return SubmitCommand(arguments=("sbatch", "--parsable", script))
    if scheduler == "sge":
        # sbatch and bsub hand on the whole environment; qsub only what it is told to.
        names = ",".join(sorted(name for name in environment if name.startswith(_OUR_VARIABLES)))
        told = ("-v", names) if names else ()
        return SubmitCommand(arguments=("qsub", "-terse", *told, script))
    # bsub reads #BSUB lines only of a script that comes by standard input.
    return SubmitCommand(arguments=("bsub",), by_stdin=True)


def cancel_command(scheduler: Scheduler, job: str) -> tuple[str, ...]:
    """The command that ends a job."""
    return {"slurm": ("scancel", job), "sge": ("qdel", job), "lsf": ("bkill", job)}[scheduler]


def job_number(scheduler: Scheduler, output: str) -> str:
    """The number of the job that was submitted, out of what the command printed.

    Raises:
        SchedulerError: there is none in it.
    """
    found = _NUMBER[scheduler].search(output)
    if found is None:
        raise SchedulerError(
            f"{_PROGRAM[scheduler]} said '{output.strip()[:200]}', in which there is no job "
            "number; see with the scheduler's own command whether the job is there"
        )
    return found[1]


def questions(scheduler: Scheduler, job: str) -> tuple[tuple[str, ...], ...]:
    """The commands that tell where a job is: the second where the first does not know it."""
    if scheduler == "slurm":
        # sacct needs a database that not every site has; scontrol forgets a job after minutes.
        sacct = ("sacct", "-X", "-n", "-P", "-o", "State,ExitCode", "-j", job)
        return ("scontrol", "--oneliner", "show", "job", job), sacct
    if scheduler == "sge":
        return ("qstat", "-j", job), ("qacct", "-j", job)
    return (("bjobs", "-noheader", "-o", "stat exit_code delimiter=':'", job),)


def state_of(scheduler: Scheduler, answers: tuple[str, ...]) -> JobState:
    """Where the job is, out of what the `questions` so far were answered.

    Args:
        scheduler: Whose answers they are.
        answers: What each command printed, in order; empty where it failed.
    """
    return _STATE[scheduler](answers)


def _slurm_state(answers: tuple[str, ...]) -> JobState:
    told = re.search(r"\bJobState=(\w+)", answers[0])
    code = re.search(r"\bExitCode=(\d+):(\d+)", answers[0])
    if told is None and len(answers) > 1:
        told = re.match(r"\s*(\w+)[^|]*\|(\d+):(\d+)", answers[1])
        code = re.search(r"\|(\d+):(\d+)", answers[1])
    if told is None:
        return _UNKNOWN
    word = told[1]
    if word in _SLURM_ENDS:
        return JobState(stage="ended", word=word, exit_code=_exit_code(code))
    # While COMPLETING its processes may still be writing to the log.
    return JobState(stage="running" if word in _SLURM_RUNS else "waiting", word=word)


def _exit_code(found: re.Match[str] | None) -> int | None:
    if found is None:
        return None
    code, number = int(found[1]), int(found[2])
    return 128 + number if number else code


def _sge_state(answers: tuple[str, ...]) -> JobState:
    if answers[0]:
        # qstat -j shows usage lines only of jobs that run.
        runs = re.search(r"^usage\s+\d+:", answers[0], re.MULTILINE) is not None
        stuck = re.search(r"^error reason\s+\d+:\s*(.*)$", answers[0], re.MULTILINE)
        if stuck is not None and not runs:
            return JobState(stage="ended", word=f"Eqw ({stuck[1].strip()})")
        return JobState(stage="running" if runs else "waiting", word="r" if runs else "qw")
    if len(answers) < 2:
        return _UNKNOWN
    status = re.search(r"^exit_status\s+(\d+)", answers[1], re.MULTILINE)
    failed = re.search(r"^failed\s+(\d+)\s*(?::\s*(.*))?$", answers[1], re.MULTILINE)
    if status is None:
        return _UNKNOWN
    if failed is not None and int(failed[1]):
        word = f"failed {failed[1]} {failed[2] or ''}".strip()
        ran = failed[1] in _SGE_RAN
        return JobState(stage="ended", word=word, exit_code=int(status[1]) or None if ran else None)
    return JobState(stage="ended", word="done", exit_code=int(status[1]))


def _lsf_state(answers: tuple[str, ...]) -> JobState:
    told = re.match(r"\s*([A-Z]+):(\S*)", answers[0])
    if told is None:
        return _UNKNOWN
    word, code = told[1], told[2]
    if word in ("PEND", "PSUSP", "WAIT", "PROV"):
        return JobState(stage="waiting", word=word)
    if word == "DONE":
        return JobState(stage="ended", word=word, exit_code=0)
    if word == "EXIT":
        return JobState(stage="ended", word=word, exit_code=int(code) if code.isdigit() else None)
    if word in ("RUN", "USUSP", "SSUSP"):
        return JobState(stage="running", word=word)
    return _UNKNOWN


_OUR_VARIABLES = "GPUSCALE_"
_SLURM_ENDS = frozenset(
    [
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "REVOKED",
        "PREEMPTED",
        "NODE_FAIL",
        "BOOT_FAIL",
        "LAUNCH_FAILED",
        "RECONFIG_FAIL",
    ]
)
_SLURM_RUNS = frozenset(
    [
        "RUNNING",
        "COMPLETING",
        "SUSPENDED",
        "STOPPED",
        "SIGNALING",
        "STAGE_OUT",
        "RESIZING",
        "EXPEDITING",
    ]
)
_SGE_RAN = frozenset({"15", "37", "100"})
"""Of a job that `failed`: in its epilog, at its time limit, by a signal. Elsewhere `exit_status`
is none of the job's."""
_UNKNOWN = JobState(stage="unknown", word="unknown")
_PROGRAM: Mapping[Scheduler, str] = {"slurm": "sbatch", "sge": "qsub", "lsf": "bsub"}
_NUMBER: Mapping[Scheduler, re.Pattern[str]] = {
    # Behind a semicolon comes the cluster's name.
    "slurm": re.compile(r"^(\d+)(?:;\S*)?\s*$", re.MULTILINE),
    "sge": re.compile(r"^(\d+)\s*$", re.MULTILINE),
    "lsf": re.compile(r"Job <(\d+)>"),
}
_STATE: Mapping[Scheduler, Callable[[tuple[str, ...]], JobState]] = {
    "slurm": _slurm_state,
    "sge": _sge_state,
    "lsf": _lsf_state,
}
