"""The strategies for parallel training, one per file, as listed in `gpuscale.base.strategies`.

This module has the two base classes: for a single process, and for ranks in a process group.
"""

import os
import pkgutil
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from gpuscale.base.strategies import STRATEGIES
from gpuscale.measure.worker.training import Strategy
from gpuscale.records import RunRequest

T = TypeVar("T")
_NCCL_SHARES_GPUS = (2, 30)
"""First version of NCCL in which `NCCL_MULTI_RANK_GPU_ENABLE=1` lets ranks share a GPU."""


def strategy_for(request: RunRequest) -> Strategy:
    """Return the strategy that the request names, after joining the process group."""
    demands = STRATEGIES[request.configuration.strategy]
    assert demands.implementation is not None, "gpuscale has no ranks of its own for a command"
    strategy: Strategy = pkgutil.resolve_name(demands.implementation)(request)
    return strategy


def cuda_device(devices: tuple[int, ...], position: int) -> torch.device:
    """Select the CUDA device at a position in a list, and return it; the CPU for an empty list."""
    if not devices:
        return torch.device("cpu")
    device = torch.device("cuda", devices[position])
    torch.cuda.set_device(device)
    return device


class OneProcessStrategy(Strategy):
    """A single process that drives all devices, with one set of parameters."""

    rank = 0
    local_rank = 0
    world_size = 1

    def __init__(self, request: RunRequest) -> None:
        self.device = cuda_device(request.devices, 0)
        self.devices = request.devices

    def barrier(self) -> None:
        """Return at once, as there is only one process."""

    def largest(self, value: float) -> float:
        """Return the value itself, as there is only one process."""
        return value

    def gathered(self, own: T) -> list[T]:
        """Return the only process's object."""
        return [own]


class ProcessGroupStrategy(Strategy):
    """One rank per device in torch's process group, even for T(1), to be comparable with T(n).

    GPU ranks use NCCL and CPU ranks use gloo. The address at which ranks meet comes from the
    environment variables that a launcher sets.
    """

    def __init__(self, request: RunRequest) -> None:
        self.rank = int(os.environ["RANK"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.device = cuda_device(request.devices, self.local_rank)
        self.devices: tuple[int, ...] = () if self.device.index is None else (self.device.index,)
        # Barriers use gloo on the CPU even if gradients use NCCL: a barrier by kernel would wait in
        # the very stream that is being timed.
        backend = "gloo"
        if self.devices:
            backend = "cpu:gloo,cuda:nccl"
            if request.configuration.ranks_per_gpu:
                if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
                    backend = "cpu:gloo,cuda:gloo"
                elif torch.cuda.nccl.version() < _NCCL_SHARES_GPUS:
                    # It refuses two ranks on one GPU only if they seem to be on one host.
                    os.environ["NCCL_HOSTID"] = f"gpuscale-{self.rank}"
        # Longer than the run may take: the stacks of all ranks then show a hang, instead of the
        # complaint of one that waited.
        dist.init_process_group(backend, timeout=timedelta(seconds=request.timeout_s + 60))

    def barrier(self) -> None:
        """Return once every rank has reached this point."""
        dist.all_reduce(torch.zeros(1))

    def largest(self, value: float) -> float:
        """Return the largest of all ranks' values, which is the same on every rank."""
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor.item())

    def gathered(self, own: T) -> list[T]:
        """Return the objects of all ranks, in order of rank, on rank 0; no objects elsewhere."""
        everyone: list[T] = [own] * self.world_size if self.rank == 0 else []
        # Over gloo, as the group has a backend for tensors on the CPU.
        dist.gather_object(own, everyone or None)
        return everyone
