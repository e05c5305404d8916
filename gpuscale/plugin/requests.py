"""Build the run requests of pytest items, and check that the runs are possible."""

import dataclasses
import sys
from collections.abc import Sequence
from inspect import getfile
from pathlib import Path

from msgspec.structs import replace

from gpuscale.base.errors import CaseError, UsageError
from gpuscale.base.host import SITE, is_gpu, is_map
from gpuscale.base.strategies import COMMAND, MICRO_BATCHES, STRATEGIES
from gpuscale.base.text import joined
from gpuscale.plugin.items import ItemPlan
from gpuscale.plugin.options import MeasureOptions
from gpuscale.records import Configuration, Environment, RunRequest
from gpuscale.records.configuration import DataKind
from gpuscale.records.request import CommandRequest, timing_plan
from gpuscale.workload import command_case
from gpuscale.workload.cases import Case, TrainingCase, validate_count
from gpuscale.workload.command_case import CommandCase
from gpuscale.workload.injections import parse_injection


def validate_precision(options: MeasureOptions, environment: Environment) -> None:
    """Raise a UsageError if the ranks run on CPUs and the precision exists only on GPUs."""
    if options.precision == "tf32" and environment.device == "cpu":
        raise UsageError("--precision tf32 exists on GPUs only; choose fp32 or bf16 here")


def validate_plans(
    plans: Sequence[ItemPlan], options: MeasureOptions, environment: Environment
) -> None:
    """Raise if cases share a name, a size is unknown, or no run has an injected fault's rank."""
    cases: dict[str, type[Case]] = {}
    for plan in plans:
        if (first := cases.setdefault(plan.case.name(), plan.case)) is not plan.case:
            both = (f"{getfile(case)}::{case.__qualname__}" for case in (first, plan.case))
            raise UsageError(
                f"two cases are named {plan.case.name()}: {' and '.join(both)}; rename one, or "
                "choose one of the tests"
            )
    for name, case in sorted(cases.items()):
        if issubclass(case, CommandCase):
            gpus = {plan.gpus for plan in plans if plan.case.name() == name}
            command_case.validate_scaling(case, gpus, environment)
        elif options.size is not None and issubclass(case, TrainingCase) and case.sizes:
            case().named_size(options.size)
    most = max((STRATEGIES[plan.strategy].processes(plan.gpus) for plan in plans), default=0)
    for text in options.injections:
        rank = parse_injection(text).rank
        if plans and rank is not None and rank >= most:
            raise UsageError(
                f"--inject: '{text}' would never happen: no item that was chosen has a rank "
                f"{rank}; the highest is {most - 1}"
            )


def validate_micro_batches(requests: Sequence[RunRequest], options: MeasureOptions) -> None:
    """Raise a UsageError if `--micro-batches` applies to no run, or does not divide a batch."""
    has_any = any(request.configuration.micro_batches for request in requests)
    if options.micro_batches is not None and not has_any:
        able = ", ".join(name for name, demands in STRATEGIES.items() if demands.micro_batches)
        raise UsageError(
            "--micro-batches: no item that was chosen has micro-batches; leave it out, or choose a "
            f"case with {able}"
        )
    for request in requests:
        batch, parts = request.batch_per_gpu, request.configuration.micro_batches or 1
        if batch is not None and batch % parts:
            raise UsageError(
                f"{request.label}: {batch} samples on each GPU cannot be split into {parts} equal "
                "micro-batches; give --micro-batches a divisor of that number"
            )


