"""What pytest-benchmark is given of a run: its windows as rounds, and columns that fit a screen."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from pytest_benchmark.utils import NAME_FORMATTERS

from gpuscale.records import Window

_COLUMNS = ("median", "iqr", "rounds")
_NAME = "gpuscale item"


class WindowClock:
    """pytest-benchmark's timer: it stands still but for the seconds that the ranks measured."""

    _now_s = 0.0

    def __call__(self) -> float:
        """The time on this clock, in seconds."""
        return self._now_s

    def show(self, benchmark: Any, windows: Sequence[Window], steps: int) -> None:
        """Enter windows into pytest-benchmark: a round is a window, an iteration is a step."""
        step_times_s = iter([w.time_s / steps for w in windows for _ in range(steps)])

        def advance() -> None:
            # pedantic makes one more call for the target's result, which no window stands for.
            self._now_s += next(step_times_s, 0.0)

        benchmark.pedantic(advance, rounds=len(windows), iterations=steps)


CLOCK = pytest.StashKey[WindowClock]()


def keep_tables_narrow(config: pytest.Config) -> None:
    """Leave of each table what fits 80 columns, unless columns or names were chosen."""
    if config.option.benchmark_columns is None:
        config.option.benchmark_columns = list(_COLUMNS)
    if config.option.benchmark_name == "normal":
        NAME_FORMATTERS[_NAME] = _name
        config.option.benchmark_name = _NAME


def _name(benchmark: Mapping[str, Any]) -> str:
    """`ddp-2gpus-run1` of an item of ours, since the table's title names the case."""
    named: Callable[[Mapping[str, Any]], str] = NAME_FORMATTERS["normal"]
    is_ours = "scaling" in (benchmark["params"] or {})
    return named({**benchmark, "name": benchmark["param"]} if is_ours else benchmark)
