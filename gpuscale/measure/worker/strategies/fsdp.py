"""FSDP2 (`fully_shard`): each rank keeps a shard of parameters, gradients and optimiser state."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from gpuscale.base.errors import InvalidTrainingError
from gpuscale.measure.worker.data import map_tensors, on_device
from gpuscale.measure.worker.strategies.data_parallel import ProcessGroupStrategy
from gpuscale.measure.worker.training import Training, local_part, state_tensors
from gpuscale.records import RunRequest
from gpuscale.workload.cases import TrainingCase

_TOLERANCE = 0.1
"""Largest accepted relative error of gradients; unreduced gradients are off by 0.5 or more."""
_SMALLEST, _LARGEST = 0.001, 0.5
"""Smallest and largest share of the model's parameters in a block that is sharded separately."""
_FEWEST_SAMPLES = 4
"""Smallest batch used by `verify`: batch norm over fewer samples is meaningless."""


class FullyShardedStrategy(ProcessGroupStrategy):
    """The strategy `fsdp` (FSDP2): each block gathers its parameters from all ranks to compute."""

    def __init__(self, request: RunRequest) -> None:
        super().__init__(request)
        # In fp16, ranks exchange at every step whether gradients are finite, for the loss scaler.
        self.can_pause = self._precision != "fp16"
        self._all_gather, self._reduce_scatter = _AllGather(), _ReduceScatter()
        self._kept: list[torch.Tensor] = []

    def wrap(self, model: nn.Module, case: TrainingCase) -> nn.Module:
        # FSDP2 requires contiguous parameters; convolutions still use the layout of the batch.
        # Blocks move to the device one by one, since a whole model would raise the peak memory.
        model = model.to(memory_format=torch.contiguous_format)
        assert dist.group.WORLD is not None
        # Use the existing group: a mesh that creates its own group also selects a device itself.
        mesh = DeviceMesh.from_group(dist.group.WORLD, self.device.type)
        for module in (*blocks_of(model), model):
            sharded: Any = fully_shard(module, mesh=mesh)
            sharded.set_custom_all_gather(self._all_gather)
            sharded.set_custom_reduce_scatter(self._reduce_scatter)
        return model

    @contextmanager
    def accumulating(self, model: nn.Module) -> Iterator[None]:
        """Enter a context in which gradients stay on this rank; parameters are still gathered."""
        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    @contextmanager
    def unsynchronized(self, model: nn.Module) -> Iterator[None]:
        self._all_gather.is_paused = self._reduce_scatter.is_paused = True
        yield
        self._all_gather.is_paused = self._reduce_scatter.is_paused = False

    def remember(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        # Copies on a GPU would count towards the reported peak memory.
        tensors = state_tensors(model, optimizer)
        self._kept = [local_part(tensor).to("cpu", copy=True) for tensor in tensors]

    def realign(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Restore the state saved by `remember`, because no other rank has this rank's shards."""
        tensors = [local_part(tensor) for tensor in state_tensors(model, optimizer)]
        if [tensor.shape for tensor in tensors] != [kept.shape for kept in self._kept]:
            raise InvalidTrainingError(
                f"{type(optimizer).__name__} keeps states whose sizes change from step to step; "
                "fsdp cannot be measured with it"
            )
        for tensor, kept in zip(tensors, self._kept, strict=True):
            tensor.copy_(kept)

    def verify(self, training: Training) -> None:
        """Raise InvalidTrainingError unless sharded gradients match the ranks' mean gradients.

        For the mean, each rank runs a plain backward pass on the gathered parameters. Comparing
        parameters between ranks would prove nothing: all come from the same shards.
        """
        if (off_by := self._gradient_error(training)) > _TOLERANCE:
            raise InvalidTrainingError(
                f"the gradients of fsdp are off by {off_by:.0%} from the mean over the ranks of "
                "plain backward passes, so the speedup is meaningless"
            )

    def _gradient_error(self, training: Training) -> float:
        """Return the relative error of sharded gradients, compared to training without FSDP."""
        plain = training.case.model().to(self.device)
        with torch.no_grad():
            for tensor, other in zip(_tensors(plain), _tensors(training.model), strict=True):
                tensor.copy_(_gathered(other))
        # The whole model and the activations of a whole batch might not fit into memory.
        batch = map_tensors(
            lambda tensor: tensor[: max(_FEWEST_SAMPLES, len(tensor) // 4)], next(training.batches)
        )
        inputs, targets = on_device(batch, self.device, training.memory_format)
        for model in (plain, training.model):
            model.zero_grad()
            # Both models must draw the same dropout.
            torch.manual_seed(self.rank)
            with training.autocast:
                loss = training.case.loss(training.case.forward(model, inputs), targets)
            # Weighting the loss by rank makes gradients differ even if all batches are equal.
            (loss * (1 + 2 * (self.rank % 2))).backward()
        difference, size = 0.0, 0.0
        for parameter, sharded in zip(plain.parameters(), training.model.parameters(), strict=True):
            zeros = torch.zeros_like(parameter)
            mean = (zeros if parameter.grad is None else parameter.grad).contiguous()
            dist.all_reduce(mean)
            mean /= self.world_size
            found = zeros if sharded.grad is None else _gathered(sharded.grad)
            difference += float((found - mean).square().sum())
            size += float(mean.square().sum())
        return math.sqrt(difference / (size or 1.0))


class _Collective:
    """A collective operation of FSDP2 that, while paused, only copies this rank's own data."""

    is_paused = False

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Collective):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        if not self.is_paused:
            return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)
        # Fill the places of other ranks with this rank's shard, which is already in its own place.
        parts, rank = output_tensor.view(group.size(), -1), group.rank()
        parts[:rank] = input_tensor
        parts[rank + 1 :] = input_tensor
        return None


class _ReduceScatter(_Collective):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        if not self.is_paused:
            return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)
        output_tensor.copy_(input_tensor.view(group.size(), -1)[group.rank()])
        return None


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules to shard separately; each one gathers its parameters when it computes.

    These are the members of the model's lists of modules (`nn.Sequential`, `nn.ModuleList`). A
    member with more than half of all parameters is searched for smaller lists instead; a member
    with very few parameters is left out because sharding it would cost more than it saves.
    """
    uses = Counter(map(id, _parameters(model)))
    whole = _size(model)

    def is_block(module: nn.Module) -> bool:
        found = Counter(map(id, _parameters(module)))
        # A parameter that other modules share, such as a tied embedding, must be gathered there.
        is_own = all(uses[parameter] == count for parameter, count in found.items())
        is_sized = _SMALLEST * whole <= _size(module) <= _LARGEST * whole
        has_forward = not isinstance(module, nn.ModuleList | nn.ModuleDict)
        return is_own and is_sized and has_forward

    def below(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            if isinstance(module, nn.Sequential | nn.ModuleList) and is_block(child):
                yield child
            else:
                yield from below(child)

    return [*below(model)]


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield all parameters; a parameter shared by several modules is yielded for each of them."""
    return (parameter for _, parameter in module.named_parameters(remove_duplicate=False))


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _gathered(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
