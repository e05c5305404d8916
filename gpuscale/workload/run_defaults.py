"""Default requests for runs, which depend on the case and the machine."""

import dataclasses
import math
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from gpuscale.base.devices import GPU_KINDS, is_gpu
from gpuscale.base.strategies import COMMAND, MICRO_BATCHES, SCHEDULE, STRATEGIES
from gpuscale.records import Configuration, Environment, RunRequest, TimingPlan
from gpuscale.records.request import CommandRequest
from gpuscale.workload.cases import Case, TrainingCase, validate_count
from gpuscale.workload.command_case import CommandCase, joined

MOST_WINDOWS = 30
TIMING_PLANS: Mapping[str, TimingPlan] = {
    **dict.fromkeys(
        GPU_KINDS,
        TimingPlan(warmup_steps=10, warmup_s=2.0, windows=20, window_s=0.5, run_seconds=20.0),
    ),
    "cpu": TimingPlan(warmup_steps=2, warmup_s=0.3, windows=10, window_s=0.15, run_seconds=4.0),
}


def default_request(
    case: type[TrainingCase],
    environment: Environment,
    *,
    strategy: str | None = None,
    gpus: int,
    run: int,
    size: str | None = None,
    batch: int | None = None,
) -> RunRequest:
    """Return the request for one run of a case; raise a CaseError if such a run is impossible.

    The strategy defaults to `default_strategy`, and the batch to the one defined for the size of
    the case: per GPU for weak scaling, over all GPUs for strong scaling.
    """
    built, strategy = case(), strategy or default_strategy(case)
    has_micro_batches = STRATEGIES[strategy].micro_batches
    configuration = Configuration(
        case=case.name(),
        strategy=strategy,
        device=environment.device,
        size=size or ("full" if is_gpu(environment.device) else "smoke"),
        precision="fp32",
        channels_last=False,
        compiled=False,
        scaling=case.scaling,
        data="synthetic",
        threads_per_rank=1,
        data_workers=0,
        strategy_options=case.options_text(strategy),
        schedule=SCHEDULE if has_micro_batches else None,
        micro_batches=MICRO_BATCHES if has_micro_batches else None,
    )
    found = built.named_size(configuration.size)
    if batch is not None and batch != found.batch:
        configuration = replace(configuration, batch=batch)
        found = dataclasses.replace(found, batch=batch)
    batch_per_gpu = built.batch_per_gpu(found, gpus)
    validate_count(f"{case.__name__}.batch_per_gpu() for {gpus} GPUs", batch_per_gpu)
    return replace(
        _request(case, environment, configuration, gpus, run, batch_per_gpu),
        sample_shape=found.sample_shape,
        samples_per_epoch=built.training_samples,
        import_paths=tuple(sys.path),
    )


def command_request(
    case: type[CommandCase],
    environment: Environment,
    *,
    gpus: int,
    run: int,
    batch: int | None = None,
) -> RunRequest:
    """Return the request for one run of a command; raise a CaseError if its batch cannot be split.

    `batch` counts samples over all GPUs if the case has a `global_batch`, otherwise samples per
    GPU; by default, the case's own batch is used.
    """
    across_nodes = bool(environment.nodes)
    launch, processes = case.launch_of(across_nodes=across_nodes), 1
    if across_nodes:
        processes = gpus if launch == "per-rank" else environment.nodes_for(gpus)
    own = case.global_batch or case.batch
    batch_per_gpu = case.batch_per_gpu(gpus, batch)
    configuration = Configuration(
        case=case.name(),
        strategy=COMMAND,
        device=environment.device,
        scaling="strong" if case.global_batch else "weak" if batch_per_gpu else None,
        batch=None if batch == own else batch,
        command=joined(case.words()),
    )
    command = CommandRequest(
        words=case.words(),
        folder=str(Path.cwd()),
        launch=launch,
        processes=processes,
        log_format=case.log_format,
        step_regex=case.step_regex,
        tells_batch=batch_per_gpu is None,
        figure=case.figure,
        metrics=case.metrics(),
    )
    request = _request(case, environment, configuration, gpus, run, batch_per_gpu)
    if launch == "once" and across_nodes:
        # Without regard to the run: the command itself chooses nodes and GPUs, from the first on.
        request = replace(request, devices=devices_of_run(environment, run=1, gpus=gpus))
    return replace(request, command=command)


