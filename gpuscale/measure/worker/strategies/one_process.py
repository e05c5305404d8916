"""Strategies whose single process drives all devices: `dp` and `mp`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from gpuscale.measure.worker.blocks import stages_of
from gpuscale.measure.worker.data import example_batch
from gpuscale.measure.worker.precision import autocasting
from gpuscale.measure.worker.strategies import OneProcessStrategy
from gpuscale.measure.worker.tensors import map_tensors
from gpuscale.measure.worker.training import Training
from gpuscale.records import RunRequest
from gpuscale.workload.cases import TrainingCase


class DataParallelStrategy(OneProcessStrategy):
    """DataParallel: scatters batches over the devices, and gathers outputs on the first device."""

    def __init__(self, request: RunRequest) -> None:
        super().__init__(request)
        self._precision = request.configuration.precision

    def wrap(self, model: nn.Module, case: TrainingCase) -> nn.Module:
        """Return the model inside DataParallel on the first device (on CPU this has no effect)."""
        model = autocasting(model.to(self.device), self._precision, self.device.type)
        return nn.DataParallel(model, device_ids=list(self.devices) or None)


class ModelParallelStrategy(OneProcessStrategy):
    """Spreads layers over all devices, which compute in turn; the last device computes the loss."""

    def wrap(self, model: nn.Module, case: TrainingCase) -> nn.Module:
        """Return the model in stages, one on each device; a single device gets the whole model."""
        if len(self.devices) < 2:
            return model.to(self.device)
        inputs, _ = example_batch(case, case.size)
        stages = stages_of(case.blocks(model), inputs, len(self.devices))
        return _OnDevices(stages, [torch.device("cuda", number) for number in self.devices])

    def forward_backward(self, training: Training, inputs: Any, targets: Any) -> torch.Tensor:
        """Compute the gradients of a batch, and return the loss, which is on the last device."""
        if len(self.devices) > 1:
            last = torch.device("cuda", self.devices[-1])
            targets = map_tensors(lambda tensor: tensor.to(last, non_blocking=True), targets)
        return training.forward_backward(inputs, targets)


class _OnDevices(nn.Module):
    """Stages of a model on several devices; each passes its output on to the next stage."""

    def __init__(self, stages: Sequence[nn.Module], devices: Sequence[torch.device]) -> None:
        super().__init__()
        self._devices = devices
        pairs = zip(stages, devices, strict=True)
        self._stages = nn.ModuleList(stage.to(device) for stage, device in pairs)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for stage, device in zip(self._stages, self._devices, strict=True):
            values = stage(values.to(device, non_blocking=True))
        return values
