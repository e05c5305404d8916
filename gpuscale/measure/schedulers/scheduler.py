"""The base class of all schedulers: job options, submission, job states and exit codes."""

import os
import re
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from string import Formatter
from textwrap import indent
from typing import ClassVar, Literal

import msgspec

from gpuscale.base.errors import SchedulerError
from gpuscale.base.host import text_of
from gpuscale.base.text import visible

_ANSWER_S = 60.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S, _GROWTH = 0.5, 15.0, 1.15
_SETTLING_S = 20.0
"""Seconds from a job's end until its accounting is complete; Grid Engine writes it every 15 s."""
MOST_UNKNOWN = 15
"""Number of queries in a row that may fail to find the job: SGE's accounting lags by minutes."""
TIME_LIMIT = r"^(?=.*[1-9])(\d{1,4}):([0-5]\d):([0-5]\d)\Z"
"""Regular expression for a time limit in the form `HH:MM:SS` that is not zero."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """A job's request to the scheduler: nodes, GPUs, cores, time limit, partition and account."""

    job_name: str
    nodes: int
    whole_nodes: bool
    """True if the job does not share nodes with other jobs."""
    gpus_per_node: int
    tasks_per_node: int
    cores_per_task: int | None
    """Number of cores per task; None if the profile does not say how many cores a node has."""
    gpu_option: str | None
    """The site's option to request GPUs, with `{gpus}` for the number; None for the default."""
    partition: str | None
    account: str | None
    nodelist: str | None
    """Nodes that the job must get, as Slurm writes them; None for any."""
    time_limit: str
    """Time limit in the form `HH:MM:SS`."""

    @property
    def limit_s(self) -> int:
        """The time limit in seconds."""
        hours, minutes, seconds = (int(part) for part in self.time_limit.split(":"))
        return hours * 3600 + minutes * 60 + seconds


class Ending(Enum):
    """The reason why a job has ended, as far as the scheduler reports it."""

    COMPLETED = "it ended by itself"
    FAILED = "it failed, or somebody cancelled it"
    TIME_UP = "its time limit was reached"
    RESOURCES_LOST = "a node failed, memory ran out, or another job took over the nodes"


class JobState(msgspec.Struct, frozen=True):
    """The state of a job, as reported by the scheduler."""

    stage: Literal["waiting", "running", "ended", "unknown"]
    word: str = "unknown"
    """The scheduler's own word for the state, such as COMPLETED, qw or EXIT."""
    exit_code: int | None = None
    """Exit code of an ended job, or 128 plus the number of the killing signal; None if unknown."""
    ending: Ending = Ending.FAILED
    remark: str | None = None
    """Explanation and remedy if a job could not be started; otherwise None."""
    is_final: bool = True
    """False if the scheduler may report a different ending once its accounting is complete."""


UNKNOWN = JobState("unknown")


