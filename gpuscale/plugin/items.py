"""From tests to items, one for each (case, strategy, gpus, run), and to what each asks for."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
from msgspec.structs import replace

from gpuscale.base.errors import CaseError, UsageError
from gpuscale.base.strategies import COMMAND, ONE_PROCESS_STRATEGIES, STRATEGIES, is_older
from gpuscale.plugin.benchmark_table import CLOCK, WindowClock
from gpuscale.plugin.options import OPTIONS, MeasureOptions, Option
from gpuscale.records import EntryKey, Environment, RunRequest
from gpuscale.records.configuration import DataKind
from gpuscale.workload import command_case
from gpuscale.workload.cases import Case, TrainingCase, validate_blocks, validate_case
from gpuscale.workload.command_case import CommandCase
from gpuscale.workload.injections import parse_injection
from gpuscale.workload.run_defaults import (
    command_request,
    data_workers,
    default_request,
    file_of_case,
    ranks_per_gpu,
    timing_plan,
)

# Earlier ones wait for the last of a batch of transfers only.
_FIRST_WITH_1F1B_OVER_GLOO = (2, 8)

_BY_ITSELF = "trains as it does by itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPlan:
    """One run to be made: a case and strategy on some GPUs, for the first or a further time."""

    case: type[Case]
    strategy: str
    gpus: int
    run: int
    batch: int | None = None
    """The one of `--batch`; None is that of the case's size."""

    @property
    def key(self) -> EntryKey:
        """The table row that the item's run belongs to."""
        return EntryKey(self.case.name(), self.strategy, self.gpus)

    @property
    def label(self) -> str:
        """The parameter part of the item's id: `ddp-2gpus-run1`, `ddp-2gpus-batch64-run1`."""
        batch = "" if self.batch is None else f"batch{self.batch}-"
        gpus = f"{self.gpus}gpu{'' if self.gpus == 1 else 's'}"
        return f"{self.strategy}-{gpus}-{batch}run{self.run}"

    @property
    def group(self) -> str:
        """The items that stand in one table of pytest-benchmark: `mnist_cnn/ddp, batch 64`."""
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"{self.key.case}/{self.strategy}{batch}"


def parametrize(metafunc: pytest.Metafunc, options: MeasureOptions) -> None:
    """Turn a test that uses `scaling` into its items."""
    case = _case_of(metafunc.definition)
    plans = [
        ItemPlan(case=case, strategy=strategy, gpus=gpus, run=run, batch=batch)
        for run in range(1, options.bounds_of_runs[1] + 1)
        for strategy in case.strategies
        if options.strategies is None or strategy in options.strategies
        for batch in options.batches or (None,)
        for gpus in options.gpus
    ]
    items = [pytest.param(plan, id=plan.label) for plan in plans]
    if not plans:
        reason = (
            f"{case.name()} has {', '.join(case.strategies)} only: leave out --strategy, or add to "
            f"{case.__name__}.strategies"
        )
        if issubclass(case, CommandCase):
            reason = f"{case.name()} is a command: leave out --strategy, or add '{COMMAND}' to it"
        items = [pytest.param(reason, id="none")]
    metafunc.parametrize("scaling", items, indirect=True)


def plan_of(item: pytest.Item) -> ItemPlan | None:
    """The plan of an item; None for other people's tests."""
    plan = getattr(getattr(item, "callspec", None), "params", {}).get("scaling")
    return plan if isinstance(plan, ItemPlan) else None


def prepare_and_order(items: list[pytest.Item]) -> None:
    """Give our items their clocks, and order all items run by run, so that slow drifts cancel."""
    for item in items:
        if (plan := plan_of(item)) is not None:
            item.stash[CLOCK] = clock = WindowClock()
            item.add_marker(pytest.mark.benchmark(timer=clock, group=plan.group))
            if item.config.pluginmanager.hasplugin("timeout"):
                # Runs have a timeout of their own; pytest-timeout's would end the session.
                item.add_marker(pytest.mark.timeout(0))
    items.sort(key=lambda item: 0 if (plan := plan_of(item)) is None else plan.run)


def refuse_missing_tf32(options: MeasureOptions, environment: Environment) -> None:
    """Refuses a precision that no CPU has."""
    if options.precision == "tf32" and environment.device == "cpu":
        raise UsageError("--precision tf32 exists on GPUs only; choose fp32 or bf16 here")


def refuse_unmeasuring(items: Sequence[pytest.Item]) -> None:
    """Refuses marked tests without `scaling`, which would pass and have measured nothing."""
    for item in items:
        marked = item.get_closest_marker("gpuscale") is not None
        if marked and "scaling" not in getattr(item, "fixturenames", ()):
            raise UsageError(
                f"{item.nodeid} has a gpuscale mark but measures nothing; give it the argument "
                "'scaling', and call scaling() in it"
            )


