"""What the end of a job says of its night."""

from pathlib import Path

from gpuscale.night import MEANINGS, NightExit, retried_as
from gpuscale.night.outcome import VERDICTS
from gpuscale.submission import JobEnd

# Slurm's words for what it did itself, since its exit codes say little of it. SGE and LSF have no
# such words among those that are read.
_LOST_NODE = ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL")
_LOST_RESOURCES = ("PREEMPTED", "OUT_OF_MEMORY")
_OUT_OF_TIME = ("TIMEOUT", "DEADLINE")
_ENDED_WELL = ("COMPLETED", "DONE", "done")


def exit_code_of(end: JobEnd) -> tuple[int, str]:
    """The night's exit code and what it means, which is never 0 for a job that did not end well.

    A signal, or a code that no night ends with, comes from outside of it.
    """
    if end.word in (*_LOST_NODE, *_LOST_RESOURCES):
        return NightExit.INFRASTRUCTURE, MEANINGS[NightExit.INFRASTRUCTURE]
    if end.word in _OUT_OF_TIME:
        return NightExit.INCOMPLETE, "its time was up; what had been measured by then is kept"
    if end.word == "REVOKED":
        return NightExit.FAILED, "another cluster of the federation has started it; see there"
    if end.word.startswith("Eqw"):
        return NightExit.FAILED, "it could not be started and stays in the queue; qdel removes it"
    if end.exit_code == NightExit.OK and end.word not in _ENDED_WELL:
        return NightExit.FAILED, "somebody or something ended it; see its log"
    if end.exit_code is not None and end.exit_code in MEANINGS:
        return end.exit_code, MEANINGS[NightExit(end.exit_code)]
    code = "no exit code" if end.exit_code is None else f"exit code {end.exit_code}"
    return NightExit.FAILED, f"{code}, which is none of a night's; see its log"


def verdict_of_both(first: int, last: int) -> int:
    """The exit code of a night that two jobs had a part in.

    A regression that the first has seen stands, unless the second could judge for itself.
    """
    return first if first == NightExit.REGRESSED and last not in VERDICTS else last


def next_job(nights: Path, job: str) -> str | None:
    """The job that was submitted in place of this one, which failed for its nodes."""
    for night in nights.glob(f"*_{job}"):
        return retried_as(night)
    return None
