"""DataParallel: one process that scatters each batch over its devices and gathers the outputs."""

import torch

from gpuscale.measure.worker.strategies import AUTOCAST, Autocasting
from gpuscale.measure.worker.strategies.one_process import OneProcessStrategy
from gpuscale.records import RunRequest
from gpuscale.workload.cases import TrainingCase


class DataParallelStrategy(OneProcessStrategy):
    """The batch goes to the first device, and the outputs come back there."""

    def __init__(self, request: RunRequest) -> None:
        super().__init__(request)
        self._autocast_dtype = AUTOCAST.get(request.configuration.precision)

    def wrap(self, model: torch.nn.Module, case: TrainingCase) -> torch.nn.Module:
        """The model on the first device inside DataParallel (on CPU it passes batches through)."""
        model = model.to(self.device)
        if self._autocast_dtype is not None:
            model = Autocasting(model, self.device.type, self._autocast_dtype)
        return torch.nn.DataParallel(model, device_ids=list(self.devices) or None)
