"""Plan pytest items, one per strategy, GPU count, batch size and run; explain skipped items."""

import inspect
import os
import re
import traceback
from collections.abc import Callable, Generator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gpuscale
from gpuscale.base.errors import CaseError, UsageError, as_place
from gpuscale.base.host import is_gpu
from gpuscale.base.strategies import COMMAND, STRATEGIES, is_older
from gpuscale.base.text import no_such
from gpuscale.campaigns.night.outcome import NoRunReason
from gpuscale.plugin.options import OPTIONS, MeasureOptions
from gpuscale.plugin.terminal import add_clock
from gpuscale.records import EntryKey, Environment
from gpuscale.workload import command_case
from gpuscale.workload.cases import Case, TrainingCase, validate_case
from gpuscale.workload.command_case import CommandCase

_MISTYPED = re.compile(
    r"cannot import name '(\w+)' from 'gpuscale' |module 'gpuscale' has no attribute '(\w+)'"
)


class ItemPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A planned run: case, strategy, number of GPUs, run number and batch."""

    case: type[Case]
    strategy: str
    gpus: int
    run: int
    batch: int | None = None
    """Batch size from `--batch`; None to use the batch size that the case defines."""

    @property
    def key(self) -> EntryKey:
        """Key of the table row that the run belongs to."""
        return EntryKey(self.case.name(), self.strategy, self.gpus)

    @property
    def label(self) -> str:
        """Parameters in the item's ID, such as `ddp-2gpus-run1` or `ddp-2gpus-batch64-run1`."""
        batch = "" if self.batch is None else f"batch{self.batch}-"
        gpus = f"{self.gpus}gpu{'' if self.gpus == 1 else 's'}"
        return f"{self.strategy}-{gpus}-{batch}run{self.run}"

    @property
    def group(self) -> str:
        """Title of the pytest-benchmark table that lists the run: `mnist_cnn/ddp, batch 64`."""
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"{self.key.case}/{self.strategy}{batch}"


class NoRun(msgspec.Struct, frozen=True):
    """Reason why a pytest item executes no run."""

    reason: str
    kind: NoRunReason = "cannot be measured"


def parametrize(
    metafunc: pytest.Metafunc, options: MeasureOptions, is_possible: Callable[[ItemPlan], bool]
) -> None:
    """Parametrise a test with its planned runs; an unmeasurable row gets one run, to be skipped."""
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
            reason = f"{case.name()} is a command: leave out --strategy, or add {COMMAND} to it"
        items = [pytest.param(NoRun(reason), id="none")]
    metafunc.parametrize("scaling", items, indirect=True)


def plan_of(item: pytest.Item) -> ItemPlan | None:
    """Return an item's plan; None if it does not use `scaling` or has no strategy to measure."""
    plan = getattr(getattr(item, "callspec", None), "params", {}).get("scaling")
    return plan if isinstance(plan, ItemPlan) else None


def prepare_and_order(items: list[pytest.Item]) -> None:
    """Set items' clocks and timeouts; sort by run number, so that drifts affect all rows alike.

    Raise a UsageError if a test has a gpuscale mark but does not use `scaling`.
    """
    for item in items:
        if item.get_closest_marker("gpuscale") is not None and not uses_scaling(item):
            raise UsageError(
                f"{item.nodeid} has a gpuscale mark but measures nothing; give it the argument "
                "'scaling', and call scaling() in it"
            )
        if (plan := plan_of(item)) is not None:
            add_clock(item, plan.group)
            if item.config.pluginmanager.hasplugin("timeout"):
                # Runs have a timeout of their own; pytest-timeout's would end the session.
                item.add_marker(pytest.mark.timeout(0))
    items.sort(key=lambda item: 0 if (plan := plan_of(item)) is None else plan.run)


def uses_scaling(item: pytest.Item) -> bool:
    """True if the test uses the fixture `scaling`."""
    return "scaling" in getattr(item, "fixturenames", ())


