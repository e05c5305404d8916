"""Model parallel: the layers of one process lie on several devices, and compute in turn."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from gpuscale.measure.worker.blocks import stages_of
from gpuscale.measure.worker.data import example_batch
from gpuscale.measure.worker.nested import map_tensors
from gpuscale.measure.worker.strategies.one_process import OneProcessStrategy
from gpuscale.measure.worker.training import Training
from gpuscale.workload.cases import TrainingCase


class ModelParallelStrategy(OneProcessStrategy):
    """Inputs go to the first device, targets to the last."""

    def wrap(self, model: nn.Module, case: TrainingCase) -> nn.Module:
        """The model's stages, each on its device; the whole model where there is one."""
        if len(self.devices) < 2:
            return model.to(self.device)
        inputs, _ = example_batch(case, case.size)
        stages = stages_of(case.blocks(model), inputs, len(self.devices))
        return _OnDevices(stages, [torch.device("cuda", number) for number in self.devices])

    def forward_backward(self, training: Training, inputs: Any, targets: Any) -> torch.Tensor:
        """The loss of a batch, whose targets go where the last layers are."""
        if len(self.devices) > 1:
            last = torch.device("cuda", self.devices[-1])
            targets = map_tensors(lambda tensor: tensor.to(last, non_blocking=True), targets)
        return training.forward_backward(inputs, targets)


class _OnDevices(nn.Module):
    """Stages that hand on what they return from device to device."""

    def __init__(self, stages: Sequence[nn.Module], devices: Sequence[torch.device]) -> None:
        super().__init__()
        self._devices = devices
        pairs = zip(stages, devices, strict=True)
        self._stages = nn.ModuleList(stage.to(device) for stage, device in pairs)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for stage, device in zip(self._stages, self._devices, strict=True):
            values = stage(values.to(device, non_blocking=True))
        return values
