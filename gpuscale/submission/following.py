"""Handing a script to the scheduler, and following the job until it ends."""

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from gpuscale.clusters import Scheduler
from gpuscale.errors import SchedulerError
from gpuscale.printable import visible
from gpuscale.submission.schedulers import (
    JobState,
    cancel_command,
    job_number,
    questions,
    state_of,
    submit_command,
)

_ANSWER_S = 60.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S, _GROWTH = 0.5, 15.0, 1.15
_MOST_UNKNOWN = 15
"""So often in a row may the scheduler not know the job: SGE's accounting lags by minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How a job ended."""

    word: str
    """The scheduler's own, such as COMPLETED, TIMEOUT or EXIT."""
    exit_code: int | None
    """None where the scheduler does not tell."""


def submit_script(scheduler: Scheduler, script: Path) -> str:
    """Submit a script file; the job's number.

    Raises:
        SchedulerError: the scheduler is not there or did not take it; with what it said.
    """
    command = submit_command(scheduler, str(script), os.environ)
    program = command.arguments[0]
    try:
        answer = subprocess.run(
            command.arguments,
            input=script.read_text(encoding="utf-8") if command.by_stdin else None,
            stdin=None if command.by_stdin else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except FileNotFoundError:
        raise SchedulerError(
            f"{program} is not here; submit from a login node of the cluster, or keep the script "
            "with --print"
        ) from None
    except subprocess.TimeoutExpired:
        raise SchedulerError(
            f"{program} has not answered within {_ANSWER_S:.0f} s; see whether the job is there "
            "before submitting again"
        ) from None
    if answer.returncode != 0:
        said = (answer.stderr.strip() or answer.stdout.strip())[:2000] or "it says nothing"
        raise SchedulerError(
            f"{program} did not take the job:\n{indent(visible(said, multiline=True), '    ')}\n"
            "    correct what it names by an option such as --partition, --account or --time, or "
            "in the profile; --print shows what is asked for"
        )
    return job_number(scheduler, answer.stdout)


def follow_job(scheduler: Scheduler, job: str, *, log: Path, say: Callable[[str], None]) -> JobEnd:
    """Wait until a job has ended, passing on what it writes.

    Args:
        scheduler: Whose job it is.
        job: Its number.
        log: Its log, which need not exist yet.
        say: Takes text, line breaks included.

    Raises:
        SchedulerError: the scheduler does not know the job any more.
    """
    tail = _Tail(log)
    unknown = 0
    word = ""
    pause_s = _SHORTEST_PAUSE_S
    while True:
        state = _state(scheduler, job)
        say(tail.read())
        if state.word != word and state.stage in ("waiting", "running"):
            say(f"gpuscale: job {job} is {state.stage} ({state.word})\n")
            pause_s = _SHORTEST_PAUSE_S
        word = state.word
        if state.stage == "ended":
            say(tail.read())
            return JobEnd(word=state.word, exit_code=state.exit_code)
        unknown = unknown + 1 if state.stage == "unknown" else 0
        if unknown > _MOST_UNKNOWN:
            raise SchedulerError(
                f"the scheduler no longer knows job {job}; its log is {log}, and the night's "
                f"directory says how it ended. If it still runs, "
                f"'{' '.join(cancel_command(scheduler, job))}' ends it"
            )
        time.sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, pause_s * _GROWTH)


def _state(scheduler: Scheduler, job: str) -> JobState:
    answers: list[str] = []
    for question in questions(scheduler, job):
        # bjobs may be set up to end with the exit code of a job that has ended.
        answers.append(_answer(question, also_failed=scheduler == "lsf"))
        state = state_of(scheduler, tuple(answers))
        if state.stage != "unknown":
            return state
    return state


def _answer(question: tuple[str, ...], *, also_failed: bool) -> str:
    """What a command printed; empty where it failed: the scheduler may be down for a moment.

    Args:
        question: The command.
        also_failed: Whether what it printed counts also where it ended with an error.
    """
    try:
        answer = subprocess.run(
            question,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if also_failed or answer.returncode == 0 else ""


class _Tail:
    """Reads what is new in a file that somebody else writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def read(self) -> str:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except OSError:
            return ""
        self._read += len(new)
        return new.decode("utf-8", errors="replace")
