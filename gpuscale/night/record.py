"""`night.txt`: a line for each fact, `name: value`, for people and for `grep`."""

from collections.abc import Iterable
from pathlib import Path

from gpuscale.formats.text import clean

_RETRIED = "retried as"


def record_text(facts: Iterable[tuple[str, object]]) -> str:
    """The text of a record; a fact whose value is None is left out."""
    lines = [f"{name}: {clean(str(value))}" for name, value in facts if value is not None]
    return "\n".join(lines) + "\n"


def retried_fact(job: str) -> tuple[str, object]:
    """The fact that another job took the place of this one."""
    return _RETRIED, job


def retried_as(night: Path) -> str | None:
    """The job that took the place of the first one of a night; None where there is none."""
    try:
        text = (night / "attempt-1" / "night.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(": ")
        if name == _RETRIED and value:
            return value
    return None
