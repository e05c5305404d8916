"""Tensors inside dicts, lists and tuples, as batches and the states of optimisers hold them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors of a nested value, in an order that all ranks share."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str):
            yield from tensors_in(value[name])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The same nesting with other tensors; what is no tensor stays as it is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: map_tensors(change, each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        changed = [map_tensors(change, each) for each in value]
        # A named tuple takes its parts one by one.
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    return value
