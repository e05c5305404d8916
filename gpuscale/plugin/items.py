"""pytest items: one for each case, strategy, number of GPUs, run and batch of a marked test."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from gpuscale.base.errors import CaseError, UsageError
from gpuscale.base.strategies import COMMAND
from gpuscale.campaigns.night.attempt import NoRunReason
from gpuscale.plugin.options import MeasureOptions
from gpuscale.plugin.terminal import add_clock
from gpuscale.records import EntryKey
from gpuscale.workload import command_case
from gpuscale.workload.cases import Case, TrainingCase, validate_case
from gpuscale.workload.command_case import CommandCase


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPlan:
    """A planned run: case, strategy, number of GPUs, run number and batch."""

    case: type[Case]
    strategy: str
    gpus: int
    run: int
    batch: int | None = None
    """One of the values of `--batch`; None to use the batch that the case defines."""

    @property
    def key(self) -> EntryKey:
        """Key of the table row that the run belongs to."""
        return EntryKey(self.case.name(), self.strategy, self.gpus)

    @property
    def label(self) -> str:
        """Parameters in the pytest item's ID: `ddp-2gpus-run1`, `ddp-2gpus-batch64-run1`."""
        batch = "" if self.batch is None else f"batch{self.batch}-"
        gpus = f"{self.gpus}gpu{'' if self.gpus == 1 else 's'}"
        return f"{self.strategy}-{gpus}-{batch}run{self.run}"

    @property
    def group(self) -> str:
        """Title of the pytest-benchmark table that lists the run: `mnist_cnn/ddp, batch 64`."""
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"{self.key.case}/{self.strategy}{batch}"


@dataclass(frozen=True, slots=True)
class NoRun:
    """Reason why an item makes no run."""

    reason: str
    kind: NoRunReason = "cannot be measured"


def parametrize(
    metafunc: pytest.Metafunc, options: MeasureOptions, is_possible: Callable[[ItemPlan], bool]
) -> None:
    """Parametrise a test with one plan per run; impossible rows get only the plan of run 1."""
    case = _case_of(metafunc.definition)
    plans = [
        ItemPlan(case=case, strategy=strategy, gpus=gpus, run=run, batch=batch)
        for run in range(1, options.bounds_of_runs[1] + 1)
        for strategy in case.strategies
        if options.strategies is None or strategy in options.strategies
        for batch in options.batches or (None,)
        for gpus in options.gpus
    ]
    items = [
        pytest.param(plan, id=plan.label) for plan in plans if plan.run == 1 or is_possible(plan)
    ]
    if not plans:
        reason = (
            f"{case.name()} has {', '.join(case.strategies)} only: leave out --strategy, or add to "
            f"{case.__name__}.strategies"
        )
        if issubclass(case, CommandCase):
            reason = f"{case.name()} is a command: leave out --strategy, or add '{COMMAND}' to it"
        items = [pytest.param(NoRun(reason), id="none")]
    metafunc.parametrize("scaling", items, indirect=True)


def plan_of(item: pytest.Item) -> ItemPlan | None:
    """Return an item's plan; None if its test does not use `scaling`, or if it makes no run."""
    plan = getattr(getattr(item, "callspec", None), "params", {}).get("scaling")
    return plan if isinstance(plan, ItemPlan) else None


def plans_of(items: Iterable[pytest.Item]) -> list[ItemPlan]:
    """Return the plans of all items that make a run."""
    return [plan for item in items if (plan := plan_of(item)) is not None]


def prepare_and_order(items: list[pytest.Item]) -> None:
    """Add clocks to gpuscale's items; sort them by run number, so that slow drifts cancel out."""
    for item in items:
        if (plan := plan_of(item)) is not None:
            add_clock(item, plan.group)
            if item.config.pluginmanager.hasplugin("timeout"):
                # Runs have a timeout of their own; pytest-timeout's would end the session.
                item.add_marker(pytest.mark.timeout(0))
    items.sort(key=lambda item: 0 if (plan := plan_of(item)) is None else plan.run)


def validate_use_of_scaling(items: Sequence[pytest.Item]) -> None:
    """Raise a UsageError if a test has a gpuscale mark but does not use `scaling`."""
    for item in items:
        marked = item.get_closest_marker("gpuscale") is not None
        if marked and not uses_scaling(item):
            raise UsageError(
                f"{item.nodeid} has a gpuscale mark but measures nothing; give it the argument "
                "'scaling', and call scaling() in it"
            )


def uses_scaling(item: pytest.Item) -> bool:
    """True if the test uses the fixture `scaling`."""
    return "scaling" in getattr(item, "fixturenames", ())


def _case_of(test: pytest.Item) -> type[Case]:
    mark = test.get_closest_marker("gpuscale")
    case: Any = None if mark is None else mark.kwargs.get("case")
    # A mistake in a case would otherwise show only after its first run.
    if mark is None:
        problem = (
            f"{test.nodeid} uses 'scaling' but names no case; "
            "add @pytest.mark.gpuscale(case=YourCase)"
        )
    elif unknown := ", ".join(repr(name) for name in mark.kwargs if name != "case"):
        problem = (
            f"{test.nodeid}: the gpuscale mark has no {unknown}; it takes case=YourCase alone, "
            "and numbers of GPUs are given by --gpus"
        )
    elif not (inspect.isclass(case) and issubclass(case, TrainingCase | CommandCase)):
        problem = (
            f"{test.nodeid}: the gpuscale mark takes a TrainingCase class or a CommandCase, "
            "as in @pytest.mark.gpuscale(case=MyCase)"
        )
    else:
        try:
            if issubclass(case, CommandCase):
                command_case.validate_command(case)
            else:
                validate_case(case)
            return case
        except CaseError as error:
            problem = str(error)
    raise pytest.Collector.CollectError(problem)