class Scheduler(ABC):
    """A batch scheduler; `SCHEDULERS` has one instance of each subclass."""

    name: ClassVar[str]
    title: ClassVar[str]
    directive: ClassVar[str]
    """Prefix of lines with options in a job script, such as `#SBATCH`."""
    options: ClassVar[tuple[str, ...]]
    """Job options with `{…}` placeholders; an option with an unknown value is left out."""
    script_ending: ClassVar[str]
    submit_command: ClassVar[tuple[str, ...]]
    takes_stdin: ClassVar[bool] = False
    """True if the submit command reads the script from standard input rather than by file name."""
    variables_option: ClassVar[str | None] = None
    """Option that passes environment variables to a job; None if jobs inherit all of them."""
    log_name: ClassVar[str] = "{job_name}-{job}.log"
    """Pattern for the name of a job's log, in the folder from which the job was submitted."""
    job_number: ClassVar[re.Pattern[str]]
    """Pattern that finds the number of a job in the output of the submit command."""
    state_commands: ClassVar[tuple[tuple[str, ...], ...]]
    """Commands that report the state of a job, to which its number is appended, best first."""
    cancel_program: ClassVar[str]
    job_variable: ClassVar[str]
    folder_variable: ClassVar[str]
    """Environment variable in which a job finds the folder from which the job was submitted."""
    nodes_variable: ClassVar[str]
    """Environment variable in which a job finds a list of its nodes, or the path of such a list."""
    default_gpu_option: ClassVar[str | None]
    """Option to request GPUs if the profile has no such option; None if every profile needs one."""
    launcher: ClassVar[str | None]
    """Name of the launcher for ranks across nodes; None if jobs are limited to one node."""

    @abstractmethod
    def read_state(self, answers: Sequence[str]) -> JobState:
        """Return a job's state, given the output ('' if none) of each state command run so far."""

    def demanded(self, demand: Demand, gpus: str) -> Mapping[str, object]:
        """Return values for placeholders only this class has; `gpus` is the GPU option or ''."""
        return {}

    def options_of(self, demand: Demand) -> Iterator[str]:
        """Yield the scheduler options of a job, except those that the site's profile adds."""
        asked = self.default_gpu_option if demand.gpu_option is None else demand.gpu_option
        gpus = (asked or "").replace("{gpus}", str(demand.gpus_per_node))
        known = {
            **msgspec.structs.asdict(demand),
            "gpus": gpus or None,
            **self.demanded(demand, gpus),
        }
        for option in self.options:
            named = (name for _, name, _, _ in Formatter().parse(option) if name)
            if all(known[name] is not None for name in named):
                yield option.format_map(known)

    def preparation(self, demand: Demand) -> Iterator[str]:
        """Yield shell lines that only this scheduler needs in the job script."""
        yield from ()

    def is_here(self, environment: Mapping[str, str]) -> bool:
        """Return True if these environment variables come from a job of this scheduler."""
        return self.job_variable in environment

    def nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return the nodes of the job that set these environment variables; empty if unknown.

        By default `nodes_variable` holds the path of a file whose lines begin with node names.
        """
        lines = text_of(Path(environment.get(self.nodes_variable, os.devnull))).splitlines()
        return tuple(dict.fromkeys(line.split()[0] for line in lines if line.strip()))

    def log_of(self, job_name: str, job: str) -> Path:
        """Return the path of a job's log, relative to the folder where the job was submitted."""
        return Path(self.log_name.format(job_name=job_name, job=job.partition(".")[0]))

    def state_of(self, job: str) -> JobState:
        """Query the scheduler and return the current state of a job."""
        answers: list[str] = []
        for command in self.state_commands:
            # LSF may exit with the exit code of the job, and SGE reports its end as an error.
            answers.append(answer_of([*command, job], or_error=True) or "")
            state = self.read_state(answers)
            if state.stage != "unknown":
                return state
        return UNKNOWN

    def states_of(self, job: str) -> Iterator[JobState]:
        """Yield a job's state at growing intervals until the job has ended or stays unknown."""
        # The schedulers' own options (sbatch --wait, qsub -sync y, bsub -K) return 1 for killed
        # jobs, and Grid Engine's deletes the job on Ctrl-C.
        unknown, before, pause_s = 0, UNKNOWN, _SHORTEST_PAUSE_S
        while unknown <= MOST_UNKNOWN:
            state = self.state_of(job)
            yield state
            has_ended = state.stage == "ended"
            if has_ended and (state.is_final or before.stage == "ended"):
                return
            unknown = unknown + 1 if state.stage == "unknown" else 0
            if not has_ended and state not in (before, UNKNOWN):
                pause_s = _SHORTEST_PAUSE_S
            before = state
            time.sleep(_SETTLING_S if has_ended else pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * _GROWTH)

    def submit(
        self, script: Path, environment: Mapping[str, str], options: Sequence[str] = ()
    ) -> str:
        """Submit a job that gets the `GPUSCALE_…` variables of `environment`; return the job ID."""
        program = self.submit_command[0]
        ours = sorted(name for name in environment if name.startswith("GPUSCALE_"))
        command = [*self.submit_command, *options]
        if self.variables_option is not None and ours:
            command += [self.variables_option, ",".join(ours)]
        command += [] if self.takes_stdin else [str(script)]
        elsewhere = "submit from a login node of the cluster, or keep the script with --print"
        try:
            text = script.read_text("utf-8") if self.takes_stdin else ""
            answer = _run(command, environment, text=text)
        except FileNotFoundError:
            raise SchedulerError(f"{program} is not here; {elsewhere}") from None
        except subprocess.TimeoutExpired:
            return self.job_id_in("")
        if answer.returncode != 0:
            said = (answer.stderr.strip() or answer.stdout.strip())[:2000] or "it says nothing"
            raise SchedulerError(
                f"{program} refused the job:\n{indent(visible(said, multiline=True), '    ')}"
                "\n    correct what it names by an option such as --partition, --account or "
                f"--time, or in the profile; or {elsewhere}"
            )
        return self.job_id_in(answer.stdout)

    def job_id_in(self, output: str) -> str:
        """Return the job ID in the submit command's output; raise SchedulerError if missing."""
        if (found := self.job_number.search(output)) is None:
            raise SchedulerError(
                f"{self.submit_command[0]} gave no job number within {_ANSWER_S:.0f} s, but "
                f"'{output.strip()[:200]}'; see with the scheduler's own command whether the job "
                "is there before submitting again"
            )
        return found[1]


def answer_of(command: Sequence[str], *, or_error: bool = False) -> str | None:
    """Return a command's output; None if the command failed, is missing or did not answer in time.

    With `or_error`, also return the output of a failed command, including standard error.
    """
    try:
        answer = _run(command)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode == 0:
        return answer.stdout.strip()
    return f"{answer.stdout}{answer.stderr}".strip() if or_error else None


def _run(
    command: Sequence[str], environment: Mapping[str, str] | None = None, *, text: str = ""
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        env=environment,
        input=text,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=_ANSWER_S,
        check=False,
    )