def refuse_unmeasurable(
    plans: Sequence[ItemPlan], options: MeasureOptions, environment: Environment
) -> None:
    """Refuse namesakes, commands without {gpus}, unknown sizes, and faults without their rank."""
    cases: dict[str, type[Case]] = {}
    for plan in plans:
        first = cases.setdefault(plan.case.name(), plan.case)
        if first is not plan.case:
            both = (f"{file_of_case(each)}::{each.__qualname__}" for each in (first, plan.case))
            raise UsageError(
                f"two cases are named {plan.case.name()}: {' and '.join(both)}; rename one, or "
                "choose one of the tests"
            )
    problems = []
    for name, case in sorted(cases.items()):
        if issubclass(case, CommandCase) and not environment.nodes:
            gpus = {plan.gpus for plan in plans if plan.case.name() == name}
            command_case.validate_scaling(case, gpus, on_gpu=environment.device == "cuda")
        try:
            if options.size is not None and issubclass(case, TrainingCase) and case.sizes:
                case().named_size(options.size)
        except CaseError as error:
            problems.append(str(error))
    if problems:
        raise UsageError(f"--size {options.size}: {'; '.join(problems)}")
    most = max((STRATEGIES[plan.strategy].processes(plan.gpus) for plan in plans), default=0)
    for text in options.injections:
        rank = parse_injection(text).rank
        if plans and rank is not None and rank >= most:
            raise UsageError(
                f"--inject: '{text}' would never happen: no item that was chosen has a rank "
                f"{rank}; of {' and '.join(ONE_PROCESS_STRATEGIES)} the only rank is 0"
            )


def refuse_uncut(
    plans: Sequence[ItemPlan], requests: Sequence[RunRequest], options: MeasureOptions
) -> None:
    """Refuses a model that cannot be cut among so many GPUs, and a batch into micro-batches."""
    asked = {"--micro-batches": options.micro_batches, "--schedule": options.schedule}
    given = [name for name, value in asked.items() if value is not None]
    if given and not any(request.configuration.micro_batches for request in requests):
        able = ", ".join(name for name, demands in STRATEGIES.items() if demands.micro_batches)
        raise UsageError(
            f"{given[0]}: nothing that was chosen has micro-batches; leave it out, or choose a "
            f"case with {able}"
        )
    for request in requests:
        batch, parts = request.batch_per_gpu, request.configuration.micro_batches or 1
        if batch is not None and batch % parts:
            raise UsageError(
                f"{request.key.label}: {batch} samples on each GPU are no {parts} micro-batches of "
                "one size; choose --micro-batches that divides them"
            )
    most: dict[tuple[type[TrainingCase], str], int] = {}
    for plan in plans:
        if STRATEGIES[plan.strategy].in_blocks and issubclass(plan.case, TrainingCase):
            of_case = (plan.case, plan.strategy)
            most[of_case] = max(plan.gpus, most.get(of_case, 1))
    sizes = {request.configuration.case: request.configuration.size for request in requests}
    for (case, strategy), gpus in most.items():
        built = case()
        built.size = built.named_size(sizes.get(built.name()))
        validate_blocks(built, strategy, gpus)


