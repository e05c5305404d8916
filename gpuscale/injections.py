"""Faults that are made on purpose, to see whether gpuscale finds them: the texts of `--inject`."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gpuscale.errors import UsageError

InjectionKind = Literal["data", "slow-rank", "compute", "hang", "crash"]

_MOST_SECONDS = 60.0
_MOST_FACTOR = 100.0
_LARGEST_RANK = 100_000
_LARGEST_STEP = 1_000_000_000
_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|µs|ms|s)")
_FACTOR = re.compile(r"\d+(?:\.\d+)?")
_NUMBER = re.compile(r"[0-9]{1,12}")
_EXAMPLES = {
    "data": "data=5ms",
    "slow-rank": "slow-rank=1:1.2",
    "compute": "compute=1.1",
    "hang": "hang=1@50",
    "crash": "crash=0@20",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One fault; the fields that its kind does not use are None."""

    kind: InjectionKind
    rank: int | None = None
    """The rank that it happens to; None is all of them."""
    seconds: float | None = None
    """`data`: how much longer every rank waits for each batch."""
    factor: float | None = None
    """`slow-rank` and `compute`: how many times its time a step's computation takes."""
    step: int | None = None
    """`hang` and `crash`: the training step, counted from 1, in which it happens."""


def parse_injection(text: str) -> Injection:
    """The fault that a text stands for, such as `data=5ms` or `slow-rank=1:1.2`.

    Raises:
        UsageError: the text means nothing; the message names what would.
    """
    kind, equals, value = text.strip().partition("=")
    match kind if equals else None:
        case "data":
            return Injection(kind="data", seconds=_seconds(text, value))
        case "compute":
            return Injection(kind="compute", factor=_factor(text, value))
        case "slow-rank":
            rank, factor = _pair(text, kind, value, ":")
            return Injection(
                kind="slow-rank",
                rank=_whole(text, rank, "rank", 0, _LARGEST_RANK),
                factor=_factor(text, factor),
            )
        case "hang" | "crash" as kind:
            rank, step = _pair(text, kind, value, "@")
            return Injection(
                kind=kind,
                rank=_whole(text, rank, "rank", 0, _LARGEST_RANK),
                step=_whole(text, step, "step", 1, _LARGEST_STEP),
            )
        case _:
            raise UsageError(
                f"--inject: '{text}' is no fault that is known; try one of "
                f"{', '.join(_EXAMPLES.values())}"
            )


def parse_injections(texts: Iterable[str]) -> tuple[Injection, ...]:
    """The faults of several texts, which may hit one rank in each way only once.

    Raises:
        UsageError: a text means nothing, or says the same thing as another one.
    """
    found: dict[tuple[InjectionKind, int | None], str] = {}
    injections = []
    for text in texts:
        injection = parse_injection(text)
        target = (injection.kind, injection.rank)
        if target in found:
            raise UsageError(
                f"--inject: {found[target]} and {text} are of one kind; give only one of them"
            )
        found[target] = text
        injections.append(injection)
    return tuple(injections)


def _pair(text: str, kind: str, value: str, separator: str) -> tuple[str, str]:
    first, found, second = value.partition(separator)
    if not found:
        raise UsageError(
            f"--inject: '{text}' lacks its '{separator}'; for example {_EXAMPLES[kind]}"
        )
    return first, second


def _seconds(text: str, value: str) -> float:
    match = _DURATION.fullmatch(value)
    seconds = math.nan if match is None else float(match[1]) * _UNITS[match[2]]
    if not 0 < seconds <= _MOST_SECONDS:
        raise UsageError(
            f"--inject: '{text}' needs a time above 0 and up to {_MOST_SECONDS:g} s, "
            "with its unit (us, ms or s); for example data=5ms"
        )
    return seconds


def _factor(text: str, value: str) -> float:
    factor = float(value) if _FACTOR.fullmatch(value) else math.nan
    if not 1 < factor <= _MOST_FACTOR:
        raise UsageError(
            f"--inject: '{text}' needs a factor above 1 and up to {_MOST_FACTOR:g}, "
            "where 1.2 is 20% slower"
        )
    return factor


def _whole(text: str, value: str, what: str, at_least: int, at_most: int) -> int:
    number = int(value) if _NUMBER.fullmatch(value) else -1
    if not at_least <= number <= at_most:
        raise UsageError(
            f"--inject: '{text}': the {what} is a whole number from {at_least} to {at_most}, "
            f"not '{value}'"
        )
    return number
