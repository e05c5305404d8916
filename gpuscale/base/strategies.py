"""Table of the parallelisation strategies and their requirements.

Records may name strategies of other tools, so look names up with `STRATEGIES.get`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """Requirements and properties of a strategy, kept apart from its code, which imports torch."""

    implementation: str | None
    """Module in measure/worker/strategies, and class; None if cases cannot choose the strategy."""
    one_process: bool = False
    """True if a single rank drives all GPUs."""
    ranks_agree: bool = True
    """True if all ranks must have the same parameters after training, bit for bit."""
    inside_computing: str | None = None
    """Communication that is part of every step; None if steps can run without synchronisation."""
    paused: str = "communication"
    """Communication that is skipped in steps without synchronisation."""
    not_on_cpu: str | None = None
    """Reason why CPU ranks cannot stand in for GPUs; None if they can."""
    conflicts: Mapping[str, str] = field(default_factory=dict)
    """Reason why an option does not work with the strategy, by option, such as --compile."""
    oldest_torch: tuple[int, int] = (2, 6)
    not_older: str = "gpuscale supports no older one"
    """Reason why versions before `oldest_torch` fail."""
    options: tuple[str, ...] = ()
    """Keys allowed in the `strategy_options` of a case."""
    micro_batches: bool = False
    """True if the strategy splits batches into micro-batches that GPUs process concurrently."""
    below_table: str | None = None
    """Note printed below tables that explains the strategy's speedups; None if not needed."""
    package: str | None = None
    """Package needed besides torch, if any; gpuscale's extra of the same name installs it."""
    wraps: str | None = None
    """Strategy that this one wraps, if any. Published figures for the wrapped strategy apply to
    both, and tables show the ratio between the two."""

    def processes(self, gpus: int) -> int:
        """Return the number of ranks needed for a number of GPUs."""
        return 1 if self.one_process else gpus


def is_older(torch_version: str | None, first: tuple[int, int]) -> bool:
    """True if a torch version such as `2.8.0+cu129` is older than `first`; False if unknown."""
    found = re.match(r"(\d+)\.(\d+)", torch_version or "")
    return found is not None and (int(found[1]), int(found[2])) < first


def is_pipeline(strategy: str) -> bool:
    """True if a strategy is known and passes micro-batches through a pipeline of GPUs."""
    demands = STRATEGIES.get(strategy)
    return demands is not None and demands.micro_batches


COMMAND = "command"
"""Name of the strategy of every `CommandCase`."""

STRATEGIES: Mapping[str, Demands] = {
    "dp": Demands(
        implementation="data_parallel:DataParallelStrategy",
        one_process=True,
        inside_computing="scatter, replicate and gather",
        not_on_cpu="DataParallel has no CPU counterpart (--strategy chooses others)",
        conflicts={
            "--compile": "torch does not compile replicas of DataParallel, so T(1) would be "
            "compiled and T(n) not"
        },
    ),
    "ddp": Demands(
        implementation="data_parallel:DistributedDataParallelStrategy",
        paused="all-reduce",
        options=(
            "bucket_cap_mb",
            "comm_hook",
            "find_unused_parameters",
            "gradient_as_bucket_view",
            "static_graph",
        ),
    ),
    "fsdp": Demands(
        implementation="fsdp:FullyShardedStrategy",
        paused="all-gather and reduce-scatter",
        ranks_agree=False,
        oldest_torch=(2, 9),
        not_older="its collectives cannot be paused",
    ),
    "lightning": Demands(
        implementation="lightning:LightningStrategy", package="lightning", wraps="ddp"
    ),
    "pipeline": Demands(
        implementation="stages:PipelineStrategy",
        ranks_agree=False,
        conflicts={
            "--compile": "stages are not compiled, so T(1) would be and T(n) not",
            "--accumulate": "its micro-batches are accumulated already",
            "--precision fp16": "a loss scaler would have to agree with all stages on every step",
        },
        micro_batches=True,
        below_table="T(1) is the whole batch at once, without a pipeline",
    ),
    "mp": Demands(
        implementation="stages:ModelParallelStrategy",
        one_process=True,
        inside_computing="copies from one GPU's layers to the next's",
        not_on_cpu="the layers of one process cannot lie on several CPU ranks",
        conflicts={"--compile": "compiled graphs over several GPUs are untested"},
        below_table="one GPU computes at a time: a speedup of 1 is the most, but mp saves memory",
    ),
    COMMAND: Demands(implementation=None, ranks_agree=False),
}
CASE_STRATEGIES = tuple(name for name, demands in STRATEGIES.items() if demands.implementation)
MICRO_BATCHES = 4
"""Default number of micro-batches per GPU. With four per stage, a pipeline spends less than a fifth
of its time filling and draining, whatever the number of stages."""
