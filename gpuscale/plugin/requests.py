"""From an item to the request that the launcher takes, or to the reason for skipping it."""

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from msgspec.structs import replace

from gpuscale.cases import TrainingCase
from gpuscale.errors import CaseError, UsageError
from gpuscale.injections import parse_injection
from gpuscale.plugin.items import ItemPlan, case_file
from gpuscale.plugin.options import MeasureOptions
from gpuscale.records import Configuration, Environment, Pacing, RunRequest
from gpuscale.run_defaults import (
    MOST_WINDOWS,
    PACINGS,
    SIZES,
    data_workers,
    devices_of_run,
)


def skip_reason(plan: ItemPlan, environment: Environment, options: MeasureOptions) -> str | None:
    """Why this item cannot be measured here; None where it can."""
    if plan.strategy == "dp" and options.compiled:
        return (
            "dp with --compile: torch compiles no replica of DataParallel, so T(1) would be "
            "compiled and T(n) not"
        )
    if environment.device == "cuda":
        return _lack_of_gpus(plan, environment)
    if plan.strategy == "dp" and plan.gpus > 1:
        return f"dp on {plan.gpus} devices needs GPUs: DataParallel has no CPU counterpart"
    cores = environment.cores_per_node
    slots = environment.node_count * (cores // options.threads_per_rank)
    if plan.gpus > slots and not options.oversubscribe:
        threads = "" if options.threads_per_rank == 1 else f" of {options.threads_per_rank} threads"
        return (
            f"{plan.gpus} CPU ranks{threads} need as many cores; {_found(environment, cores)} "
            "(--oversubscribe measures all the same)"
        )
    return None


def _lack_of_gpus(plan: ItemPlan, environment: Environment) -> str | None:
    on_each = environment.gpus_per_node
    if plan.strategy == "dp" and plan.gpus > on_each and environment.nodes:
        return f"dp drives its {plan.gpus} GPUs from one process; a node has {on_each}"
    if plan.gpus > environment.node_count * on_each:
        return f"needs {plan.gpus} GPUs; {_found(environment, on_each)}"
    return None


def _found(environment: Environment, on_each: int) -> str:
    if environment.node_count == 1:
        return f"{on_each} found"
    return f"{environment.node_count} nodes with {on_each} each found"


def run_request(plan: ItemPlan, environment: Environment, options: MeasureOptions) -> RunRequest:
    """The request for an item's run.

    Raises:
        CaseError: the case has no such size, or its batch cannot be divided.
    """
    case = plan.case()
    configuration = _configuration(plan, case, environment, options)
    size = case.named_size(configuration.size)
    return RunRequest(
        configuration=configuration,
        gpus=plan.gpus,
        index=plan.run,
        batch_per_gpu=case.batch_per_gpu(size, plan.gpus),
        sample_shape=size.sample_shape,
        case_module=plan.case.__module__,
        case_file=case_file(plan.case),
        case_class=plan.case.__qualname__,
        import_paths=tuple(sys.path),
        devices=devices_of_run(environment, run=plan.run, gpus=plan.gpus),
        data_root=None if options.data_root is None else str(options.data_root),
        download=options.download,
        pacing=_pacing(environment, options),
        timeout_s=options.timeout_s,
        injections=options.injections,
    )


def refuse_unknown_size(cases: Collection[type[TrainingCase]], size: str | None) -> None:
    """Checks that every case has the size that was asked for, before anything is measured.

    Raises:
        UsageError: naming the cases that lack it.
    """
    problems = []
    for case in sorted(cases, key=lambda case: case.name()):
        try:
            if size is not None and case.sizes:
                case().named_size(size)
        except CaseError as error:
            problems.append(str(error))
    if problems:
        raise UsageError(f"--size {size}: {'; '.join(problems)}")


def refuse_absent_ranks(plans: Collection[ItemPlan], injections: Collection[str]) -> None:
    """Checks that every fault has a rank to happen to, before results are marked with it.

    Raises:
        UsageError: naming the first fault without one.
    """
    most = max((1 if plan.strategy == "dp" else plan.gpus for plan in plans), default=0)
    for text in injections:
        rank = parse_injection(text).rank
        if plans and rank is not None and rank >= most:
            raise UsageError(
                f"--inject: '{text}' would never happen: no item that was chosen has a rank "
                f"{rank}; dp is one process, so its only rank is 0"
            )


def cases_revision(folder: Path) -> str | None:
    """The git revision of the cases' folder, with `-dirty` for uncommitted changes there."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None


def _configuration(
    plan: ItemPlan, case: TrainingCase, environment: Environment, options: MeasureOptions
) -> Configuration:
    return Configuration(
        case=case.name(),
        strategy=plan.strategy,
        device=environment.device,
        size=options.size or SIZES[environment.device],
        precision=options.precision,
        channels_last=options.channels_last,
        compiled=options.compiled,
        scaling=case.scaling,
        data="synthetic" if options.data_root is None else "real",
        threads_per_rank=options.threads_per_rank,
        data_workers=(
            data_workers(environment) if options.data_workers is None else options.data_workers
        ),
    )


def _pacing(environment: Environment, options: MeasureOptions) -> Pacing:
    pacing = PACINGS[environment.device]
    if options.run_seconds is None:
        return pacing
    # Who gives time wants it used: more windows first, since they tell steadiness, then longer.
    pacing = replace(pacing, run_seconds=options.run_seconds, windows=MOST_WINDOWS)
    longer = max(1.0, pacing.run_seconds / pacing.most_windows_s)
    return replace(pacing, window_s=pacing.window_s * longer)
