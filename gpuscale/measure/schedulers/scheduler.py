"""A scheduler as gpuscale uses it: the text of a job, and its submission, state and end."""

import os
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from string import Formatter
from textwrap import indent
from typing import ClassVar, Literal

from gpuscale.base.errors import SchedulerError
from gpuscale.base.printable import visible

_ANSWER_S = 60.0
TIME_LIMIT = r"^(?=.*[1-9])(\d{1,4}):([0-5]\d):([0-5]\d)\Z"
"""A time limit, `HH:MM:SS`, that is not 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The demands of a job on its scheduler; they are the same for all of its nodes."""

    job_name: str
    nodes: int
    whole_nodes: bool
    """True if the job shares its nodes with no other."""
    gpus_per_node: int
    tasks_per_node: int
    cores_per_task: int | None
    """None if the profile does not say how many cores a node has."""
    gpu_option: str | None
    """The site's request for GPUs, with `{gpus}` for their number; None for the scheduler's own."""
    partition: str | None
    account: str | None
    time_limit: str
    """A text that matches `TIME_LIMIT`."""

    @property
    def limit_s(self) -> int:
        """The time limit in seconds."""
        hours, minutes, seconds = (int(part) for part in self.time_limit.split(":"))
        return hours * 3600 + minutes * 60 + seconds


class Ending(Enum):
    """The reason why a job has ended, as far as its scheduler reports it."""

    COMPLETED = "by itself, and well"
    FAILED = "by itself or by somebody"
    TIME_UP = "its time was up"
    RESOURCES_LOST = "a node failed, memory ran out, or somebody else got the nodes"


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job, as its scheduler reports it."""

    stage: Literal["waiting", "running", "ended", "unknown"]
    word: str = "unknown"
    """The scheduler's own word, such as COMPLETED, qw or EXIT."""
    exit_code: int | None = None
    """Exit code of a job that has ended, above 128 for a signal; None if unknown."""
    ending: Ending = Ending.FAILED
    remark: str | None = None
    """Explanation of an end that has another cause than the job."""


UNKNOWN = JobState("unknown")