def _case_of(test: pytest.Item) -> type[Case]:
    mark = test.get_closest_marker("gpuscale")
    case: Any = None if mark is None else mark.kwargs.get("case")
    # Validate the case now; otherwise a mistake would show only after its first run.
    if mark is None:
        problem = f"{test.nodeid} uses 'scaling' but has no @pytest.mark.gpuscale(case=YourCase)"
    elif [*mark.kwargs] != ["case"] or not (
        inspect.isclass(case) and issubclass(case, TrainingCase | CommandCase)
    ):
        problem = (
            f"{test.nodeid}: the gpuscale mark takes a TrainingCase class or a CommandCase, and "
            "nothing else: @pytest.mark.gpuscale(case=MyCase)"
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


def misuse(error: BaseException) -> str | None:
    """Explain an error from an unknown gpuscale name or a mark without `case=`; None for others."""
    places = [
        (frame, as_place(frame.f_code.co_filename, line))
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename != gpuscale.__file__
    ]
    if not places:
        return None
    frame, place = places[-1]
    if found := _MISTYPED.match(str(error)):
        return f"{place}: in gpuscale {no_such(found[1] or found[2], gpuscale.__all__)}"
    # pytest marks a class that is the only argument of a mark; then the class gets the test.
    name, is_call, _ = str(error).partition("() takes no arguments")
    case = frame.f_globals.get(name) if is_call else None
    marks = getattr(case, "pytestmark", None)
    if isinstance(marks, list) and any(mark.name == "gpuscale" for mark in marks):
        return f"{place}: the gpuscale mark takes case=: @pytest.mark.gpuscale(case={name})"
    return None


class CommandItem:
    """A pytest plugin that makes `test_command` in this module measure a command."""

    def __init__(self, case: type[CommandCase]) -> None:
        self.case = case

    @pytest.hookimpl(wrapper=True)
    def pytest_cmdline_main(self) -> Generator[None, object, object]:
        """Convert pytest's usage errors, so that `gpuscale run` reports them like its own."""
        try:
            return (yield)
        except pytest.UsageError as error:
            raise UsageError(str(error)) from None

    def pytest_pycollect_makemodule(
        self, module_path: Path, parent: pytest.Collector
    ) -> pytest.Module:
        """Name the test's module after the case; the module's path means nothing to users."""
        module: pytest.Module = pytest.Module.from_parent(
            parent, path=module_path, nodeid=self.case.name()
        )
        return module

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Have pytest print the case's name as the test's location, not this module's path."""
        item.location = (self.case.name(), *item.location[1:])

    @pytest.hookimpl(wrapper=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> Generator[None, None, None]:
        """Give the test a `gpuscale` mark with the case."""
        metafunc.definition.add_marker(pytest.mark.gpuscale(case=self.case))
        yield


def measured_in_session(case: type[CommandCase], options: Sequence[str]) -> int:
    """Measure the case by running pytest on this module's only test; return the exit code."""
    # Ignore the settings of a project in this folder.
    settings = ["-c", os.devnull, "--rootdir", str(Path.cwd()), "--noconftest", "--assert=plain"]
    settings += ["-p", "no:cacheprovider", "-p", "gpuscale.plugin", "-rN"]
    # Otherwise pytest-benchmark leaves an empty folder here.
    settings += ["--benchmark-storage", f"file://{os.devnull}"]
    return int(pytest.main([*settings, __file__, *options], plugins=[CommandItem(case)]))


def test_command(scaling: Callable[[], object]) -> None:
    """Measure the command that was given to `gpuscale run`."""
    scaling()


def skip_reason(plan: ItemPlan, environment: Environment, options: MeasureOptions) -> str | None:
    """Return why an item cannot be measured on this machine with these options; None if it can."""
    demands = STRATEGIES[plan.strategy]
    if reason := _conflict_with_options(plan, environment, options):
        return reason
    if is_older(environment.torch_version, demands.oldest_torch):
        first = "{}.{}".format(*demands.oldest_torch)
        return (
            f"{plan.strategy} needs torch {first} or newer, found {environment.torch_version}: "
            f"{demands.not_older}"
        )
    if demands.package and find_spec(demands.package) is None:
        return (
            f"{plan.strategy} needs a package that is not installed: "
            f"pip install 'gpuscale[{demands.package}]'"
        )
    if is_gpu(environment.device):
        return _missing_gpus(plan, environment, options)
    if demands.not_on_cpu and plan.gpus > 1:
        return f"{plan.strategy} on {plan.gpus} devices needs GPUs: {demands.not_on_cpu}"
    cores, threads = environment.cores_per_node, options.threads_per_rank
    if plan.gpus <= environment.node_count * (cores // threads) or options.oversubscribe:
        return None
    each = "" if threads == 1 else f" of {threads} threads"
    return (
        f"{plan.gpus} CPU ranks{each} need as many cores; {_found(environment, cores)} "
        "(--oversubscribe measures all the same)"
    )


def _missing_gpus(plan: ItemPlan, environment: Environment, options: MeasureOptions) -> str | None:
    if options.oversubscribe and environment.ranks_per_gpu(plan.strategy, plan.gpus):
        return None
    here = environment.gpus_per_node
    of_process = plan.gpus // STRATEGIES[plan.strategy].processes(plan.gpus)
    if of_process > here and environment.nodes:
        return f"{plan.strategy} drives its {of_process} GPUs from one process; a node has {here}"
    if plan.gpus > environment.node_count * here:
        return f"needs {plan.gpus} GPUs; {_found(environment, here)}"
    return None


def _found(environment: Environment, each: int) -> str:
    nodes = environment.node_count
    return f"{each} found" if nodes == 1 else f"{nodes} nodes with {each} each found"


def _conflict_with_options(
    plan: ItemPlan, environment: Environment, options: MeasureOptions
) -> str | None:
    """Return why the plan's strategy is incompatible with a given option; None if compatible."""
    if plan.strategy == COMMAND:
        for name, option in OPTIONS.items():
            if option.in_training and getattr(options, name) != option.default:
                return f"{option.flag} does not apply to a command, which trains by itself"
        return None
    demands = STRATEGIES[plan.strategy]
    given = {
        "--compile": options.compiled,
        "--accumulate": options.accumulate > 1,
        "--precision fp16": options.precision == "fp16",
    }
    for flag, why in demands.conflicts.items():
        if given[flag]:
            return f"{plan.strategy} with {flag}: {why}"
    shares_gpu = options.oversubscribe and environment.ranks_per_gpu(plan.strategy, plan.gpus)
    if demands.micro_batches and shares_gpu:
        # Gloo would pass a device address to the operating system, which would reject it.
        return f"{plan.strategy} with --oversubscribe: gloo cannot send from the memory of a GPU"
    return None
