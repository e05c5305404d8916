"""Requests for the runs of items, and checks that the runs are possible."""

from collections.abc import Collection, Iterator, Sequence
from importlib.util import find_spec

from msgspec.structs import replace

from gpuscale.base.cpus import SITE, is_map
from gpuscale.base.devices import is_gpu
from gpuscale.base.errors import CaseError, UsageError
from gpuscale.base.strategies import COMMAND, ONE_PROCESS_STRATEGIES, STRATEGIES, is_older
from gpuscale.plugin.items import ItemPlan
from gpuscale.plugin.options import OPTIONS, MeasureOptions, Option
from gpuscale.records import Environment, RunRequest
from gpuscale.records.configuration import DataKind
from gpuscale.workload import command_case
from gpuscale.workload.cases import Case, TrainingCase, validate_blocks
from gpuscale.workload.command_case import CommandCase
from gpuscale.workload.injections import parse_injection
from gpuscale.workload.run_defaults import (
    command_request,
    data_workers,
    default_request,
    devices_of_run,
    file_of_case,
    ranks_per_gpu,
    timing_plan,
)

# Earlier versions wait only for the last of a batch of transfers.
_FIRST_WITH_1F1B_OVER_GLOO = (2, 8)

_UNCHANGED = "trains as it does by itself"


def validate_precision(options: MeasureOptions, environment: Environment) -> None:
    """Raise a UsageError for a precision that CPUs do not support."""
    if options.precision == "tf32" and environment.device == "cpu":
        raise UsageError("--precision tf32 exists on GPUs only; choose fp32 or bf16 here")


def validate_plans(
    plans: Sequence[ItemPlan], options: MeasureOptions, environment: Environment
) -> None:
    """Raise a UsageError if items cannot share a session, or a case does not define the --size."""
    cases: dict[str, type[Case]] = {}
    for plan in plans:
        first = cases.setdefault(plan.case.name(), plan.case)
        if first is not plan.case:
            both = (f"{file_of_case(case)}::{case.__qualname__}" for case in (first, plan.case))
            raise UsageError(
                f"two cases are named {plan.case.name()}: {' and '.join(both)}; rename one, or "
                "choose one of the tests"
            )
    problems = []
    for name, case in sorted(cases.items()):
        if issubclass(case, CommandCase):
            gpus = {plan.gpus for plan in plans if plan.case.name() == name}
            command_case.validate_scaling(case, gpus, environment)
        try:
            if options.size is not None and issubclass(case, TrainingCase) and case.sizes:
                case().named_size(options.size)
        except CaseError as error:
            problems.append(str(error))
    if problems:
        raise UsageError(f"--size {options.size}: {'; '.join(problems)}")
    _validate_injections(plans, options.injections)


def _validate_injections(plans: Collection[ItemPlan], injections: Sequence[str]) -> None:
    most = max((STRATEGIES[plan.strategy].processes(plan.gpus) for plan in plans), default=0)
    for text in injections:
        rank = parse_injection(text).rank
        if plans and rank is not None and rank >= most:
            raise UsageError(
                f"--inject: '{text}' would never happen: no item that was chosen has a rank "
                f"{rank}; of {' and '.join(ONE_PROCESS_STRATEGIES)} the only rank is 0"
            )


