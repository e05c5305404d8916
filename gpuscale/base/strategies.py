"""The demands of each strategy on a run; how its ranks work is in worker/strategies, a file each.

A new strategy is such a file and its entry in `STRATEGIES`. Records may name others, which other
tools have measured: a reader asks with `STRATEGIES.get`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Schedule = Literal["gpipe", "1f1b"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """A strategy, as far as it must be known where there is no torch."""

    words: str
    """How it makes a case parallel, for docs."""
    single: str
    """The meaning of T(1), which S(n) and E(n) are taken over."""
    implementation: str | None
    """The module and the class that a rank uses; None where a case cannot choose it."""
    one_process: bool = False
    """True where a single rank drives all GPUs, and not a rank each."""
    ranks_agree: bool
    """All ranks have the same parameters after training, bit for bit, or the run is invalid."""
    inside_computing: str | None = None
    """The communication that no step can leave out; None where synchronisation can be paused."""
    paused: str = "communication"
    """The communication that is left out where it is paused."""
    not_on_cpu: str | None = None
    """Why several CPU ranks cannot stand in for its GPUs; None where they can."""
    not_compiled: str | None = None
    """Why it cannot be measured with --compile; None where it can."""
    oldest_torch: tuple[int, int] = (2, 6)
    """The first torch that it can be measured with."""
    not_older: str | None = None
    """Why not with an older one; None where gpuscale has none."""
    options: Mapping[str, type | tuple[str, ...]] = field(default_factory=dict)
    """What a case can say of it in `strategy_options`: the type of each, or the words it takes."""
    not_accumulated: str | None = None
    """Why it cannot be measured with --accumulate; None where it can."""
    not_fp16: str | None = None
    """Why it cannot be measured with --precision fp16; None where it can."""
    in_blocks: bool = False
    """It cuts the model among the GPUs, between the blocks that the case gives."""
    micro_batches: bool = False
    """It divides a batch, so that the GPUs compute on parts of it at the same time."""
    below_table: str | None = None
    """What to know of its speedups; None where they are as one would think."""
    package: str | None = None
    """What it needs beside torch, which an extra of gpuscale of that name installs."""
    wraps: str | None = None
    """The strategy beneath it, whose published figures count for it; tables have their ratio."""

    def processes(self, gpus: int) -> int:
        """The number of ranks that so many GPUs take."""
        return 1 if self.one_process else gpus


def is_older(torch_version: str | None, first: tuple[int, int]) -> bool:
    """True for a version such as `2.8.0+cu129` that comes before the first."""
    found = re.match(r"(\d+)\.(\d+)", torch_version or "")
    return found is not None and (int(found[1]), int(found[2])) < first


COMMAND = "command"
"""The strategy of a `CommandCase`: whatever its command does."""

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
"""Those that a `TrainingCase` can name."""
SCHEDULE: Schedule = "gpipe"
MICRO_BATCHES = 4
"""Of each GPU's share of a batch: with four for each stage of a pipeline less than a fifth of its
time is lost to filling and draining it, however many stages there are."""
ONE_PROCESS_STRATEGIES = tuple(name for name, demands in STRATEGIES.items() if demands.one_process)
