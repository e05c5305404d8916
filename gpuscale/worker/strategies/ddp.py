"""DistributedDataParallel: one process per GPU, gradients all-reduced during the backward."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpuscale.errors import InvalidTrainingError
from gpuscale.records import RunRequest
from gpuscale.worker.nested import tensors_in
from gpuscale.worker.strategies import Strategy, all_finite, cuda_device

_NCCL_SHARES_GPUS = (2, 30)
"""The first version that lets ranks share a GPU, where `NCCL_MULTI_RANK_GPU_ENABLE` is 1."""


class DistributedDataParallelStrategy(Strategy):
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

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model on this rank's device inside DDP."""
        devices = list(self.devices) or None
        return DistributedDataParallel(model.to(self.device), device_ids=devices)

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
        assert isinstance(model, DistributedDataParallel)
        # `no_sync` leaves the flag as the step before it did. After a synchronised one the first
        # forward broadcasts rank 0's buffers: all would wait for rank 0, which alone would not
        # be seen to be late.
        model.require_forward_param_sync = False
        with model.no_sync():
            yield
        # The next synchronised step is then like every other, with its broadcast.
        model.require_forward_param_sync = True

    def realign(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Broadcast rank 0's parameters, buffers and optimiser state, unless it has diverged."""
        groups = optimizer.param_groups
        states = [optimizer.state.get(each, {}) for group in groups for each in group["params"]]
        tensors = [*model.parameters(), *model.buffers(), *tensors_in(states)]
        elements = float(sum(tensor.numel() for tensor in tensors))
        # Every rank asks, so that all of them end, and none in a broadcast.
        if self.largest(elements) != -self.largest(-elements):
            raise InvalidTrainingError(
                f"{type(optimizer).__name__} keeps states of different sizes on different ranks in "
                "steps without gradient synchronisation; ddp cannot be measured with it"
            )
        if self.largest(self.rank == 0 and not all_finite(model)):
            raise InvalidTrainingError(
                "a parameter of rank 0 is not a finite number after steps without gradient "
                "synchronisation; choose a smaller learning rate or a larger batch"
            )
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)
