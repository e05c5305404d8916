"""The tensors of a model, an optimiser or a nested batch: find, change, check and digest them."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors of nested dicts, lists and tuples, in an order that all ranks share."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str):
            yield from tensors_in(value[name])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The same nesting with changed tensors; any other value stays as it is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: map_tensors(change, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        changed = [map_tensors(change, item) for item in value]
        # A named tuple takes its parts one by one.
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    return value


def state_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Parameters, buffers and tensors of the optimiser's state, in an order that ranks share."""
    groups = optimizer.param_groups
    states = [optimizer.state.get(one, {}) for group in groups for one in group["params"]]
    return [*model.parameters(), *model.buffers(), *tensors_in(states)]


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a tensor, or all of it; it shares the tensor's memory."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def not_finite(model: torch.nn.Module) -> str | None:
    """The name of the first parameter with a NaN or infinity on this rank; None without any."""
    for name, parameter in model.named_parameters():
        # Parameters of other stages of a pipeline are on the meta device.
        if not parameter.is_meta and not torch.isfinite(local_part(parameter)).all():
            return name
    return None


def parameter_digest(model: torch.nn.Module) -> str:
    """SHA-256 over this rank's parts of all parameters in order, bit for bit.

    Buffers are left out: between two forward passes each rank has batch-norm statistics of its own.
    """
    digest = hashlib.sha256()
    for parameter in model.parameters():
        flat = local_part(parameter).reshape(-1).contiguous().cpu()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
