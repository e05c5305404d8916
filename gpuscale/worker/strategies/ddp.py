"""DistributedDataParallel: one process per GPU, gradients all-reduced during the backward."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from gpuscale.records import RunRequest
from gpuscale.worker.strategies.base import cuda_device


class DistributedDataParallelStrategy:
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
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        # Longer than the run may take: a hang is then told by the stacks of all ranks, and not
        # by the complaint of one that waited.
        patience = timedelta(seconds=request.timeout_s + 60)
        dist.init_process_group(backend, timeout=patience)

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model on this rank's device inside DDP."""
        return torch.nn.parallel.DistributedDataParallel(
            model.to(self.device), device_ids=list(self.devices) or None
        )

    def barrier(self) -> None:
        """Return once every rank has come here."""
        dist.all_reduce(torch.zeros(1))

    def largest(self, value: float) -> float:
        """The largest of all ranks' values, the same on every rank."""
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor.item())

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()
