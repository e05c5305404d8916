"""The parts of a log format: how lines are read, and what they report."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Counts = Literal["steps", "iterations", "epochs", "samples", "tokens"]
"""Unit of a counter; `iterations` are groups of steps whose size the lines do not report."""

Unit = Literal["s/step", "steps/s", "samples/s", "tokens/s"]

Span = Literal["step", "interval", "run"]
"""Steps that a reported speed covers: only the latest step, roughly those since the previous line,
or all since the start of the run or epoch."""

NUMBER = r"[-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?|(?i:nan|inf(?:inity)?)\b)"


@dataclass(frozen=True, slots=True)
class Mark:
    """Content of one line; fields that the line does not report are None."""

    step: int | None = None
    """Value of the counter; None in a line that reports something else."""
    epoch: int | None = None
    total_steps: int | None = None
    """Final value of the counter; serves to distinguish different loops or progress bars."""
    samples_per_step: int | None = None
    """Samples per step over all ranks."""
    figure: float | None = None
    """Speed that the script reports, in the unit of the log format."""
    loss: float | None = None
    validated: bool = False
    """True if the line shows that a validation took place: before this line if it reports a step,
    otherwise around the time of this line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """How to read the lines of one kind of script."""

    name: str
    project: str
    example: str
    """A line that a real script printed."""
    read: Callable[[str], Mark | None]
    """Function that reads a line returned by `plain`; returns None if the format is different."""
    counts: Counts = "steps"
    since_last: bool = False
    """True if the number in each line counts steps since the previous line, not since the start."""
    unit: Unit | None = None
    """Unit of the speed that lines report; None if they report no speed."""
    span: Span | None = None
    of_all_ranks: bool = True
    """False if the reported speed is only that of the process that prints the line."""
    every_rank_prints: bool = False
    known_by: str = ""
    """Text that at least one line must contain, to distinguish the format from similar formats."""
    generic: int = 0
    """0 for a specific format, more for generic ones. A format is used only if no less generic one
    fits, since many scripts print such lines."""


def number(value: Any) -> float | None:
    """Parse a number from JSON or text (thousands separators are allowed); None if invalid."""
    try:
        return float(value.replace(",", "").rstrip(".") if isinstance(value, str) else value)
    except (TypeError, ValueError, OverflowError):
        return None


def whole(text: str | None) -> int | None:
    """Parse a whole number, which may have thousands separators."""
    return None if text is None else int(text.replace(",", ""))


VALIDATION = Mark(validated=True)


def reader(
    pattern: str, *, holds: str, validation: str | None = None, figure_scale: float = 1
) -> Callable[[str], Mark | None]:
    """Return a function that reads lines containing a match of a pattern.

    Args:
        pattern: Regular expression with the groups step, epoch, total, samples, figure, loss.
        holds: Text that each such line contains; searching for text is faster than for a pattern.
        validation: Text contained in lines that report a validation.
        figure_scale: Factor that converts the unit of the line into the unit of the format.
    """
    search = re.compile(pattern).search

    def read(line: str) -> Mark | None:
        if validation is not None and validation in line:
            return VALIDATION
        if holds not in line:
            return None
        found = search(line)
        return found and mark_of(found.groupdict(), figure_scale)

    return read


def mark_of(told: dict[str, str | None], figure_scale: float = 1) -> Mark:
    """Return the mark with the values of the named groups that matched in a line."""
    figure = number(told.get("figure"))
    return Mark(
        step=whole(told.get("step")),
        epoch=whole(told.get("epoch")),
        total_steps=whole(told.get("total")),
        samples_per_step=whole(told.get("samples")),
        figure=None if figure is None else figure * figure_scale,
        loss=number(told.get("loss")),
    )
