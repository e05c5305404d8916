"""A night's folder, its record, and its exit code."""

from collections.abc import Iterable, Mapping
from datetime import date
from enum import IntEnum
from pathlib import Path

from gpuscale.clusters.schedulers.base import Ending, JobState
from gpuscale.errors import ExitCode, FileError, UsageError
from gpuscale.night.attempt import Attempt, signal_name
from gpuscale.printable import clean, visible

RESULTS, PYTEST_LOG, ITEMS = "results.jsonl", "pytest.log", "junit.xml"
BASELINE, RECORD, EVIDENCE = "baseline.json", "night.txt", "evidence.json"
MACHINE_FAULT = "fault.json"
FIRST_ATTEMPT = "attempt-1"
"""Names in a night's folder; what an attempt left that was made again has a folder of its own."""
RETRY_OF = "GPUSCALE_RETRY_OF"
"""The variable that tells a job in whose night's folder it takes the place of another."""
RETRIED_AS = "retried as"
"""The fact that another job took the place of this one."""
_EXIT = "exit"


class NightExit(IntEnum):
    """The exit codes of a night; the first five are those of `gpuscale compare`."""

    OK = 0
    REGRESSED = 1
    FAILED = 2
    INCONCLUSIVE = 3
    NOTHING_COMPARABLE = 4
    INCOMPLETE = 5
    INFRASTRUCTURE = 6


_MEANINGS = {
    NightExit.OK: "ok",
    NightExit.REGRESSED: "regressed",
    NightExit.FAILED: "it could not be run or judged",
    NightExit.INCONCLUSIVE: "not shown to be fine",
    NightExit.NOTHING_COMPARABLE: "nothing comparable was measured",
    NightExit.INCOMPLETE: "not everything was measured",
    NightExit.INFRASTRUCTURE: "infrastructure failed",
}
_VERDICTS = frozenset(ExitCode) - {ExitCode.USAGE}


def night_exit(
    attempt: Attempt, compare_exit: int | None, *, first_regressed: bool = False
) -> NightExit:
    """The exit code of a night.

    A regression wins, also beside a failed item; then a comparison that broke, then the
    infrastructure, and then what is missing: a verdict on half of the numbers is not the one that
    was asked for. That a first attempt, with runs of its own, regressed stands unless the last one
    judged all that was asked for. `compare_exit` is None where there was nothing to compare with.
    """
    is_broken = compare_exit is not None and compare_exit not in _VERDICTS
    if first_regressed and (is_broken or not attempt.is_complete or not attempt.has_measured):
        return NightExit.REGRESSED
    if is_broken:
        return NightExit.FAILED
    if compare_exit == NightExit.REGRESSED:
        return NightExit.REGRESSED
    if attempt.faults:
        return NightExit.INFRASTRUCTURE
    if not attempt.has_measured:
        return NightExit.NOTHING_COMPARABLE if attempt.could_run else NightExit.FAILED
    if not attempt.is_complete:
        return NightExit.INCOMPLETE
    return NightExit.NOTHING_COMPARABLE if compare_exit is None else NightExit(compare_exit)


def night_meaning(
    code: NightExit, attempt: Attempt, compare_exit: int | None, *, has_baseline: bool
) -> str:
    """The end of a night, in words."""
    meaning = _MEANINGS[code]
    if code == NightExit.NOTHING_COMPARABLE and not attempt.has_measured:
        meaning = "nothing was measured"
    elif code == NightExit.NOTHING_COMPARABLE and not has_baseline:
        meaning = "measured, and judged by nothing: no baseline was named"
    elif code == NightExit.REGRESSED and compare_exit != NightExit.REGRESSED:
        meaning += ", by what the first attempt measured: see attempt-1"
    if attempt.stopped_by is not None:
        meaning += f"; stopped by {signal_name(attempt.stopped_by)} (the job's time limit?)"
    return meaning


def job_exit(state: JobState) -> tuple[NightExit, str]:
    """The night's exit code and what it means, never 0 for a job that did not end well.

    A signal, or a code that no night ends with, comes from outside of it.
    """
    if state.ending is Ending.RESOURCES_LOST:
        return NightExit.INFRASTRUCTURE, _MEANINGS[NightExit.INFRASTRUCTURE]
    if state.ending is Ending.TIME_UP:
        return NightExit.INCOMPLETE, "its time was up; what had been measured by then is kept"
    if state.remark is not None:
        return NightExit.FAILED, state.remark
    if state.exit_code == NightExit.OK and state.ending is not Ending.COMPLETED:
        return NightExit.FAILED, "somebody or something ended it; see its log"
    if state.exit_code in _MEANINGS:
        return NightExit(state.exit_code), _MEANINGS[NightExit(state.exit_code)]
    code = "no exit code" if state.exit_code is None else f"exit code {state.exit_code}"
    return NightExit.FAILED, f"{code}, which is none of a night's; see its log"


def exit_of_both(first: int, last: int) -> int:
    """The exit code of a night that two jobs had a part in.

    A regression that the first has seen stands, unless the second could judge for itself.
    """
    return first if first == NightExit.REGRESSED and last not in _VERDICTS else last


def nights_folder(environment: Mapping[str, str]) -> Path:
    """Where all nights are."""
    return Path(environment.get("GPUSCALE_NIGHTLY_DIR") or ".gpuscale/nightly")


def new_night(folder: Path, *, name: str, job: str, day: date) -> Path:
    """Make the folder of a night, named by date and job: two jobs never write to one."""
    for what, text in (("NAME", name), ("JOB", job)):
        if not text or "/" in text or text.startswith("."):
            raise UsageError(f"{what}: '{visible(text)}' is no name of a folder; use a word for it")
    path = folder / name / f"{day.isoformat()}_{job}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    except FileExistsError:
        problem = "is there already; every night needs a job name of its own"
        raise FileError(visible(str(path)), problem) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problem = f"cannot be made ({reason}); set GPUSCALE_NIGHTLY_DIR to a folder to write to"
        raise FileError(visible(str(path)), problem) from None
    return path


def has_regressed(folder: Path) -> bool:
    """True where a night or an attempt has been recorded as regressed."""
    return _facts(folder).get(_EXIT) == str(int(NightExit.REGRESSED))


def next_job(nights: Path, job: str) -> str | None:
    """The job that was submitted in place of this one, which failed for its nodes."""
    for night in nights.glob(f"*_{job}"):
        return _facts(night / FIRST_ATTEMPT).get(RETRIED_AS) or None
    return None


def _facts(folder: Path) -> dict[str, str]:
    try:
        text = (folder / RECORD).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return {name: value for name, _, value in (line.partition(": ") for line in text.splitlines())}


def record_text(meaning: str, code: NightExit, facts: Iterable[tuple[str, object]]) -> str:
    """`night.txt`: a line for each fact, `name: value`, but for those whose value is None."""
    known = [("night", meaning), (_EXIT, int(code)), *facts]
    lines = [f"{name}: {clean(str(value))}" for name, value in known if value is not None]
    return "\n".join(lines) + "\n"
