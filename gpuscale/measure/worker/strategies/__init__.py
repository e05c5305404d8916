"""The strategies for parallel training, one per file, as listed in `gpuscale.base.strategies`.

This module contains the base class of strategies whose ranks form a process group.
"""

import os
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from gpuscale.measure.worker.training import Strategy, cuda_device
from gpuscale.records import RunRequest

T = TypeVar("T")


class ProcessGroupStrategy(Strategy):
    """One rank per device in a process group, even for a single rank, so that runs are comparable.

    GPU ranks use NCCL and CPU ranks use gloo. The address at which ranks meet comes from the
    environment variables that a launcher sets.
    """

    def __init__(self, request: RunRequest) -> None:
        self.rank = int(os.environ["RANK"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.device = cuda_device(request.devices, self.local_rank)
        self.devices: tuple[int, ...] = () if self.device.index is None else (self.device.index,)
        # Barriers use gloo on the CPU even if gradients use NCCL: a barrier kernel would wait in
        # the very stream that is being timed.
        backend = "gloo"
        if self.devices:
            # NCCL does not support two ranks on one GPU.
            shares_gpu = request.configuration.ranks_per_gpu is not None
            backend = "cpu:gloo,cuda:gloo" if shares_gpu else "cpu:gloo,cuda:nccl"
        # Longer than the run's timeout, so that a hang is reported with the stack traces of all
        # ranks rather than as a timeout error of one rank.
        dist.init_process_group(backend, timeout=timedelta(seconds=request.timeout_s + 60))

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.all_reduce(torch.zeros(1))

    def largest(self, value: float) -> float:
        """Return the largest of the values that the ranks pass."""
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor.item())

    def gathered(self, own: T) -> list[T]:
        """Return all ranks' objects on rank 0, and an empty list on other ranks; uses gloo."""
        everyone: list[T] = [own] * self.world_size if self.rank == 0 else []
        dist.gather_object(own, everyone or None)
        return everyone
