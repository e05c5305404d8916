"""The lines by which a training tells its steps: a stand-in with the protocol only."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

_PREFIX = "GPUSCALE "
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")


@dataclass(frozen=True, slots=True)
class Mark:
    """What one line tells; None for what it does not."""

    step: int | None = None
    epoch: int | None = None
    total_steps: int | None = None
    samples_per_step: int | None = None
    loss: float | None = None
    validated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """How the lines of one kind of script are read."""

    name: str
    read: Callable[[str], Mark | None]
    counts: str = "steps"
    generic: bool = False


class _Line(msgspec.Struct, frozen=True):
    step: int
    samples: int | None = None
    epoch: int | None = None
    loss: float | str | None = None


def _read(line: str) -> Mark | None:
    _, found, rest = line.partition(_PREFIX)
    if not found:
        return None
    try:
        told = msgspec.json.decode(rest, type=_Line)
        loss = None if told.loss is None else float(told.loss)
    except (msgspec.DecodeError, ValueError):
        return None
    return Mark(step=told.step, epoch=told.epoch, samples_per_step=told.samples, loss=loss)


FORMATS: Mapping[str, LogFormat] = {"gpuscale": LogFormat(name="gpuscale", read=_read)}


def plain(line: str) -> str:
    """The line without colours."""
    return _ESCAPES.sub("", line)


def recognised(lines: Iterable[str]) -> tuple[LogFormat, ...]:
    """The formats that fit lines of one script."""
    kept = list(lines)
    return tuple(one for one in FORMATS.values() if any(map(one.read, kept)))


def by_regex(pattern: str) -> LogFormat:
    """The format of a user's own pattern."""
    compiled = re.compile(pattern)

    def read(line: str) -> Mark | None:
        found = compiled.search(line)
        return None if found is None else Mark(step=int(found["step"]))

    return LogFormat(name="step-regex", read=read)