def validate_partitioning(
    plans: Sequence[ItemPlan], requests: Sequence[RunRequest], options: MeasureOptions
) -> None:
    """Raise an error if a model cannot be split among the GPUs, or a batch into micro-batches."""
    asked = {"--micro-batches": options.micro_batches, "--schedule": options.schedule}
    given = [flag for flag, value in asked.items() if value is not None]
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
                f"{request.key.label}: {batch} samples on each GPU cannot be split into {parts} "
                "equal micro-batches; choose --micro-batches that divides them"
            )
    most: dict[tuple[type[TrainingCase], str], int] = {}
    for plan in plans:
        if STRATEGIES[plan.strategy].in_blocks and issubclass(plan.case, TrainingCase):
            row = (plan.case, plan.strategy)
            most[row] = max(plan.gpus, most.get(row, 1))
    sizes = {request.configuration.case: request.configuration.size for request in requests}
    for (case, strategy), gpus in most.items():
        built = case()
        built.size = built.named_size(sizes.get(built.name()))
        validate_blocks(built, strategy, gpus)


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
    if options.oversubscribe and ranks_per_gpu(plan.strategy, plan.gpus, environment):
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
    """Return why the strategy is incompatible with an option; None if it is compatible."""
    if plan.strategy == COMMAND:
        refused = (option.flag for option in _training_options(options) if not option.for_all_cases)
        flag = next(refused, None)
        return flag and f"a command cannot be given {flag}: it {_UNCHANGED}"
    demands = STRATEGIES[plan.strategy]
    conflicts = {
        "--compile": options.compiled and demands.not_compiled,
        "--accumulate": options.accumulate > 1 and demands.not_accumulated,
        "--precision fp16": options.precision == "fp16" and demands.not_fp16,
    }
    on_gpu = is_gpu(environment.device)
    shares_gpu = options.oversubscribe and ranks_per_gpu(plan.strategy, plan.gpus, environment)
    over_nccl = environment.variables.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
    over_gloo = not on_gpu or (shares_gpu and not over_nccl)
    if demands.micro_batches and over_gloo and plan.gpus > 1:
        hangs = is_older(environment.torch_version, _FIRST_WITH_1F1B_OVER_GLOO)
        conflicts["--schedule 1f1b"] = (
            options.schedule == "1f1b" and hangs and "before torch 2.8 it hangs over gloo"
        )
        # It would pass an address on the device to the system, which refuses it.
        conflicts["--oversubscribe"] = on_gpu and "gloo sends nothing that lies on a GPU"
    reasons = (f"{plan.strategy} with {flag}: {why}" for flag, why in conflicts.items() if why)
    return next(reasons, None)


def notes_on_commands(plans: Sequence[ItemPlan], options: MeasureOptions) -> Iterator[str]:
    """Yield a line for each option that has no effect on the commands among the cases."""
    if commands := sorted({plan.key.case for plan in plans if plan.strategy == COMMAND}):
        for option in _training_options(options):
            if option.for_all_cases:
                named = ", ".join(commands)
                yield f"{option.flag} changes nothing for the command {named}, which {_UNCHANGED}"


def _training_options(options: MeasureOptions) -> Iterator[Option]:
    """Yield the options in use that change how gpuscale trains a case."""
    for name, option in OPTIONS.items():
        if option.in_training and getattr(options, name) != option.default:
            yield option


def run_request(plan: ItemPlan, environment: Environment, options: MeasureOptions) -> RunRequest:
    """Return the request for an item's run; raise a CaseError if the run is impossible."""
    if issubclass(plan.case, CommandCase):
        request = command_request(
            plan.case, environment, gpus=plan.gpus, run=plan.run, batch=plan.batch
        )
    else:
        assert issubclass(plan.case, TrainingCase)
        request = _training_request(plan, plan.case, environment, options)
    if is_map(options.cpu_bind) and request.launch != "per-rank":
        raise CaseError(
            "--cpu-bind: a map has CPUs for each rank, and this command starts its ranks itself; "
            "add --launch per-rank, or bind them in the command"
        )
    if options.cpu_bind == SITE and environment.nodes:
        # A site binds the ranks of a node to the same cores in every run.
        request = replace(request, devices=devices_of_run(environment, run=1, gpus=plan.gpus))
    timing = timing_plan(request.configuration.device, options.run_seconds)
    return replace(request, timing=timing, timeout_s=options.timeout_s, cpu_bind=options.cpu_bind)


def _training_request(
    plan: ItemPlan, case: type[TrainingCase], environment: Environment, options: MeasureOptions
) -> RunRequest:
    request = default_request(
        case,
        environment,
        strategy=plan.strategy,
        gpus=plan.gpus,
        run=plan.run,
        size=options.size,
        batch=plan.batch,
    )
    assert request.batch_per_gpu is not None, "a case that gpuscale trains has a batch"
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
    return replace(
        request,
        configuration=configuration,
        batch_per_gpu=request.batch_per_gpu * options.accumulate,
        data_root=None if options.data_root is None else str(options.data_root),
        download=options.download,
        injections=options.injections,
    )
