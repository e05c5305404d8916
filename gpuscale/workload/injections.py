"""Faults injected on purpose, to test whether gpuscale detects them: the values of `--inject`."""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta

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


class Injection(msgspec.Struct, frozen=True, kw_only=True):
    """One injected fault; fields that do not apply to this kind of fault are None."""

    kind: str
    rank: int | None = None
    """Affected rank; None for all ranks."""
    seconds: Annotated[float, Meta(gt=0, le=_MOST_SECONDS)] | None = None
    """Additional seconds that every rank waits for each batch; only for `data`."""
    factor: Annotated[float, Meta(gt=1, le=_MOST_FACTOR)] | None = None
    """Factor by which the computation of a step is slowed down; for `slow-rank` and `compute`."""
    step: Annotated[int, Meta(ge=1)] | None = None
    """Training step at which the fault occurs, counted from 1; for `hang` and `crash`."""


def parse_injection(text: str) -> Injection:
    """Parse a fault such as `slow-rank=1:1.2`; raise a UsageError if it is invalid."""
    kind, _, value = text.strip().partition("=")
    pattern, _ = _KINDS.get(kind, ("(?!)", ""))
    if found := re.fullmatch(pattern, value, re.ASCII):
        given: dict[str, object] = {"kind": kind, **found.groupdict()}
        if "seconds" in given:
            given["seconds"] = float(found["seconds"]) * _UNITS[found["unit"]]
        with suppress(msgspec.ValidationError):
            return msgspec.convert(given, Injection, strict=False)
    examples = ", ".join(example for _, example in _KINDS.values())
    raise UsageError(
        f"--inject: '{text}' is not a known fault; try one of {examples}, with a time above 0 "
        f"and up to {_MOST_SECONDS:g} s, a factor above 1 and up to {_MOST_FACTOR:g}, or a step "
        "from 1"
    )
