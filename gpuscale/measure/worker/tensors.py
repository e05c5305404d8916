"""Find, transform, check and hash the tensors of a model, an optimiser or a nested batch."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested dicts, lists and tuples, in the same order on all ranks."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str):
            yield from tensors_in(value[name])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Apply a function to each tensor in a nested structure; other values stay as they are."""
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
    """Return parameters, buffers and optimiser state tensors, in the same order on all ranks."""
    groups = optimizer.param_groups
    states = [optimizer.state.get(one, {}) for group in groups for one in group["params"]]
    return [*model.parameters(), *model.buffers(), *tensors_in(states)]


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a tensor, or a whole unsharded tensor, without copying."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def not_finite(model: torch.nn.Module) -> str | None:
    """Return the name of the first parameter with a NaN or infinity on this rank, or None."""
    for name, parameter in model.named_parameters():
        # Parameters of other stages of a pipeline are on the meta device.
        if not parameter.is_meta and not torch.isfinite(local_part(parameter)).all():
            return name
    return None


def parameter_digest(model: torch.nn.Module) -> str:
    """Return a SHA-256 digest of the exact parameters; if sharded, only of this rank's shards.

    Buffers are left out: between two forward passes, ranks have different batch-norm statistics.
    """
    digest = hashlib.sha256()
    for parameter in model.parameters():
        flat = local_part(parameter).reshape(-1).contiguous().cpu()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
