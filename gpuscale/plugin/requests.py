"""From an item to the request that the launcher takes, or to the reason for skipping it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from gpuscale.cases import TrainingCase
from gpuscale.plugin.items import ItemPlan, case_file
from gpuscale.plugin.options import MeasureOptions
from gpuscale.records import Configuration, Environment, Pacing, RunRequest

_MOST_DATA_WORKERS = 8
_PACINGS = {
    "cuda": Pacing(warmup_steps=10, warmup_s=2.0, windows=20, window_s=0.5, run_seconds=20.0),
    "cpu": Pacing(warmup_steps=2, warmup_s=0.3, windows=10, window_s=0.15, run_seconds=2.0),
}


def skip_reason(plan: ItemPlan, environment: Environment, options: MeasureOptions) -> str | None:
    """Why this item cannot be measured here; None where it can."""
    if environment.device == "cuda":
        if plan.gpus > len(environment.gpus):
            return f"needs {plan.gpus} GPUs; {len(environment.gpus)} found"
        return None
    if plan.strategy == "dp" and plan.gpus > 1:
        return f"dp on {plan.gpus} devices needs GPUs: DataParallel has no CPU counterpart"
    cores = environment.cpu_count or 1
    if plan.gpus * options.threads_per_rank > cores and not options.oversubscribe:
        threads = "" if options.threads_per_rank == 1 else f" of {options.threads_per_rank} threads"
        return (
            f"{plan.gpus} CPU ranks{threads} need as many cores; {cores} found "
            "(--oversubscribe measures all the same)"
        )
    return None


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
        devices=_devices(plan, environment),
        data_root=None if options.data_root is None else str(options.data_root),
        download=options.download,
        pacing=_pacing(environment, options),
        timeout_s=options.timeout_s,
        injections=options.injections,
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
    on_cpu = environment.device == "cpu"
    return Configuration(
        case=case.name(),
        strategy=plan.strategy,
        device=environment.device,
        size=options.size or ("smoke" if on_cpu else "full"),
        precision=options.precision,
        channels_last=options.channels_last,
        compiled=options.compiled,
        scaling=case.scaling,
        data="synthetic" if options.data_root is None else "real",
        threads_per_rank=options.threads_per_rank,
        data_workers=_data_workers(environment, options),
    )


def _data_workers(environment: Environment, options: MeasureOptions) -> int:
    """The same for every number of GPUs, or T(1) would have more help than T(n)."""
    if options.data_workers is not None:
        return options.data_workers
    if environment.device == "cpu":
        return 0
    cores_per_gpu = (environment.cpu_count or 1) // max(1, len(environment.gpus))
    return max(1, min(_MOST_DATA_WORKERS, cores_per_gpu - 1))


def _devices(plan: ItemPlan, environment: Environment) -> tuple[int, ...]:
    """Run r starts at device r mod N, so that T(1) is not always that of GPU 0."""
    count = len(environment.gpus)
    if environment.device == "cpu" or not count:
        return ()
    return tuple((plan.run - 1 + position) % count for position in range(plan.gpus))


def _pacing(environment: Environment, options: MeasureOptions) -> Pacing:
    pacing = _PACINGS[environment.device]
    if options.run_seconds is None:
        return pacing
    return replace(
        pacing,
        run_seconds=options.run_seconds,
        window_s=min(pacing.window_s, options.run_seconds),
    )
