"""DataParallel: one process that scatters each batch over its devices and gathers the outputs."""

import torch

from gpuscale.cases import TrainingCase
from gpuscale.records import RunRequest
from gpuscale.worker.strategies import AUTOCAST, Autocasting, Strategy, cuda_device


class DataParallelStrategy(Strategy):
    """A single process with all devices: nobody to wait for, and one set of parameters."""

    rank = 0
    local_rank = 0
    world_size = 1

    def __init__(self, request: RunRequest) -> None:
        self.device = cuda_device(request.devices, 0)
        self.devices = request.devices
        self._autocast_dtype = AUTOCAST.get(request.configuration.precision)

    def wrap(self, model: torch.nn.Module, case: TrainingCase) -> torch.nn.Module:
        """The model on the first device inside DataParallel (on CPU it passes batches through)."""
        model = model.to(self.device)
        if self._autocast_dtype is not None:
            model = Autocasting(model, self.device.type, self._autocast_dtype)
        return torch.nn.DataParallel(model, device_ids=list(self.devices) or None)

    def barrier(self) -> None:
        """Return at once: there is one process."""

    def largest(self, value: float) -> float:
        """The value itself: there is one process."""
        return value