def _request(
    case: type[Case],
    environment: Environment,
    configuration: Configuration,
    gpus: int,
    run: int,
    batch_per_gpu: int | None,
) -> RunRequest:
    return RunRequest(
        configuration=configuration,
        gpus=gpus,
        index=run,
        batch_per_gpu=batch_per_gpu,
        case_module=case.__module__,
        case_file=file_of_case(case),
        case_class=case.__qualname__,
        devices=devices_of_run(environment, run=run, gpus=gpus),
        timing=TIMING_PLANS[environment.device],
    )


def default_strategy(case: type[TrainingCase]) -> str:
    """Return the case's first strategy that has one rank per GPU, or else its first strategy."""
    return max(case.strategies, key=lambda name: STRATEGIES[name].processes(2))


def file_of_case(case: type[Case]) -> str:
    """Return the path of the file that defines a case."""
    return str(sys.modules[case.__module__].__file__)


def timing_plan(device: str, run_seconds: float | None) -> TimingPlan:
    """Return the length and number of a run's windows, by default those for the device.

    A larger budget of seconds is first spent on more windows, which show whether a run is steady,
    and then on longer windows. With a smaller budget, the ranks shorten the windows.
    """
    plan = TIMING_PLANS[device]
    run_seconds = run_seconds or plan.run_seconds
    if run_seconds <= plan.run_seconds:
        return replace(plan, run_seconds=run_seconds)
    longer = 1 + (run_seconds - plan.run_seconds) / plan.most_windows_s
    return replace(
        plan,
        windows=min(MOST_WINDOWS, math.floor(plan.windows * longer)),
        window_s=plan.window_s * max(1.0, longer * plan.windows / MOST_WINDOWS),
        run_seconds=run_seconds,
    )


def data_workers(environment: Environment) -> int:
    """Return the loader processes per rank; equal for all GPU counts, so as not to favour T(1)."""
    if environment.device == "cpu":
        return 0
    cores_per_gpu = (environment.cpu_count or 1) // max(1, len(environment.gpus))
    return max(1, min(8, cores_per_gpu - 1))


def ranks_per_gpu(strategy: str, gpus: int, environment: Environment) -> int | None:
    """Return the largest number of ranks that share a GPU; None if each rank has its own.

    It is also None if ranks run on CPUs, or if the strategy has one process.
    """
    if environment.device == "cpu" or environment.nodes or not environment.gpus:
        return None
    ranks = math.ceil(STRATEGIES[strategy].processes(gpus) / len(environment.gpus))
    return ranks if ranks > 1 else None


def devices_of_run(environment: Environment, *, run: int, gpus: int) -> tuple[int, ...]:
    """Return the CUDA device of each local rank, the same on every node; empty on a CPU.

    Successive runs use successive blocks of devices, so that T(1) is not always measured on GPU 0.
    Blocks do not overlap, since GPUs 1 and 2 may be linked differently from GPUs 0 and 1.
    """
    count = environment.gpus_per_node
    if environment.device == "cpu" or not count:
        return ()
    on_each_node = math.ceil(gpus / math.ceil(gpus / count))
    blocks = count // math.gcd(count, on_each_node)
    # Runs also rotate over the nodes. When both are back at the first together, blocks move one
    # ahead; otherwise each node would be measured with some of its devices only.
    rounds = (run - 1) // math.lcm(environment.node_count, blocks)
    ahead = rounds % math.gcd(environment.node_count, blocks)
    start = (run - 1 + ahead) * on_each_node
    return tuple((start + position) % count for position in range(gpus))
