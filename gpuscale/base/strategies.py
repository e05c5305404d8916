"""The table of strategies and of their demands on a run.

A new strategy is a file in measure/worker/strategies and its entry in `STRATEGIES`. Records may
name strategies of other tools, so readers use `STRATEGIES.get`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Schedule = Literal["gpipe", "1f1b"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """The properties of a strategy that are needed without torch."""

    words: str
    """The description in the docs."""
    single: str
    """The meaning of T(1), the base of S(n) and E(n)."""
    implementation: str | None
    """The module and class of its ranks; None if a case cannot choose it."""
    one_process: bool = False
    """True if a single rank drives all GPUs."""
    ranks_agree: bool
    """True if all ranks must have the same parameters after training, bit for bit."""
    inside_computing: str | None = None
    """The communication that no step can leave out; None if synchronisation can be paused."""
    paused: str = "communication"
    """The communication that a step without synchronisation leaves out."""
    not_on_cpu: str | None = None
    """The reason why CPU ranks cannot stand in for its GPUs; None if they can."""
    not_compiled: str | None = None
    """The reason why --compile does not work with it; None if it does."""
    oldest_torch: tuple[int, int] = (2, 6)
    """The first version of torch that it works with."""
    not_older: str | None = None
    """The reason why it does not work with an older one; None if gpuscale supports none."""
    options: Mapping[str, type | tuple[str, ...]] = field(default_factory=dict)
    """Options for `strategy_options` of a case, each with its type or its allowed words."""
    not_accumulated: str | None = None
    """The reason why --accumulate does not work with it; None if it does."""
    not_fp16: str | None = None
    """The reason why --precision fp16 does not work with it; None if it does."""
    in_blocks: bool = False
    """True if it divides the model among the GPUs, between the blocks of the case."""
    micro_batches: bool = False
    """True if it divides a batch, so that the GPUs compute on its parts at the same time."""
    below_table: str | None = None
    """A remark below tables on how to read the speedups; None if they need none."""
    package: str | None = None
    """The package that it needs besides torch, and the name of gpuscale's extra for it."""
    wraps: str | None = None
    """The strategy that it builds on, whose published figures apply; tables show their ratio."""

    def processes(self, gpus: int) -> int:
        """The number of ranks for a number of GPUs."""
        return 1 if self.one_process else gpus


def is_older(torch_version: str | None, first: tuple[int, int]) -> bool:
    """True for a version such as `2.8.0+cu129` that comes before the first."""
    found = re.match(r"(\d+)\.(\d+)", torch_version or "")
    return found is not None and (int(found[1]), int(found[2])) < first


COMMAND = "command"
"""The strategy of a `CommandCase`, whatever its command does."""

STRATEGIES: Mapping[str, Demands] = {
    "dp": Demands(
        words="DataParallel: one process scatters each batch over its GPUs and gathers the outputs",
        single="the same with one GPU",
        implementation="gpuscale.measure.worker.strategies.one_process:DataParallelStrategy",
        one_process=True,
        ranks_agree=True,
        inside_computing="scatter, replicate and gather",
        not_on_cpu="DataParallel has no CPU counterpart",
        not_compiled=(
            "torch compiles no replica of DataParallel, so T(1) would be compiled and T(n) not"
        ),
    ),
    "ddp": Demands(
        words="DistributedDataParallel: a process per GPU; gradients are averaged in the backward",
        single="the same wrapper in a group of one",
        implementation="gpuscale.measure.worker.strategies.ddp:DistributedDataParallelStrategy",
        paused="all-reduce",
        ranks_agree=True,
        options={
            "bucket_cap_mb": int,
            "comm_hook": ("fp16_compress", "bf16_compress", "powerSGD"),
            "find_unused_parameters": bool,
            "gradient_as_bucket_view": bool,
            "static_graph": bool,
        },
    ),
    "fsdp": Demands(
        words=(
            "FSDP2 (`fully_shard`): a process per GPU with a shard of parameters, gradients and "
            "optimiser state; each block gathers its parameters to compute"
        ),
        single="the same in a group of one, without collectives",
        implementation="gpuscale.measure.worker.strategies.fsdp:FullyShardedStrategy",
        paused="all-gather and reduce-scatter",
        ranks_agree=False,
        oldest_torch=(2, 9),
        not_older="its collectives cannot be paused",
    ),
    "lightning": Demands(
        words="PyTorch Lightning: `Trainer.fit` makes the steps, over DistributedDataParallel",
        single="the same in a group of one",
        implementation="gpuscale.measure.worker.strategies.lightning:LightningStrategy",
        ranks_agree=True,
        package="lightning",
        wraps="ddp",
    ),
    "pipeline": Demands(
        words=(
            "`torch.distributed.pipelining`: a process per GPU, each with a stage of the model, "
            "through which a batch goes in micro-batches"
        ),
        single="the whole batch at once, without a pipeline",
        implementation="gpuscale.measure.worker.strategies.pipeline:PipelineStrategy",
        ranks_agree=False,
        not_compiled="stages are not compiled, so T(1) would be and T(n) not",
        not_accumulated="its micro-batches are accumulated already",
        not_fp16="a loss scaler would have to agree with all stages on every step",
        in_blocks=True,
        micro_batches=True,
        below_table="T(1) is the whole batch at once on one GPU, without a pipeline",
    ),
    "mp": Demands(
        words="model parallel: one process whose layers lie on all GPUs, which compute in turn",
        single="the whole model on one GPU",
        implementation="gpuscale.measure.worker.strategies.one_process:ModelParallelStrategy",
        one_process=True,
        ranks_agree=True,
        inside_computing="copies from one GPU's layers to the next's",
        not_on_cpu="the layers of one process cannot lie on several CPU ranks",
        not_compiled="graphs over several GPUs have not been tried",
        in_blocks=True,
        below_table=(
            "one GPU computes at a time, so a speedup of up to 1 is expected; what it saves is "
            "memory on each"
        ),
    ),
    COMMAND: Demands(
        words="any command: it makes itself parallel, and its lines tell its steps",
        single="the same command with 1 GPU",
        implementation=None,
        ranks_agree=False,
    ),
}
CASE_STRATEGIES = tuple(name for name, demands in STRATEGIES.items() if demands.implementation)
"""The strategies that a `TrainingCase` can name."""
SCHEDULE: Schedule = "gpipe"
MICRO_BATCHES = 4
"""Micro-batches per GPU: with four for each stage of a pipeline, filling and draining it take less
than a fifth of its time, however many stages there are."""
ONE_PROCESS_STRATEGIES = tuple(name for name, demands in STRATEGIES.items() if demands.one_process)
