"""DataParallel: one process that scatters each batch over its devices and gathers the outputs."""

from typing import Any

import torch

from gpuscale.cases import TrainingCase
from gpuscale.records import RunRequest
from gpuscale.worker.strategies import AUTOCAST, Strategy, cuda_device


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
            model = _Autocasting(model, self.device.type, self._autocast_dtype)
        return torch.nn.DataParallel(model, device_ids=list(self.devices) or None)

    def barrier(self) -> None:
        """Return at once: there is one process."""

    def largest(self, value: float) -> float:
        """The value itself: there is one process."""
        return value


class _Autocasting(torch.nn.Module):
    """A model that enters autocast by itself, on whichever thread it is called.

    DataParallel calls its replicas on threads of their own and passes on to them that there is
    autocast, but not in which format: bf16 would become fp16, without a loss scaler.
    """

    def __init__(self, model: torch.nn.Module, device_type: str, dtype: torch.dtype) -> None:
        super().__init__()
        self._model = model
        self._device_type = device_type
        self._dtype = dtype

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        with torch.autocast(self._device_type, dtype=self._dtype):
            return self._model(*inputs, **keywords)
