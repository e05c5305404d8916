"""One rank's training step."""

import torch

from gpuscale.cases import TrainingCase
from gpuscale.records import RunRequest
from gpuscale.worker.data import Batches
from gpuscale.worker.precision import autocast, grad_scaler, set_fp32_mode
from gpuscale.worker.strategies import Strategy


class Training:
    """The model of a case on one rank, with its optimiser and its batches."""

    def __init__(
        self, case: TrainingCase, request: RunRequest, strategy: Strategy, batches: Batches
    ) -> None:
        configuration = request.configuration
        set_fp32_mode(configuration.precision)
        model = case.model()
        self._memory_format = (
            torch.channels_last if configuration.channels_last else torch.preserve_format
        )
        self.model = strategy.wrap(model.to(memory_format=self._memory_format))
        # The optimiser holds the wrapped module's parameters, compiled or not.
        self._optimizer = case.optimizer(self.model.parameters(), request.gpus)
        self._scheduler = case.scheduler(self._optimizer)
        # torch.compile keeps the module's own type, which its signature cannot say.
        self._forward_model = torch.compile(self.model) if configuration.compiled else self.model
        self._autocast = autocast(configuration.precision, strategy.device)
        self._scaler = grad_scaler(configuration.precision, strategy.device)
        self._case = case
        self._device = strategy.device
        self._batches = batches
        self._epoch = 0
        self._loss: torch.Tensor | None = None

    def step(self) -> None:
        """Train on one batch; on CUDA it returns before the device is done."""
        inputs, targets = next(self._batches)
        if self._batches.epoch != self._epoch:
            self._epoch = self._batches.epoch
            if self._scheduler is not None:
                self._scheduler.step()
        inputs = inputs.to(self._device, non_blocking=True, memory_format=self._memory_format)
        targets = targets.to(self._device, non_blocking=True)
        self._optimizer.zero_grad(set_to_none=True)
        with self._autocast:
            output = self._case.forward(self._forward_model, inputs)
            loss = self._case.loss(output, targets)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._loss = loss.detach()

    def synchronize(self) -> None:
        """Return once the device has done all that was asked of it."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def last_loss(self) -> float:
        """The loss of the last step.

        Raises:
            RuntimeError: no step was made.
        """
        if self._loss is None:
            raise RuntimeError("no training step was made")
        return float(self._loss.float().mean().item())
