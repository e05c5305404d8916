"""DataParallel: one process that scatters each batch over its devices and gathers the outputs."""

from contextlib import AbstractContextManager, nullcontext

import torch

from gpuscale.records import RunRequest
from gpuscale.worker.strategies.base import cuda_device


class DataParallelStrategy:
    """A single process with all devices; there is nobody to wait for."""

    rank = 0
    local_rank = 0
    world_size = 1

    def __init__(self, request: RunRequest) -> None:
        self.device = cuda_device(request.devices, 0)
        self.devices = request.devices

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model on the first device inside DataParallel (on CPU it passes batches through)."""
        return torch.nn.DataParallel(model.to(self.device), device_ids=list(self.devices) or None)

    def barrier(self) -> None:
        """Return at once: there is one process."""

    def largest(self, value: float) -> float:
        """The value itself: there is one process."""
        return value

    @property
    def can_pause_synchronization(self) -> bool:
        """False: scatter, replicate and gather are part of every forward and backward."""
        return False

    def unsynchronized(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Nothing to leave out."""
        return nullcontext()

    def realign(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Nothing to do: there is one set of parameters."""
