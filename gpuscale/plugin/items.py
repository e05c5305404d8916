"""From tests to items: one for each (case, strategy, gpus, run), ordered run by run."""

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from gpuscale.cases import TrainingCase
from gpuscale.plugin.clock import WindowClock
from gpuscale.plugin.options import SCALING_MODES, STRATEGIES, MeasureOptions
from gpuscale.records import EntryKey

PLAN_KEY = pytest.StashKey["ItemPlan"]()
CLOCK_KEY = pytest.StashKey[WindowClock]()


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPlan:
    """What one item measures."""

    case: type[TrainingCase]
    strategy: str
    gpus: int
    run: int

    @property
    def key(self) -> EntryKey:
        """The table row that the item's run belongs to."""
        return EntryKey(self.case.name(), self.strategy, self.gpus)

    @property
    def label(self) -> str:
        """The parameter part of the item's id: `ddp-2gpus-run1`."""
        return f"{self.strategy}-{self.gpus}gpu{'' if self.gpus == 1 else 's'}-run{self.run}"


def parametrize(metafunc: pytest.Metafunc, options: MeasureOptions) -> None:
    """Turn a test that uses `scaling` into its items."""
    mark = metafunc.definition.get_closest_marker("gpuscale")
    if mark is None:
        raise pytest.Collector.CollectError(
            f"{metafunc.definition.nodeid} uses 'scaling' but names no case; "
            "add @pytest.mark.gpuscale(case=YourCase)"
        )
    case = _case_of(mark, metafunc.definition.nodeid)
    strategies = [strategy for strategy in case.strategies if strategy in options.strategies]
    if not strategies:
        reason = f"{case.name()} has {', '.join(case.strategies)} only (--strategy)"
        nothing = pytest.param(None, marks=pytest.mark.skip(reason=reason), id="none")
        metafunc.parametrize("scaling", [nothing], indirect=True)
        return
    plans = [
        ItemPlan(case=case, strategy=strategy, gpus=gpus, run=run)
        for run in range(1, options.runs + 1)
        for strategy in strategies
        for gpus in options.gpus
    ]
    metafunc.parametrize("scaling", plans, ids=[plan.label for plan in plans], indirect=True)


def prepare_and_order(items: list[pytest.Item]) -> None:
    """Give our items their clocks, and order all items run by run.

    T(1) and T(n) are so measured alternately, and a slow drift of the machine cancels.
    """
    for item in items:
        plan = plan_of(item)
        if plan is None:
            continue
        item.stash[PLAN_KEY] = plan
        item.stash[CLOCK_KEY] = clock = WindowClock()
        item.add_marker(
            pytest.mark.benchmark(timer=clock.now, group=f"{plan.key.case}/{plan.strategy}")
        )
        if item.config.pluginmanager.hasplugin("timeout"):
            # Runs have a timeout of their own; pytest-timeout's would end the whole session.
            item.add_marker(pytest.mark.timeout(0))
    items.sort(key=_run_of)
    _refuse_namesakes(items)


def plan_of(item: pytest.Item) -> ItemPlan | None:
    """What an item measures; None for other people's tests."""
    callspec = getattr(item, "callspec", None)
    plan = None if callspec is None else callspec.params.get("scaling")
    return plan if isinstance(plan, ItemPlan) else None


def _run_of(item: pytest.Item) -> int:
    plan = item.stash.get(PLAN_KEY, None)
    return 0 if plan is None else plan.run


def _case_of(mark: pytest.Mark, nodeid: str) -> type[TrainingCase]:
    case = mark.kwargs.get("case")
    if not (inspect.isclass(case) and issubclass(case, TrainingCase)):
        raise pytest.Collector.CollectError(
            f"{nodeid}: the gpuscale mark takes a TrainingCase class, "
            "as in @pytest.mark.gpuscale(case=MyCase)"
        )
    _refuse_unknown_words(case)
    return case


def _refuse_unknown_words(case: type[TrainingCase]) -> None:
    """A case that says what gpuscale does not know would fail only after its first run."""
    strategies: object = case.strategies
    if isinstance(strategies, str) or not set(case.strategies) <= set(STRATEGIES):
        raise pytest.Collector.CollectError(
            f"{case.__name__}.strategies is {strategies!r}; it takes a tuple of "
            f"{', '.join(STRATEGIES)}, such as ('ddp',)"
        )
    if case.scaling not in SCALING_MODES:
        raise pytest.Collector.CollectError(
            f"{case.__name__}.scaling is {case.scaling!r}; it is one of {', '.join(SCALING_MODES)}"
        )


def _refuse_namesakes(items: Sequence[pytest.Item]) -> None:
    cases: dict[str, type[TrainingCase]] = {}
    for item in items:
        plan = item.stash.get(PLAN_KEY, None)
        if plan is None:
            continue
        first = cases.setdefault(plan.case.name(), plan.case)
        if first is not plan.case:
            raise pytest.UsageError(
                f"two cases are named {plan.case.name()}: {case_file(first)} and "
                f"{case_file(plan.case)}; rename one, or choose one of the files"
            )


def case_file(case: type[TrainingCase]) -> str:
    """The file that defines a case."""
    return str(sys.modules[case.__module__].__file__)
