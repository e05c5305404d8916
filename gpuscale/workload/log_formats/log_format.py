"""The parts of a log format: how lines are read, and what they report."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Counts = Literal["steps", "iterations", "epochs", "samples", "tokens"]
"""The unit of a counter; `iterations` are blocks of steps whose length the line does not report."""

Unit = Literal["s/step", "steps/s", "samples/s", "tokens/s"]

Span = Literal["step", "interval", "run"]
"""The steps that a figure covers: this one, those since about the last line, or all since the start
of the run or the epoch."""

NUMBER = r"[-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?|(?i:nan|inf(?:inity)?)\b)"


@dataclass(frozen=True, slots=True)
class Mark:
    """The content of one line; None for anything that it does not report."""

    step: int | None = None
    """The counter; None in a line that reports something else."""
    epoch: int | None = None
    total_steps: int | None = None
    """The end of the counter; marks with different ends belong to different loops or bars."""
    samples_per_step: int | None = None
    """Over all ranks."""
    figure: float | None = None
    """The speed that the script reports, in the unit of the format."""
    loss: float | None = None
    validated: bool = False
    """The interval around this mark, or up to it if it has a step, includes a validation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """How to read the lines of one kind of script."""

    name: str
    project: str
    example: str
    """A real line."""
    read: Callable[[str], Mark | None]
    """Reads a line without colours (`plain`); returns None for any other line."""
    counts: Counts = "steps"
    since_last: bool = False
    """True if the number counts since the last such line, and is no running count."""
    unit: Unit | None = None
    """Unit of the reported figure; None without one."""
    span: Span | None = None
    of_all_ranks: bool = True
    """False if the figure is that of the rank, or process, that prints it."""
    every_rank_prints: bool = False
    known_by: str = ""
    """Text that some line must contain, to tell the format from others that read the same lines."""
    generic: bool = False
    """Many scripts print such lines besides their own, so any other format takes precedence."""


def number(value: Any) -> float | None:
    """Parse a number of JSON, or of a text with or without commas between thousands."""
    try:
        return float(value.replace(",", "").rstrip(".") if isinstance(value, str) else value)
    except (TypeError, ValueError, OverflowError):
        return None


def whole(text: str | None) -> int | None:
    """Parse a whole number, with or without commas between thousands."""
    return None if text is None else int(text.replace(",", ""))


VALIDATION = Mark(validated=True)


def reader(
    pattern: str, *, holds: str, validation: str | None = None, figure_scale: float = 1
) -> Callable[[str], Mark | None]:
    """Return a function that reads the lines in which a pattern is found.

    Args:
        pattern: Regular expression with the groups step, epoch, total, samples, figure, loss.
        holds: Text in each such line; to search for it is much faster than for the pattern.
        validation: Text of lines that report a validation.
        figure_scale: Factor from the line's unit to the format's.
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
    """The mark of named texts from a line."""
    figure = number(told.get("figure"))
    return Mark(
        step=whole(told.get("step")),
        epoch=whole(told.get("epoch")),
        total_steps=whole(told.get("total")),
        samples_per_step=whole(told.get("samples")),
        figure=None if figure is None else figure * figure_scale,
        loss=number(told.get("loss")),
    )
