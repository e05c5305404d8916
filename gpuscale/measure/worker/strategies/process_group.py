"""The ranks of strategies that start one for each device, joined to torch's process group."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from gpuscale.measure.worker.nested import tensors_in
from gpuscale.measure.worker.strategies import Strategy, cuda_device
from gpuscale.records import RunRequest

_NCCL_SHARES_GPUS = (2, 30)
"""The first version that lets ranks share a GPU, where `NCCL_MULTI_RANK_GPU_ENABLE` is 1."""


class ProcessGroupStrategy(Strategy):
    """NCCL between GPUs, gloo between CPU ranks; also with a single rank, so that T(1) is T(n)'s.

    The rendezvous comes from the environment variables that torch's launcher or Slurm's sets.
    """

    def __init__(self, request: RunRequest) -> None:
        self.rank = int(os.environ["RANK"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.device = cuda_device(request.devices, self.local_rank)
        self.devices: tuple[int, ...] = () if self.device.index is None else (self.device.index,)
        # Barriers go through gloo on the CPU also beside NCCL: a barrier by kernel would
        # wait in the very stream that is being timed.
        backend = "gloo"
        if self.devices:
            backend = "cpu:gloo,cuda:nccl"
            if request.configuration.ranks_per_gpu:
                if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
                    backend = "cpu:gloo,cuda:gloo"
                elif torch.cuda.nccl.version() < _NCCL_SHARES_GPUS:
                    # It refuses two ranks on one GPU only where it takes them for one host's.
                    os.environ["NCCL_HOSTID"] = f"gpuscale-{self.rank}"
        # Longer than the run may take: a hang is then told by the stacks of all ranks, and not
        # by the complaint of one that waited.
        dist.init_process_group(backend, timeout=timedelta(seconds=request.timeout_s + 60))

    def barrier(self) -> None:
        """Return once every rank has come here."""
        dist.all_reduce(torch.zeros(1))

    def largest(self, value: float) -> float:
        """The largest of all ranks' values, the same on every rank."""
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor.item())


def state_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Parameters, buffers and tensors of the optimiser's state, in an order that ranks share."""
    groups = optimizer.param_groups
    states = [optimizer.state.get(each, {}) for group in groups for each in group["params"]]
    return [*model.parameters(), *model.buffers(), *tensors_in(states)]