def skip_reason(plan: ItemPlan, environment: Environment, options: MeasureOptions) -> str | None:
    """The reason why this item cannot be measured here; None where it can."""
    demands, nodes = STRATEGIES[plan.strategy], environment.node_count
    if plan.strategy == COMMAND and (reason := _not_for_commands(options)):
        return reason
    if reason := _not_with_options(plan, environment, options):
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
    if environment.device == "cuda":
        if options.oversubscribe and ranks_per_gpu(plan.strategy, plan.gpus, environment):
            return None
        here = environment.gpus_per_node
        driven = plan.gpus // demands.processes(plan.gpus)
        if driven > here and environment.nodes:
            return f"{plan.strategy} drives its {driven} GPUs from one process; a node has {here}"
        lack = f"needs {plan.gpus} GPUs; {_found(nodes, here)}"
        return lack if plan.gpus > nodes * here else None
    if demands.not_on_cpu and plan.gpus > 1:
        return f"{plan.strategy} on {plan.gpus} devices needs GPUs: {demands.not_on_cpu}"
    here, threads = environment.cores_per_node, options.threads_per_rank
    if plan.gpus <= nodes * (here // threads) or options.oversubscribe:
        return None
    each = "" if threads == 1 else f" of {threads} threads"
    return (
        f"{plan.gpus} CPU ranks{each} need as many cores; {_found(nodes, here)} "
        "(--oversubscribe measures all the same)"
    )


def not_told_to_commands(plans: Sequence[ItemPlan], options: MeasureOptions) -> Iterator[str]:
    """A line for each option that is for all cases, and changes nothing for commands."""
    if commands := sorted({plan.key.case for plan in plans if plan.strategy == COMMAND}):
        named = f"{', '.join(commands)}, which {_BY_ITSELF}"
        for option in _given_for_training(options):
            if option.for_all_cases:
                yield f"{option.flag} changes nothing for the command {named}"


def _not_for_commands(options: MeasureOptions) -> str | None:
    """The reason why no command is measured with these options; None where it can be."""
    for option in _given_for_training(options):
        if not option.for_all_cases:
            return f"a command cannot be told {option.flag}: it {_BY_ITSELF}"
    return None


def _given_for_training(options: MeasureOptions) -> Iterator[Option]:
    for name, option in OPTIONS.items():
        if option.in_training and getattr(options, name) != option.default:
            yield option


def _not_with_options(
    plan: ItemPlan, environment: Environment, options: MeasureOptions
) -> str | None:
    demands = STRATEGIES[plan.strategy]
    shares_gpu = options.oversubscribe and ranks_per_gpu(plan.strategy, plan.gpus, environment)
    over_nccl = environment.variables.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
    over_gloo = environment.device == "cpu" or (bool(shares_gpu) and not over_nccl)
    cannot = {
        "--compile": options.compiled and demands.not_compiled,
        "--accumulate": options.accumulate > 1 and demands.not_accumulated,
        "--precision fp16": options.precision == "fp16" and demands.not_fp16,
    }
    if demands.micro_batches and over_gloo and plan.gpus > 1:
        is_lost = options.schedule == "1f1b" and is_older(
            environment.torch_version, _FIRST_WITH_1F1B_OVER_GLOO
        )
        cannot["--schedule 1f1b"] = is_lost and "before torch 2.8 it hangs over gloo"
        # It would hand the address on the device to the system, which refuses it.
        on_gpu = environment.device == "cuda"
        cannot["--oversubscribe"] = on_gpu and "gloo sends nothing that lies on a GPU"
    reasons = (f"{plan.strategy} with {option}: {why}" for option, why in cannot.items() if why)
    return next(reasons, None)


def _found(nodes: int, each: int) -> str:
    return f"{each} found" if nodes == 1 else f"{nodes} nodes with {each} each found"


def run_request(plan: ItemPlan, environment: Environment, options: MeasureOptions) -> RunRequest:
    """The request for an item's run; a `CaseError` says why the case cannot be trained so."""
    case = plan.case
    if issubclass(case, CommandCase):
        if environment.nodes and case.starts_ranks():
            raise CaseError(
                f"{case.name()}: --launcher {environment.launcher} starts the command once for "
                "each rank; give the bare script, without torchrun or the like before it"
            )
        request = command_request(case, environment, gpus=plan.gpus, run=plan.run, batch=plan.batch)
        return _with_length(request, options)
    assert issubclass(case, TrainingCase)
    request = default_request(
        case,
        environment,
        strategy=plan.strategy,
        gpus=plan.gpus,
        run=plan.run,
        size=options.size,
        batch=plan.batch,
    )
    batch_per_gpu = request.batch_per_gpu
    assert batch_per_gpu is not None, "a case that gpuscale trains has a batch"
    data: DataKind = options.data if options.data_root is None else "real"
    workers = data_workers(environment) if options.data_workers is None else options.data_workers
    configuration = replace(
        request.configuration,
        precision=options.precision,
        channels_last=options.channels_last,
        compiled=options.compiled,
        data=data,
        threads_per_rank=options.threads_per_rank,
        ranks_per_gpu=ranks_per_gpu(plan.strategy, plan.gpus, environment),
        data_workers=0 if data == "synthetic" else workers,
        accumulate=options.accumulate if options.accumulate > 1 else None,
    )
    if STRATEGIES[plan.strategy].micro_batches:
        configuration = replace(
            configuration,
            schedule=options.schedule or configuration.schedule,
            micro_batches=options.micro_batches or configuration.micro_batches,
        )
    request = replace(
        request,
        configuration=configuration,
        batch_per_gpu=batch_per_gpu * options.accumulate,
        data_root=None if options.data_root is None else str(options.data_root),
        download=options.download,
        injections=options.injections,
    )
    return _with_length(request, options)


def _with_length(request: RunRequest, options: MeasureOptions) -> RunRequest:
    timing = timing_plan(request.configuration.device, options.run_seconds)
    return replace(request, timing=timing, timeout_s=options.timeout_s)


def _case_of(test: pytest.Item) -> type[Case]:
    mark = test.get_closest_marker("gpuscale")
    case: Any = None if mark is None else mark.kwargs.get("case")
    # A case that says what gpuscale does not know would fail only after its first run.
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
