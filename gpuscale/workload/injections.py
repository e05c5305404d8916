"""Faults injected on purpose, to test whether gpuscale detects them: the values of `--inject`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpuscale.base.errors import UsageError

_NUMBER, _WHOLE = r"\d+(?:\.\d+)?", r"\d{1,9}"
_KINDS: Mapping[str, tuple[str, str]] = {
    "data": (rf"(?P<seconds>{_NUMBER})(?P<unit>us|µs|ms|s)", "data=5ms"),
    "slow-rank": (rf"(?P<rank>{_WHOLE}):(?P<factor>{_NUMBER})", "slow-rank=1:1.2"),
    "compute": (rf"(?P<factor>{_NUMBER})", "compute=1.1"),
    "hang": (rf"(?P<rank>{_WHOLE})@(?P<step>{_WHOLE})", "hang=1@50"),
    "crash": (rf"(?P<rank>{_WHOLE})@(?P<step>{_WHOLE})", "crash=0@20"),
}
"""Pattern of the value, and an example, for each kind of fault."""
_MOST_SECONDS = 60.0
_MOST_FACTOR = 100.0
_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One injected fault; fields that do not apply to this kind of fault are None."""

    kind: str
    rank: int | None = None
    """Affected rank; None for all ranks."""
    seconds: float | None = None
    """Additional seconds that every rank waits for each batch; only for `data`."""
    factor: float | None = None
    """Factor by which the computation of a step is slowed down; for `slow-rank` and `compute`."""
    step: int | None = None
    """Training step at which the fault occurs, counted from 1; for `hang` and `crash`."""


def parse_injection(text: str) -> Injection:
    """Parse a fault such as `slow-rank=1:1.2`; raise a UsageError if it is invalid."""
    kind, _, value = text.strip().partition("=")
    pattern, _ = _KINDS.get(kind, ("(?!)", ""))
    if found := re.fullmatch(pattern, value, re.ASCII):
        given = found.groupdict()
        injection = Injection(
            kind=kind,
            rank=int(given["rank"]) if "rank" in given else None,
            seconds=float(given["seconds"]) * _UNITS[given["unit"]] if "seconds" in given else None,
            factor=float(given["factor"]) if "factor" in given else None,
            step=int(given["step"]) if "step" in given else None,
        )
        if _is_within_limits(injection):
            return injection
    examples = ", ".join(example for _, example in _KINDS.values())
    raise UsageError(
        f"--inject: '{text}' is no fault that is known; try one of {examples}, with a time above 0 "
        f"and up to {_MOST_SECONDS:g} s, a factor above 1 and up to {_MOST_FACTOR:g}, or a step "
        "from 1"
    )


def _is_within_limits(injection: Injection) -> bool:
    return (
        (injection.seconds is None or 0 < injection.seconds <= _MOST_SECONDS)
        and (injection.factor is None or 1 < injection.factor <= _MOST_FACTOR)
        and injection.step != 0
    )
