"""The training of one rank, step by step, and the interface of strategies that parallelise it."""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from gpuscale.base.errors import CaseError, InvalidTrainingError
from gpuscale.measure.worker.data import Batch, Batches, on_device
from gpuscale.measure.worker.phases import Phase, PhaseClock
from gpuscale.records import RunRequest
from gpuscale.workload.cases import TrainingCase
from gpuscale.workload.injections import Faults, parse_injection

T = TypeVar("T")
HALF_TYPES: Mapping[str | None, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NEEDS_HARDWARE = ("tf32", "bf16")
_FIRST_WITH_TF32 = (8, 0)
"""Lowest compute capability with hardware support for TF32 and bf16."""


def cuda_device(devices: tuple[int, ...], position: int) -> torch.device:
    """Make CUDA device `devices[position]` current and return it; the CPU if `devices` is empty."""
    if not devices:
        return torch.device("cpu")
    device = torch.device("cuda", devices[position])
    torch.cuda.set_device(device)
    return device


def autocast_for(precision: str | None, device_type: str) -> torch.autocast:
    """Return the autocast context for a forward pass; disabled unless precision is bf16 or fp16."""
    dtype = HALF_TYPES.get(precision)
    return torch.autocast(device_type, dtype=dtype, enabled=dtype is not None)


def set_fp32_mode(precision: str | None) -> None:
    """Enable TF32 if the precision is `tf32`, else disable it, even if the case has enabled it."""
    # torch 2.9 added newer settings. Those for all backends, or for all of cuDNN, override the
    # older setting for convolutions.
    places: Any = torch.backends
    if hasattr(places.cudnn, "fp32_precision"):
        for place in (places, places.cudnn, places.mkldnn.conv, places.mkldnn.rnn):
            place.fp32_precision = "none"
    # The older setters also update the newer settings, but not vice versa; torch.compile reads
    # the older ones and fails if they differ.
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def validate_precision(precision: str | None, devices: Sequence[int]) -> None:
    """Raise CaseError if a device has no hardware support for the precision."""
    for device in devices if precision in _NEEDS_HARDWARE else ():
        if torch.cuda.get_device_capability(device) < _FIRST_WITH_TF32:
            gpu = torch.cuda.get_device_name(device)
            raise CaseError(
                f"--precision {precision}: {gpu} has no hardware for it, and would compute in "
                "fp32 or slowly; choose fp16 or fp32"
            )


class Strategy:
    """Base class of strategies for parallel training; by default, one process uses all GPUs."""

    rank = 0
    local_rank = 0
    world_size = 1
    can_pause = True
    """True if ranks do not communicate in steps inside the context manager `unsynchronized`."""
    training: "type[Training] | None" = None
    """Subclass of `Training` that runs the training steps; None to use `Training` itself."""

    def __init__(self, request: RunRequest) -> None:
        self._precision = request.configuration.precision
        self.device = cuda_device(request.devices, self.local_rank)
        """The device of inputs and of the loss."""
        self.devices = request.devices
        """All CUDA devices that this process drives; empty on CPU."""
        self.shares = self.world_size
        """The number of ranks among which the samples of a step are divided."""

    def barrier(self) -> None:
        """Wait until every rank has reached this point."""

    def largest(self, value: float) -> float:
        """Return the maximum of `value` over all ranks; all ranks must call this."""
        return value

    def gathered(self, own: T) -> list[T]:
        """Return all ranks' objects, in order of rank, on rank 0; an empty list on other ranks."""
        return [own]

    def part_of(self, batch: Batch) -> Batch:
        """Return the part of a batch that this rank needs."""
        return batch

    def wrap(self, model: torch.nn.Module, case: TrainingCase) -> torch.nn.Module:
        """Return the model on this rank's device, wrapped for parallel training."""
        raise NotImplementedError

    def unsynchronized(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Return a context in which a step does everything except synchronise gradients."""
        return nullcontext()

    def accumulating(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Return a context that defers the exchange of gradients to a later batch of the step."""
        return nullcontext()

    def forward_backward(self, training: "Training", inputs: Any, targets: Any) -> torch.Tensor:
        """Compute the gradients of a batch, time forward and backward, and return the loss."""
        return training.forward_backward(inputs, targets)

    def final_loss(self, loss: float) -> float:
        """Return the loss of the last step: this rank's or, in a pipeline, the last stage's."""
        return loss

    def remember(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Save any state that `realign` will restore after steps without synchronisation."""

    def realign(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Bring the parameters, buffers and optimiser states of all ranks into agreement."""

    def verify(self, training: "Training") -> None:
        """Run the strategy's check of training, if any; raise InvalidTrainingError if it fails."""


class Training:
    """The training of one rank, step by step, with timing marks and checks for a measurement."""

    def __init__(
        self, case: TrainingCase, request: RunRequest, strategy: Strategy, batches: Batches
    ) -> None:
        asked, self._device = request.configuration, strategy.device
        validate_precision(asked.precision, strategy.devices)
        self.case, self.strategy, self.batches = case, strategy, batches
        self.memory_format = torch.channels_last if asked.channels_last else torch.preserve_format
        built = case.model()
        _validate_type(case, "model", built, torch.nn.Module)
        self._own_model = model = built.to(memory_format=self.memory_format)
        self.model = strategy.wrap(model, case)
        # The optimiser gets the unwrapped model, whose parameters have the names set by the case.
        self.optimizer = case.optimizer(model, request.gpus)
        _validate_type(case, "optimizer", self.optimizer, torch.optim.Optimizer)
        # torch.compile returns a module of the same type, which its signature does not show.
        self.forward_model = torch.compile(self.model) if asked.compiled else self.model
        self._scheduler = case.scheduler(self.optimizer)
        # After the case's own code, which often allows TF32.
        set_fp32_mode(asked.precision)
        injections = [parse_injection(text) for text in request.injections]
        self.faults = Faults(injections, rank=strategy.rank, synchronize=self.synchronize)
        self.autocast = autocast_for(asked.precision, self._device.type)
        # The scaler does nothing in other precisions.
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=asked.precision == "fp16")
        self._aligned_scaler = self._scaler.state_dict()
        self.clock = PhaseClock(self._device)
        self._accumulate = asked.accumulate or 1
        self._epoch = self._steps = 0
        self._losses: list[torch.Tensor] = []

    def step(self, *, synchronized: bool = True) -> None:
        """Run one training step of one or more batches; exchange gradients if `synchronized`."""
        clock, strategy = self.clock, self.strategy
        clock.begin_step()
        self._steps += 1
        self.faults.at_step(self._steps)
        self.optimizer.zero_grad(set_to_none=True)
        clock.mark(Phase.OPTIMIZER)
        self.faults.in_data()
        self._losses = []
        for number in range(self._accumulate):
            inputs, targets = on_device(self._next_batch(), self._device, self.memory_format)
            clock.mark(Phase.H2D)
            is_last = number == self._accumulate - 1
            with (
                nullcontext() if synchronized else strategy.unsynchronized(self.model),
                nullcontext() if is_last else strategy.accumulating(self.model),
            ):
                loss = strategy.forward_backward(self, inputs, targets)
            self._losses.append(loss.detach())
        self._scaler.step(self.optimizer)
        self._scaler.update()
        clock.mark(Phase.OPTIMIZER)

    def _next_batch(self) -> Batch:
        batch = self.strategy.part_of(next(self.batches))
        if self.batches.epoch != self._epoch:
            self._epoch = self.batches.epoch
            if self._scheduler is not None:
                self._scheduler.step()
        self.clock.mark(Phase.DATA)
        return batch

    def forward_backward(self, inputs: Any, targets: Any, *, share: float = 1.0) -> torch.Tensor:
        """Compute gradients of the whole model; return what the inputs add to the step's loss.

        `share` is the weight of the inputs in the loss of their batch: 1 if they are a whole batch.
        """
        share /= self._accumulate
        with self.faults.in_forward(), self.autocast:
            output = self.case.forward(self.forward_model, inputs)
            # If layers are on several devices, the clock's device thus waits for the whole forward.
            loss = self.case.loss(output, targets)
            _validate_type(self.case, "loss", loss, torch.Tensor)
            if loss.numel() != 1:
                what = f"{type(self.case).__name__}.loss() returned a tensor of shape"
                remedy = "a single number is needed, such as the mean over the batch"
                raise CaseError(f"{what} {[*loss.shape]}; {remedy}")
            loss = loss.to(self._device)
            loss = loss if share == 1 else loss * share
        self.clock.mark(Phase.FORWARD)
        self._scaler.scale(loss).backward()
        self.clock.mark(Phase.BACKWARD)
        return loss

    def realign(self) -> None:
        """Bring all ranks' training state back into agreement after unsynchronised steps."""
        self.strategy.realign(self.model, self.optimizer)
        self._scaler.load_state_dict(self._aligned_scaler)
        self._losses = []

    def remember(self) -> None:
        """Save the state for `realign`; raise InvalidTrainingError if training has diverged."""
        self.validate_finite()
        self._aligned_scaler = self._scaler.state_dict()
        self.strategy.remember(self.model, self.optimizer)

    def synchronize(self) -> None:
        """Wait until the devices have completed all their work."""
        for device in self.strategy.devices:
            torch.cuda.synchronize(device)

    def final_loss(self) -> float:
        """Return the loss of the last step: the mean over its accumulated batches."""
        return self.strategy.final_loss(_sum(self._losses))

    def validate_finite(self) -> None:
        """Raise InvalidTrainingError if the latest loss or a parameter is not finite."""
        found = [] if math.isfinite(_sum(self._losses)) else ["the loss"]
        for name, parameter in self._own_model.named_parameters():
            # Parameters of other stages of a pipeline are on the meta device.
            if not parameter.is_meta and not torch.isfinite(local_part(parameter)).all():
                found.append(f"parameter {name}")
                break
        if found:
            raise InvalidTrainingError(
                f"rank {self.strategy.rank} diverged within {self._steps} steps (not finite: "
                f"{', '.join(found)}); choose a smaller learning rate or a larger batch"
            )


def _validate_type(case: TrainingCase, method: str, made: object, kind: type) -> None:
    if not isinstance(made, kind):
        name, found = f"{type(case).__name__}.{method}()", type(made).__name__
        raise CaseError(f"{name} returned {found} instead of {kind.__name__}; see its 'return'")


def _sum(losses: Sequence[torch.Tensor]) -> float:
    return math.fsum(float(loss.float().mean()) for loss in losses)


def state_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return parameters, buffers and optimiser state tensors, in the same order on all ranks."""
    groups = optimizer.param_groups
    states = [optimizer.state.get(one, {}) for group in groups for one in group["params"]]
    kept = [leaf for leaf in tree_leaves(states) if isinstance(leaf, torch.Tensor)]
    return [*model.parameters(), *model.buffers(), *kept]


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a tensor, or the whole tensor if unsharded, without copying."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
