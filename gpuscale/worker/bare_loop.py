"""A training loop as a user writes it: what gpuscale's own loop is held against."""

import torch

from gpuscale.worker.training import Parts


class BareLoop:
    """The same model, optimiser, batches and wrapper as `Training`, in fp32, with nothing else."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def run(self, steps: int) -> None:
        """Make so many steps and return when the device has done them."""
        parts = self._parts
        case, model, optimizer, batches = (
            parts.case,
            parts.forward_model,
            parts.optimizer,
            parts.batches,
        )
        device, memory_format = parts.device, parts.memory_format
        for _ in range(steps):
            inputs, targets = next(batches)
            inputs = inputs.to(device, non_blocking=True, memory_format=memory_format)
            targets = targets.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            loss = case.loss(case.forward(model, inputs), targets)
            loss.backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
