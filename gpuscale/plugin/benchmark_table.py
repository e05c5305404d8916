"""Show runs in pytest-benchmark's table, with windows as rounds and only as many columns as fit."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pytest_benchmark.utils import NAME_FORMATTERS

from gpuscale.records import Run

_COLUMNS = ("median", "iqr", "rounds")
_NAME = "gpuscale item"


class _WindowClock:
    """Timer for pytest-benchmark that advances only by the seconds that the ranks measured."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


_CLOCK = pytest.StashKey[_WindowClock]()


def add_clock(item: pytest.Item, group: str) -> None:
    """Have pytest-benchmark time an item by the ranks' clock, and list it in the table `group`."""
    item.stash[_CLOCK] = clock = _WindowClock()
    item.add_marker(pytest.mark.benchmark(timer=clock, group=group))


def enter_run(item: pytest.Item, benchmark: Any, label: str, run: Run) -> None:
    """Pass a valid run to pytest-benchmark, with windows as rounds and steps as iterations."""
    steps, clock = run.steps_per_window, item.stash[_CLOCK]
    assert steps is not None
    facts = {
        "device": run.configuration.device,
        "gpus": run.gpus,
        "run": run.index,
        "batch_per_gpu": run.batch_per_gpu,
    }
    benchmark.extra_info.update(facts)
    benchmark.params = {**(benchmark.params or {}), "scaling": label}
    benchmark.skipped = False
    step_times_s = iter([w.time_s / steps for w in run.windows for _ in range(steps)])

    def advance() -> None:
        # pedantic makes one more call, for the target's result, without a window.
        clock.now_s += next(step_times_s, 0.0)

    benchmark.pedantic(advance, rounds=len(run.windows), iterations=steps)


def keep_tables_narrow(config: pytest.Config) -> None:
    """Show only columns that fit into 80 characters, unless the user chose the columns or names."""
    if config.option.benchmark_columns is None:
        config.option.benchmark_columns = list(_COLUMNS)
    if config.option.benchmark_name == "normal":
        NAME_FORMATTERS[_NAME] = _name
        config.option.benchmark_name = _NAME


def _name(benchmark: Mapping[str, Any]) -> str:
    """Shorten a gpuscale item's name to `ddp-2gpus-run1`; the table's title names the case."""
    named: Callable[[Mapping[str, Any]], str] = NAME_FORMATTERS["normal"]
    is_ours = "scaling" in (benchmark["params"] or {})
    return named({**benchmark, "name": benchmark["param"]} if is_ours else benchmark)
