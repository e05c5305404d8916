"""`night.txt`: a line for each fact, `name: value`, for people and for `grep`."""

from collections.abc import Iterable
from pathlib import Path

from gpuscale.night.outcome import NightExit
from gpuscale.night.places import NightFolder
from gpuscale.printable import clean

_RETRIED = "retried as"
_EXIT = "exit"


def record_text(facts: Iterable[tuple[str, object]]) -> str:
    """The text of a record; a fact whose value is None is left out."""
    lines = [f"{name}: {clean(str(value))}" for name, value in facts if value is not None]
    return "\n".join(lines) + "\n"


def retried_fact(job: str) -> tuple[str, object]:
    """The fact that another job took the place of this one."""
    return _RETRIED, job


def retried_as(night: Path) -> str | None:
    """The job that took the place of the first one of a night; None where there is none."""
    return _facts(NightFolder(path=night).first_attempt).get(_RETRIED) or None


def exit_fact(code: NightExit) -> tuple[str, object]:
    """The fact that a night, or an attempt, ended with this code."""
    return _EXIT, int(code)


def has_regressed(folder: NightFolder) -> bool:
    """Whether a night or an attempt has been recorded as regressed."""
    return _facts(folder).get(_EXIT) == str(int(NightExit.REGRESSED))


def _facts(folder: NightFolder) -> dict[str, str]:
    try:
        text = folder.record.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return {name: value for name, _, value in (line.partition(": ") for line in text.splitlines())}
