"""Faults injected on purpose, to test whether gpuscale detects them: the values of `--inject`."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuscale.base.errors import UsageError

_KINDS: Mapping[str, tuple[str, str, str | None]] = {
    "data": ("data=5ms", "seconds", None),
    "slow-rank": ("slow-rank=1:1.2", "factor", ":"),
    "compute": ("compute=1.1", "factor", None),
    "hang": ("hang=1@50", "step", "@"),
    "crash": ("crash=0@20", "step", "@"),
}
"""For each kind of fault: an example, the field set by the number, and the separator between rank
and number (None if there is no rank)."""
_MOST_SECONDS = 60.0
_MOST_FACTOR = 100.0
_WHOLE_NUMBERS: Mapping[str, tuple[int, int]] = {"rank": (0, 100_000), "step": (1, 1_000_000_000)}
"""Smallest and largest valid value of each whole-number field."""
_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|µs|ms|s)")
_FACTOR = re.compile(r"\d+(?:\.\d+)?")
_NUMBER = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One injected fault; fields that do not apply to this kind of fault are None."""

    kind: str
    rank: int | None = None
    """Affected rank; None for all ranks."""
    seconds: float | None = None
    """For `data`: additional seconds that every rank waits for each batch."""
    factor: float | None = None
    """For `slow-rank` and `compute`: factor by which the computation of a step is slowed down."""
    step: int | None = None
    """For `hang` and `crash`: training step at which the fault occurs, counted from 1."""


def parse_injection(text: str) -> Injection:
    """Parse a fault such as `slow-rank=1:1.2`; raise a UsageError if it is invalid."""
    kind, equals, value = text.strip().partition("=")
    if not equals or kind not in _KINDS:
        examples = ", ".join(example for example, *_ in _KINDS.values())
        raise UsageError(f"--inject: '{text}' is no fault that is known; try one of {examples}")
    example, field, behind_rank = _KINDS[kind]
    fields: dict[str, Any] = {}
    if behind_rank is not None:
        rank, found, value = value.partition(behind_rank)
        if not found:
            raise UsageError(f"--inject: '{text}' lacks its '{behind_rank}'; for example {example}")
        fields["rank"] = _number("rank", rank, text)
    fields[field] = _number(field, value, text)
    return Injection(kind=kind, **fields)


def parse_injections(texts: Iterable[str]) -> tuple[Injection, ...]:
    """Parse several faults; raise a UsageError if two of the same kind affect the same rank."""
    found: list[Injection] = []
    first_of: dict[tuple[str, int | None], str] = {}
    for text in texts:
        injection = parse_injection(text)
        first = first_of.setdefault((injection.kind, injection.rank), text)
        if len(first_of) == len(found):
            raise UsageError(f"--inject: {first} and {text} are of one kind; give only one of them")
        found.append(injection)
    return tuple(found)


def _number(field: str, value: str, text: str) -> float:
    """Parse a field of the fault in `text`; raise a UsageError if the value is invalid."""
    if field == "seconds":
        written = _DURATION.fullmatch(value)
        number = float(written[1]) * _UNITS[written[2]] if written else 0.0
        is_valid = 0 < number <= _MOST_SECONDS
        demand = f" needs a time above 0 and up to {_MOST_SECONDS:g} s, with its unit (us, ms or s)"
        demand += "; for example data=5ms"
    elif field == "factor":
        number = float(value) if _FACTOR.fullmatch(value) else 0.0
        is_valid = 1 < number <= _MOST_FACTOR
        demand = f" needs a factor above 1 and up to {_MOST_FACTOR:g}, where 1.2 is 20% longer"
    else:
        least, most = _WHOLE_NUMBERS[field]
        number = int(value) if _NUMBER.fullmatch(value) else -1
        is_valid = least <= number <= most
        demand = f": the {field} is a whole number from {least} to {most}, not '{value}'"
    if not is_valid:
        raise UsageError(f"--inject: '{text}'{demand}")
    return number
