"""Cut a model into stages of similar cost, by the floating-point operations of its blocks."""

from collections.abc import Iterable, Sequence
from functools import cache

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from gpuscale.base.errors import CaseError
from gpuscale.base.units import counted


def stages_of(blocks: Sequence[nn.Module], inputs: torch.Tensor, count: int) -> list[nn.Sequential]:
    """Group blocks into stages; CaseError if there are too few blocks or stages share a parameter.

    Operations are counted rather than timed, so that the stages are the same in every run.
    """
    groups = with_parameters(blocks)
    if len(groups) < count:
        raise CaseError(
            f"{counted(len(groups), 'block')} with parameters cannot be cut among {count} GPUs"
        )
    starts = cut(_operations(groups, inputs), count)
    parts = [groups[start:end] for start, end in zip(starts, (*starts[1:], None), strict=True)]
    stages = [nn.Sequential(*(block for group in part for block in group)) for part in parts]
    kept = [{id(parameter) for parameter in stage.parameters()} for stage in stages]
    if len(set().union(*kept)) < sum(map(len, kept)):
        raise CaseError(
            f"blocks share a parameter, and are cut apart on {count} GPUs; give each its own"
        )
    return stages


def cut(costs: Sequence[int], parts: int) -> tuple[int, ...]:
    """Return the start positions of consecutive parts, minimising the cost of the largest part."""

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
    """Group the blocks so that each group has a parameter, which every optimiser needs."""
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
        meta = {name: _on_meta(tensor) for name, tensor in tensors}
        with FlopCounterMode(display=False) as counter:
            output = functional_call(block, meta, (values,))
            output.sum().backward()
        counts.append(counter.get_total_flops())
        values = output.detach().requires_grad_()
    return counts


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(
        tensor.shape, dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad
    )