class Scheduler(ABC):
    """One scheduler; `SCHEDULERS` has one object of each."""

    name: ClassVar[str]
    title: ClassVar[str]
    directive: ClassVar[str]
    """The beginning of its lines in a job script."""
    options: ClassVar[tuple[str, ...]]
    """Options of a job, in order, with `{…}` for its demands; left out if a demand is unknown."""
    script_ending: ClassVar[str]
    submit_command: ClassVar[tuple[str, ...]]
    takes_stdin: ClassVar[bool] = False
    """True if the script is submitted by standard input, and not by its name."""
    variables_option: ClassVar[str | None] = None
    """The option that passes variables to a job; None if it gets all of them anyway."""
    log_name: ClassVar[str] = "{job_name}-{job}.log"
    """The job's log, in the folder that it was submitted from."""
    job_number: ClassVar[re.Pattern[str]]
    """The number of a job in what the submit command prints."""
    questions: ClassVar[tuple[tuple[str, ...], ...]]
    """Commands that report the state of a job whose number follows; each is a fallback for those
    before it."""
    cancel_program: ClassVar[str]
    tells_by_failing: ClassVar[bool] = False
    """True if a question may print its answer and still end with an error."""
    job_variable: ClassVar[str]
    folder_variable: ClassVar[str]
    """In a job, the variables with its number and the folder that it was submitted from."""
    nodes_variable: ClassVar[str]
    """In a job, the variable that says which nodes it has."""
    default_gpu_option: ClassVar[str | None]
    """The request for GPUs of profiles that have none; None if a profile must have one."""
    launcher: ClassVar[str | None]
    """The launcher of ranks across nodes; None if jobs stay within one node."""

    @abstractmethod
    def read_state(self, answers: Sequence[str]) -> JobState:
        """The state of a job, from the answers to the questions so far; empty ones failed."""

    def demanded(self, demand: Demand, gpus: str) -> Mapping[str, object]:
        """Further values for `options`, besides the fields of a demand and the option for GPUs."""
        return {}

    def options_of(self, demand: Demand) -> Iterator[str]:
        """The options of a job, in order, without what its profile adds."""
        asked = self.default_gpu_option if demand.gpu_option is None else demand.gpu_option
        gpus = (asked or "").replace("{gpus}", str(demand.gpus_per_node))
        known = {**asdict(demand), "gpus": gpus or None, **self.demanded(demand, gpus)}
        for option in self.options:
            named = (name for _, name, _, _ in Formatter().parse(option) if name)
            if all(known[name] is not None for name in named):
                yield option.format_map(known)

    def preparation(self, demand: Demand) -> Iterator[str]:
        """Lines of the job's shell that only this scheduler needs."""
        yield from ()

    def is_here(self, environment: Mapping[str, str]) -> bool:
        """True if a process with these variables is in one of its jobs."""
        return self.job_variable in environment

    def submit_again(
        self, environment: Mapping[str, str], *, avoid: Sequence[str]
    ) -> tuple[list[str], dict[str, str]] | None:
        """A command that submits this job once more without some nodes, and its environment."""
        return None

    def nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """The nodes of the job with these variables, by the scheduler's names; empty if unknown.

        By default the variable names a file that has a node at the beginning of each line.
        """
        with suppress(OSError):
            lines = (
                Path(environment.get(self.nodes_variable, os.devnull))
                .read_text("utf-8")
                .splitlines()
            )
            return tuple(dict.fromkeys(line.split()[0] for line in lines if line.strip()))
        return ()

    def profile_values(self) -> dict[str, str]:
        """Values for the fields `gpus`, `cores`, `partition` of a profile; empty if unknown."""
        return {}

    def lost_nodes(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """The nodes of this job that the scheduler reports as lost."""
        return ()

    def log_of(self, job_name: str, job: str) -> Path:
        """The log of a job, in the folder that it was submitted from."""
        return Path(self.log_name.format(job_name=job_name, job=job.partition(".")[0]))

    def state_of(self, job: str) -> JobState:
        """Ask for the present state of a job."""
        answers: list[str] = []
        for question in self.questions:
            answers.append(answer_of([*question, job], or_failed=self.tells_by_failing) or "")
            state = self.read_state(answers)
            if state.stage != "unknown":
                return state
        return UNKNOWN

    def submit(self, script: Path, environment: Mapping[str, str]) -> str:
        """Submit a script with the variables of gpuscale that are set; return the job's number."""
        program = self.submit_command[0]
        ours = sorted(name for name in environment if name.startswith("GPUSCALE_"))
        command = [*self.submit_command]
        if self.variables_option is not None and ours:
            command += [self.variables_option, ",".join(ours)]
        command += [] if self.takes_stdin else [str(script)]
        try:
            text = script.read_text("utf-8") if self.takes_stdin else ""
            answer = _run(command, environment, text=text)
        except FileNotFoundError:
            remedy = "submit from a login node of the cluster, or keep the script with --print"
            raise SchedulerError(f"{program} is not here; {remedy}") from None
        except subprocess.TimeoutExpired:
            problem = f"has not answered within {_ANSWER_S:.0f} s"
            remedy = "see whether the job is there before submitting again"
            raise SchedulerError(f"{program} {problem}; {remedy}") from None
        if answer.returncode != 0:
            said = (answer.stderr.strip() or answer.stdout.strip())[:2000] or "it says nothing"
            raise SchedulerError(
                f"{program} did not take the job:\n{indent(visible(said, multiline=True), '    ')}"
                "\n    correct what it names by an option such as --partition, --account or "
                "--time, or in the profile; --print shows what is asked for"
            )
        return self.number_in(answer.stdout)

    def number_in(self, output: str) -> str:
        """The number of the submitted job, from the output of the command."""
        found = self.job_number.search(output)
        if found is None:
            raise SchedulerError(
                f"{self.submit_command[0]} said '{output.strip()[:200]}', in which there is no job "
                "number; see with the scheduler's own command whether the job is there"
            )
        return found[1]


def answer_of(
    command: Sequence[str], environment: Mapping[str, str] | None = None, *, or_failed: bool = False
) -> str | None:
    """A short command's output; None if it does not answer or, unless `or_failed`, fails."""
    try:
        answer = _run(command, environment)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if or_failed or answer.returncode == 0 else None


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
