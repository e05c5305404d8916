"""From the text that is given with an option to its value, or to what is wrong with it."""

import math
import os
from pathlib import Path

from gpuscale.errors import UsageError
from gpuscale.strategies import STRATEGIES

FEWEST_RUNS = 3
"""With two runs to begin with, 95% intervals cover the truth in fewer than 92% of sessions."""
_LARGEST_NUMBER_OF_GPUS = 100_000


def whole_number(
    option: str, text: str, *, at_least: int = 1, at_most: int | None = None, example: str = "1"
) -> int:
    """The number, within its bounds."""
    try:
        number = int(text.strip(), 10)
    except ValueError:
        raise UsageError(
            f"{option}: '{text}' is not a whole number; for example {option} {example}"
        ) from None
    if number < at_least or (at_most is not None and number > at_most):
        limit = f"at least {at_least}" if number < at_least else f"at most {at_most}"
        raise UsageError(f"{option}: {number} is not {limit}; for example {option} {example}")
    return number


def numbers_of_gpus(option: str, text: str) -> tuple[int, ...]:
    """Such as `1,2,4`, ascending."""
    counts = [
        whole_number(option, part, at_most=_LARGEST_NUMBER_OF_GPUS, example="1,2,4")
        for part in text.split(",")
    ]
    if len(set(counts)) != len(counts):
        raise UsageError(f"{option} {text}: a number is given twice; name each once, e.g. 1,2,4")
    return tuple(sorted(counts))


def fewest_and_most_runs(option: str, text: str) -> tuple[int | None, int]:
    """Such as `3:8`; of a single number the fewest are None, as there is no choice."""
    first, colon, last = text.partition(":")
    if not colon:
        return None, whole_number(option, text)
    # The whole of it is what a user can copy.
    fewest, most = (
        whole_number(option, part, at_least=FEWEST_RUNS, example=f"{FEWEST_RUNS}:8")
        for part in (first, last)
    )
    if most < fewest:
        raise UsageError(f"{option}: {text} has its maximum first; write {option} {most}:{fewest}")
    return fewest, most


def seconds(option: str, text: str) -> float:
    """Some time, and not forever."""
    number = _number(text)
    if not (math.isfinite(number) and number > 0):
        raise UsageError(f"{option}: '{text}' is not a number of seconds above 0; try {option} 60")
    return number


def fraction(option: str, text: str) -> float:
    """A percentage such as `2.5%` as a share of 1."""
    number, sign, rest = text.strip().partition("%")
    found = _number(number) / 100 if sign and not rest else math.nan
    if not 0 < found < 1:
        raise UsageError(
            f"{option}: '{text}' is not a percentage above 0% and below 100%; try {option} 1%"
        )
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def one_of(option: str, text: str, known: tuple[str, ...]) -> str:
    """The word, if it is one of those that are known."""
    if text not in known:
        raise UsageError(f"{option}: there is no '{text}'; choose from {', '.join(known)}")
    return text


def known_strategies(option: str, text: str) -> tuple[str, ...]:
    """Such as `dp,ddp`, each once."""
    names = [one_of(option, part.strip(), tuple(STRATEGIES)) for part in text.split(",")]
    return tuple(dict.fromkeys(names))


def absolute_path(option: str, text: str) -> Path:
    """The path, wherever pytest goes from here."""
    return Path(text).expanduser().absolute()


def new_file(option: str, text: str) -> Path:
    """The path of a file that is not there yet."""
    path = absolute_path(option, text)
    if os.path.lexists(path):
        raise UsageError(
            f"{option}: {text} exists already; name a new file (results are never overwritten)"
        )
    return path