def run_request(plan: ItemPlan, environment: Environment, options: MeasureOptions) -> RunRequest:
    """Return the request for an item's run; raise a CaseError if the run is impossible."""
    case = plan.case
    if issubclass(case, CommandCase):
        return _command_request(plan, case, environment, options)
    assert issubclass(case, TrainingCase)
    built, has_micro_batches = case(), STRATEGIES[plan.strategy].micro_batches
    data: DataKind = options.data if options.data_root is None else "real"
    workers = environment.data_workers if options.data_workers is None else options.data_workers
    configuration = Configuration(
        case=case.name(),
        strategy=plan.strategy,
        device=environment.device,
        size=options.size or ("full" if is_gpu(environment.device) else "smoke"),
        precision=options.precision,
        channels_last=options.channels_last,
        compiled=options.compiled,
        scaling=case.scaling,
        data=data,
        threads_per_rank=options.threads_per_rank,
        ranks_per_gpu=environment.ranks_per_gpu(plan.strategy, plan.gpus),
        data_workers=0 if data == "synthetic" else workers,
        strategy_options=case.options_text(plan.strategy),
        accumulate=options.accumulate if options.accumulate > 1 else None,
        micro_batches=(options.micro_batches or MICRO_BATCHES) if has_micro_batches else None,
    )
    size = built.named_size(configuration.size)
    if plan.batch is not None and plan.batch != size.batch:
        configuration = replace(configuration, batch=plan.batch)
        size = dataclasses.replace(size, batch=plan.batch)
    batch_per_gpu = built.batch_per_gpu(size, plan.gpus)
    validate_count(f"{case.__name__}.batch_per_gpu() for {plan.gpus} GPUs", batch_per_gpu)
    return replace(
        _request(plan, environment, options, configuration, batch_per_gpu * options.accumulate),
        sample_shape=size.sample_shape,
        samples_per_epoch=built.training_samples,
        import_paths=tuple(sys.path),
        data_root=None if options.data_root is None else str(options.data_root),
        download=options.download,
        injections=options.injections,
    )


def _command_request(
    plan: ItemPlan, case: type[CommandCase], environment: Environment, options: MeasureOptions
) -> RunRequest:
    across_nodes, gpus = bool(environment.nodes), plan.gpus
    launch = case.launch_of(across_nodes=across_nodes)
    if is_map(options.cpu_bind) and launch != "per-rank":
        raise CaseError(
            "--cpu-bind: a map has CPUs for each rank, and this command starts its ranks itself; "
            "add --launch per-rank, or bind them in the command"
        )
    batch_per_gpu = case.batch_per_gpu(gpus, plan.batch)
    configuration = Configuration(
        case=case.name(),
        strategy=COMMAND,
        device=environment.device,
        scaling="strong" if case.global_batch else "weak" if batch_per_gpu else None,
        batch=None if plan.batch == (case.global_batch or case.batch) else plan.batch,
        command=joined(case.words()),
    )
    command = CommandRequest(
        words=case.words(),
        folder=str(Path.cwd()),
        launch=launch,
        processes=gpus if launch == "per-rank" else environment.nodes_for(gpus),
        log_format=case.log_format,
        step_regex=case.step_regex,
        batch_from_output=batch_per_gpu is None,
        figure=case.figure,
        metrics=case.metrics(),
    )
    request = _request(plan, environment, options, configuration, batch_per_gpu)
    if launch == "once" and across_nodes:
        # The command itself chooses nodes and GPUs: in every run, it starts with the first ones.
        request = replace(request, devices=environment.devices_of_run(run=1, gpus=gpus))
    return replace(request, command=command)


def _request(
    plan: ItemPlan,
    environment: Environment,
    options: MeasureOptions,
    configuration: Configuration,
    batch_per_gpu: int | None,
) -> RunRequest:
    """Return a request with the fields that training cases and commands have in common."""
    # A site binds ranks to the same cores in every run, so each run uses the GPUs of the first run.
    run = 1 if options.cpu_bind == SITE and environment.nodes else plan.run
    return RunRequest(
        configuration=configuration,
        gpus=plan.gpus,
        index=plan.run,
        batch_per_gpu=batch_per_gpu,
        case_module=plan.case.__module__,
        case_file=getfile(plan.case),
        case_class=plan.case.__qualname__,
        devices=environment.devices_of_run(run, plan.gpus),
        timing=timing_plan(environment.device, options.run_seconds),
        timeout_s=options.timeout_s,
        cpu_bind=options.cpu_bind,
    )
