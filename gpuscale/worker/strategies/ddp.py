"""DistributedDataParallel: one process per GPU, gradients all-reduced during the backward."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from gpuscale.records import RunRequest
from gpuscale.worker.strategies import cuda_device


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

    @contextmanager
    def unsynchronized(self, model: torch.nn.Module) -> Iterator[None]:
        """DDP's own `no_sync`: hooks and buckets stay, all communication is left out."""
        assert isinstance(model, torch.nn.parallel.DistributedDataParallel)
        # `no_sync` leaves the flag as the step before it did. After a synchronised one the first
        # forward broadcasts rank 0's buffers: all would wait for rank 0, which alone would not
        # be seen to be late.
        model.require_forward_param_sync = False
        with model.no_sync():
            yield
        # The next synchronised step is then like every other, with its broadcast.
        model.require_forward_param_sync = True

    def realign(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Broadcast rank 0's parameters, buffers and optimiser state."""
        for tensor in (*model.parameters(), *model.buffers(), *_state_tensors(optimizer)):
            dist.broadcast(tensor.detach(), src=0)


def _state_tensors(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """The tensors of an optimiser's state, in an order that all ranks share."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for name in sorted(state):
                if isinstance(state[name], torch.Tensor):
                    yield state[name]
