"""The ways to make a case parallel, one file each; `gpuscale.base.strategies` names them all."""

import pkgutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.distributed.tensor import DTensor

from gpuscale.base.strategies import STRATEGIES
from gpuscale.measure.worker.data import Batch
from gpuscale.measure.worker.loop import Peers
from gpuscale.records import RunRequest
from gpuscale.workload.cases import TrainingCase

if TYPE_CHECKING:
    from gpuscale.measure.worker.training import Training

AUTOCAST: Mapping[str | None, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The number format of autocast, by precision; the others have none."""


class Strategy(Peers, Protocol):
    """One rank's view of a parallel training."""

    rank: int
    local_rank: int
    world_size: int
    """Ranks in the process group; 1 for `dp`, whose single process drives all devices."""
    device: torch.device
    """Where the batch goes and the loss comes from."""
    devices: tuple[int, ...]
    """All CUDA devices that this process drives; empty on CPU."""
    can_pause: bool = True
    """False where `unsynchronized` would leave communication in after all."""
    training: "type[Training] | None" = None
    """What makes its steps, where `Training` itself does not."""

    @property
    def shares(self) -> int:
        """The number of ranks among which a step's samples are divided."""
        return self.world_size

    def part_of(self, batch: Batch) -> Batch:
        """What this rank needs of a batch that it was given."""
        return batch

    def wrap(self, model: torch.nn.Module, case: TrainingCase) -> torch.nn.Module:
        """The model, on its device, made parallel with the options of its case."""

    def unsynchronized(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """A context in which a step does all but synchronise gradients."""
        return nullcontext()

    def accumulating(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """A context in which a batch's gradients are added to those that this rank keeps."""
        return nullcontext()

    def forward_backward(self, training: "Training", inputs: Any, targets: Any) -> torch.Tensor:
        """The loss of a batch, after its gradients are there; it marks forward and backward."""
        return training.forward_backward(inputs, targets)

    def final_loss(self, loss: float) -> float:
        """The loss of the last step, from what this rank has for one."""
        return loss

    def remember(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Keep what `realign` needs, before steps that are not synchronised."""
        return

    def realign(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Let the ranks go on from parameters, buffers and optimiser state that agree."""
        return

    def verify(self, training: "Training") -> None:
        """Raise an InvalidTrainingError unless the ranks trained together; the last use of it.

        Strategies whose ranks keep whole copies need none: their digests are compared.
        """
        return


class Autocasting(torch.nn.Module):
    """A model that enters autocast by itself, on whichever thread it is called.

    DataParallel calls its replicas on threads of their own and passes on to them that there is
    autocast, but not in which format: bf16 would become fp16, without a loss scaler.
    """

    def __init__(self, model: torch.nn.Module, device_type: str, dtype: torch.dtype) -> None:
        super().__init__()
        self._model = model
        self._device_type = device_type
        self._dtype = dtype

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """The model's output in that format."""
        with torch.autocast(self._device_type, dtype=self._dtype):
            return self._model(*inputs, **keywords)


def cuda_device(devices: tuple[int, ...], position: int) -> torch.device:
    """The device at a position of the request's list, made current; the CPU for an empty list."""
    if not devices:
        return torch.device("cpu")
    device = torch.device("cuda", devices[position])
    torch.cuda.set_device(device)
    return device


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, which shares its memory: its shard, or all of it."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def not_finite(model: torch.nn.Module) -> str | None:
    """The first parameter that is not finite everywhere, or in this rank's part; else None."""
    for name, parameter in model.named_parameters():
        # Another stage of a pipeline has it.
        if parameter.is_meta:
            continue
        if not torch.isfinite(local_part(parameter)).all():
            return name
    return None


def strategy_for(request: RunRequest) -> Strategy:
    """The strategy that the request names, joined to its process group."""
    demands = STRATEGIES[request.configuration.strategy]
    assert demands.implementation is not None, "a command has no ranks of gpuscale's own"
    strategy: Strategy = pkgutil.resolve_name(demands.implementation)(request)
    return strategy
