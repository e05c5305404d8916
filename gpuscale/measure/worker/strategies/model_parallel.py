"""Divide a model into stages of similar cost, one per GPU; the strategy `mp` runs them in turn."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from gpuscale.base.errors import CaseError
from gpuscale.base.text import counted
from gpuscale.measure.worker.data import example_batch, map_tensors
from gpuscale.measure.worker.training import Strategy, Training
from gpuscale.workload.cases import TrainingCase


class ModelParallelStrategy(Strategy):
    """Spreads layers over all devices, which compute in turn; the last device computes the loss."""

    def wrap(self, model: nn.Module, case: TrainingCase) -> nn.Module:
        if len(self.devices) < 2:
            return model.to(self.device)
        stages = stages_of(case, model, len(self.devices))
        return _OnDevices(stages, [torch.device("cuda", number) for number in self.devices])

    def forward_backward(self, training: Training, inputs: Any, targets: Any) -> torch.Tensor:
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


def stages_of(case: TrainingCase, model: nn.Module, count: int) -> list[nn.Sequential]:
    """Group the blocks of a case's model into stages; raise a CaseError if that is impossible.

    Operations are counted rather than timed, so that the stages are the same in every run.
    """
    groups = with_parameters(case.blocks(model))
    where = f"{type(case).__name__}.blocks(model)"
    if len(groups) < count:
        raise CaseError(
            f"{where} gives {counted(len(groups), 'block')} with parameters, and each of {count} "
            "GPUs needs one; return all modules of the model, in order, or choose fewer GPUs"
        )
    inputs, _ = example_batch(case)
    starts = cut(_operations(groups, inputs), count)
    parts = [groups[start:end] for start, end in zip(starts, (*starts[1:], None), strict=True)]
    stages = [nn.Sequential(*(block for group in part for block in group)) for part in parts]
    kept = [{id(parameter) for parameter in stage.parameters()} for stage in stages]
    if len(set().union(*kept)) < sum(map(len, kept)):
        raise CaseError(
            f"{where}: blocks share a parameter, but are on different GPUs; give each its own, "
            "or choose fewer GPUs"
        )
    for name, parameter in model.named_parameters():
        if id(parameter) not in set().union(*kept):
            raise CaseError(f"{where} leaves out {name}; a parameter in no block is not trained")
    return stages


def cut(costs: Sequence[int], parts: int) -> tuple[int, ...]:
    """Return where each part starts, such that the costliest part costs as little as possible."""

    @cache
    def best(end: int, parts: int) -> tuple[int, tuple[int, ...]]:
        if parts == 1:
            return sum(costs[:end]), (0,)
        found = []
        for start in range(parts - 1, end):
            cost, starts = best(start, parts - 1)
            found.append((max(cost, sum(costs[start:end])), (*starts, start)))
        return min(found)

    return best(len(costs), parts)[1]


def with_parameters(blocks: Iterable[nn.Module]) -> list[list[nn.Module]]:
    """Merge adjacent blocks until each group has parameters, without which optimisers fail."""
    groups: list[list[nn.Module]] = []
    for block in blocks:
        if groups and not (_has_parameters(groups[-1]) and _has_parameters([block])):
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups


def _has_parameters(group: Iterable[nn.Module]) -> bool:
    return any(True for block in group for _ in block.parameters())


def _operations(groups: Iterable[Sequence[nn.Module]], inputs: torch.Tensor) -> list[int]:
    """Count each group's floating-point operations, forward and backward, without running them."""
    values = inputs.to("meta")
    counts = []
    for group in groups:
        block = nn.Sequential(*group)
        tensors = (*block.named_parameters(), *block.named_buffers())
        meta = {
            name: torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)
            for name, tensor in tensors
        }
        with FlopCounterMode(display=False) as counter:
            output = functional_call(block, meta, (values,))
            output.sum().backward()
        counts.append(counter.get_total_flops())
        values = output.detach().requires_grad_()
    return counts
