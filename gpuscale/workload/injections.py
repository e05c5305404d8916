"""Faults injected on purpose (`--inject`), to test whether gpuscale detects them."""

import os
import re
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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


class Faults:
    """The faults to inject into one rank; if there are none, every method does nothing."""

    def __init__(
        self, injections: Sequence[Injection], *, rank: int, synchronize: Callable[[], None]
    ) -> None:
        mine = [injection for injection in injections if injection.rank in (None, rank)]
        self.any_is_slow = any(injection.factor is not None for injection in injections)
        """True if the injections slow down any rank."""
        self._data_s = sum(i.seconds or 0.0 for i in mine if i.kind == "data")
        self._slower_by = sum(i.factor - 1 for i in mine if i.factor is not None)
        self._hang_at = {i.step for i in mine if i.kind == "hang"}
        self._crash_at = {i.step for i in mine if i.kind == "crash"}
        self._synchronize = synchronize
        self._owed_s = 0.0
        """Seconds of delay that are still due; negative if sleeps have overrun."""
        self._forward_times_s: list[float] = []
        self._steps_per_forward: float | None = None

    def set_pace(self, pace_s: float) -> None:
        """Set the step time in seconds, to which the injected slowdown will be proportional."""
        if self._slower_by:
            # Delayed data are a separate fault, which the slowdown must not multiply.
            own_s = pace_s - self._data_s
            self._steps_per_forward = own_s / statistics.median(self._forward_times_s)

    def at_step(self, number: int) -> None:
        """Hang or crash if an injection is due at this step, counted from 1."""
        if self._slower_by and self._steps_per_forward is None:
            self._forward_times_s.append(0.0)
        if number in self._hang_at:
            # In a loop, since signal.pause returns after a handled signal.
            while True:
                signal.pause()
        if number in self._crash_at:
            os.kill(os.getpid(), signal.SIGSEGV)

    def in_data(self) -> None:
        """Delay a batch by the injected seconds, minus the time by which earlier sleeps overran."""
        self._owed_s += self._data_s
        if self._owed_s > 0:
            began_s = time.perf_counter()
            time.sleep(self._owed_s)
            self._owed_s -= time.perf_counter() - began_s

    @contextmanager
    def in_forward(self) -> Iterator[None]:
        """Delay a forward pass's end in proportion to its duration, if a slowdown is injected."""
        if not self._slower_by:
            yield
            return
        began_s = self._now_s()
        yield
        # So the rank is slower by its factor even if other load changes the duration of steps.
        forward_s = self._now_s() - began_s
        if self._steps_per_forward is None:
            self._forward_times_s[-1] += forward_s
        else:
            # Stay busy: a core that has slept computes more slowly at first, beyond the factor.
            until_s = time.perf_counter() + self._slower_by * self._steps_per_forward * forward_s
            while time.perf_counter() < until_s:
                pass

    def _now_s(self) -> float:
        """Wait until the devices have finished all queued work, then return the time in seconds."""
        self._synchronize()
        return time.perf_counter()
