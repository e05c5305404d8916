"""One line of a training's output, and a format that reads such lines."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Counts = Literal["steps", "iterations", "epochs", "samples", "tokens"]
"""What a counter counts: steps; blocks of steps whose length the line does not tell; epochs;
samples or tokens that were trained on."""

Unit = Literal["s/step", "steps/s", "samples/s", "tokens/s"]

Span = Literal["step", "interval", "run"]
"""What a figure is of: this step, the steps since about the last line, or all since the start of
the run or the epoch."""

NUMBER = r"[-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?|(?i:nan|inf(?:inity)?)\b)"


@dataclass(frozen=True, slots=True)
class Mark:
    """What one line tells; None for what it does not."""

    step: int | None = None
    """The counter; None in a line that tells only other things of the run."""
    epoch: int | None = None
    total_steps: int | None = None
    """Where the counter ends; marks with different ends belong to different loops or bars."""
    samples_per_step: int | None = None
    """Over all ranks."""
    figure: float | None = None
    """The speed that the script reports, in its format's unit."""
    loss: float | None = None
    validated: bool = False
    """The time between the marks before and after, or up to this one if it has a step, holds a
    validation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """How the lines of one kind of script are read, and what they mean."""

    name: str
    project: str
    example: str
    """A real line."""
    read: Callable[[str], Mark | None]
    """What a line tells, without colours (`plain`); None for any other line."""
    counts: Counts = "steps"
    since_last: bool = False
    """True where the number is of what was done since the last such line, and no running count."""
    unit: Unit | None = None
    """Of the reported figure; None where there is none."""
    span: Span | None = None
    of_all_ranks: bool = True
    """False where the figure is that of the one rank, or process, that prints it."""
    every_rank_prints: bool = False
    known_by: str = ""
    """Text without which the format is not recognised, where others read the same lines."""
    generic: bool = False
    """Many scripts print such lines beside their own: another format goes before it."""


def number(value: Any) -> float | None:
    """The number that JSON has, or that a text says with or without commas between thousands."""
    try:
        return float(value.replace(",", "").rstrip(".") if isinstance(value, str) else value)
    except (TypeError, ValueError, OverflowError):
        return None


def whole(text: str | None) -> int | None:
    """The whole number that a text says, with or without commas between thousands."""
    return None if text is None else int(text.replace(",", ""))


VALIDATION = Mark(validated=True)


def reader(
    pattern: str, *, holds: str, validation: str | None = None, figure_scale: float = 1
) -> Callable[[str], Mark | None]:
    """Returns a function that reads the lines in which a pattern is found.

    Groups of the pattern: step, epoch, total, samples, figure, loss.

    Args:
        pattern: A regular expression, searched for anywhere in the line.
        holds: Text in each such line, since looking for it is much quicker than the pattern.
        validation: Text of the lines that tell of a validation, where these hold it.
        figure_scale: From the line's unit to the format's.
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
    """What named texts of a line say."""
    figure = number(told.get("figure"))
    return Mark(
        step=whole(told.get("step")),
        epoch=whole(told.get("epoch")),
        total_steps=whole(told.get("total")),
        samples_per_step=whole(told.get("samples")),
        figure=None if figure is None else figure * figure_scale,
        loss=number(told.get("loss")),
    )
