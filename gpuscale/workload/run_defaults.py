"""Defaults for the duration of a run, and for the devices and processes that a run uses."""

import math
from collections.abc import Mapping

from msgspec.structs import replace

from gpuscale.base.host import GPU_KINDS
from gpuscale.base.strategies import STRATEGIES
from gpuscale.records import Environment, TimingPlan
from gpuscale.workload.cases import TrainingCase

MOST_WINDOWS = 30
TIMING_PLANS: Mapping[str, TimingPlan] = {
    **dict.fromkeys(
        GPU_KINDS,
        TimingPlan(warmup_steps=10, warmup_s=2.0, windows=20, window_s=0.5, run_seconds=20.0),
    ),
    "cpu": TimingPlan(warmup_steps=2, warmup_s=0.3, windows=10, window_s=0.15, run_seconds=4.0),
}


def default_strategy(case: type[TrainingCase]) -> str:
    """Return the case's first strategy that has one rank per GPU, or else its first strategy."""
    return max(case.strategies, key=lambda name: STRATEGIES[name].processes(2))


def timing_plan(device: str, run_seconds: float | None) -> TimingPlan:
    """Return the timing plan of a run; without `run_seconds`, the default plan of the device.

    A larger time budget first adds windows, which show whether a run is steady, and then lengthens
    them. With a smaller budget, the ranks reduce the number or length of windows.
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
    """Return the number of data-loader processes per rank, whatever the GPU count; 0 on CPU."""
    if environment.device == "cpu":
        return 0
    cores_per_gpu = (environment.cpu_count or 1) // max(1, len(environment.gpus))
    return max(1, min(8, cores_per_gpu - 1))


def ranks_per_gpu(strategy: str, gpus: int, environment: Environment) -> int | None:
    """Return the largest number of ranks that share a GPU; None if each rank has its own.

    Also return None if ranks run on CPUs or on several nodes, or if the strategy has one process.
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
    # Runs also rotate over the nodes. After each common cycle of nodes and blocks, the blocks shift
    # by one; otherwise only some devices of each node would ever be measured.
    rounds = (run - 1) // math.lcm(environment.node_count, blocks)
    ahead = rounds % math.gcd(environment.node_count, blocks)
    start = (run - 1 + ahead) * on_each_node
    return tuple((start + position) % count for position in range(gpus))
