"""How windows that the ranks measured get into pytest-benchmark's table."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gpuscale.records import Window


class BenchmarkFixture(Protocol):
    """The part of pytest-benchmark's fixture that is used here."""

    extra_info: dict[str, object]
    params: dict[str, object] | None
    """Values of the item's parameters, for the JSON."""
    skipped: bool

    def pedantic(self, target: Callable[[], None], *, rounds: int, iterations: int) -> object:
        """Time so many calls of `target`."""
        ...


class WindowClock:
    """A timer that stands still but for the seconds that the ranks measured."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        """The time on this clock, in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let that much time pass."""
        self._now_s += seconds


def show_windows(
    benchmark: BenchmarkFixture, clock: WindowClock, windows: Sequence[Window], steps: int
) -> None:
    """Enter windows into pytest-benchmark: a round is a window, an iteration is a step."""
    step_times_s = iter([w.time_s / steps for w in windows for _ in range(steps)])

    def advance() -> None:
        # pedantic makes one more call for the target's result, which no window stands for.
        clock.advance(next(step_times_s, 0.0))

    benchmark.pedantic(advance, rounds=len(windows), iterations=steps)
