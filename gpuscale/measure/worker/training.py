"""The training of one rank, step by step, and the interface of strategies that parallelise it."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch

from gpuscale.base.errors import CaseError, InvalidTrainingError
from gpuscale.measure.worker.data import Batch, Batches, on_device
from gpuscale.measure.worker.faults import Faults
from gpuscale.measure.worker.loop import Peers
from gpuscale.measure.worker.phases import Phase, phase_clock
from gpuscale.measure.worker.precision import autocast_for, set_fp32_mode, validate_precision
from gpuscale.measure.worker.tensors import not_finite
from gpuscale.records import Phases, RunRequest
from gpuscale.workload.cases import TrainingCase
from gpuscale.workload.injections import parse_injection

T = TypeVar("T")


class Strategy(Peers, Protocol):
    """A strategy for parallel training, as seen by one rank."""

    rank: int
    local_rank: int
    world_size: int
    """Number of ranks in the process group; 1 if one process drives all devices, as in `dp`."""
    device: torch.device
    """The device of inputs and of the loss."""
    devices: tuple[int, ...]
    """All CUDA devices that this process drives; empty on CPU."""
    can_pause: bool = True
    """False if steps would still communicate inside `unsynchronized`."""
    training: "type[Training] | None" = None
    """The subclass of `Training` that makes the steps; None for `Training` itself."""

    @property
    def shares(self) -> int:
        """The number of ranks among which the samples of a step are divided."""
        return self.world_size

    def gathered(self, own: T) -> list[T]:
        """Return the objects of all ranks, in order of rank, on rank 0; no objects elsewhere."""

    def part_of(self, batch: Batch) -> Batch:
        """Return the part of a batch that this rank needs."""
        return batch

    def wrap(self, model: torch.nn.Module, case: TrainingCase) -> torch.nn.Module:
        """Return the model on this rank's device, wrapped for parallel training."""

    def unsynchronized(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """A context in which a step does everything except synchronise gradients."""
        return nullcontext()

    def accumulating(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """A context in which this rank adds up gradients without exchanging them."""
        return nullcontext()

    def forward_backward(self, training: "Training", inputs: Any, targets: Any) -> torch.Tensor:
        """Compute the gradients of a batch, mark forward and backward, and return the loss."""
        return training.forward_backward(inputs, targets)

    def final_loss(self, loss: float) -> float:
        """Return the loss of the last step, given this rank's own loss."""
        return loss

    def remember(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Save the state that `realign` restores, before steps without synchronisation."""
        return

    def realign(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Bring the parameters, buffers and optimiser states of all ranks into agreement."""
        return

    def verify(self, training: "Training") -> None:
        """Raise InvalidTrainingError unless the ranks trained together; called after training.

        If every rank has a copy of the model, nothing is checked here: the launcher compares
        digests of the parameters.
        """
        return


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
        # Its parameters have the names that the case gave them, unlike those of a wrapped module.
        self.optimizer = case.optimizer(model, request.gpus)
        _validate_type(case, "optimizer", self.optimizer, torch.optim.Optimizer)
        # torch.compile keeps the type of the module, which its signature cannot express.
        self.forward_model = torch.compile(self.model) if asked.compiled else self.model
        self._scheduler = case.scheduler(self.optimizer)
        # After the case's own code, which often allows TF32.
        set_fp32_mode(asked.precision)
        injections = [parse_injection(text) for text in request.injections]
        self.faults = Faults(injections, rank=strategy.rank, device=self._device)
        self.autocast = autocast_for(asked.precision, self._device.type)
        # It does nothing in other precisions.
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=asked.precision == "fp16")
        self._aligned_scaler = self._scaler.state_dict()
        self.clock = phase_clock(self._device)
        self._accumulate = asked.accumulate or 1
        self._epoch = 0
        self._steps = 0
        self._losses: list[torch.Tensor] = []
        self._losses_before_windows: list[tuple[int, list[torch.Tensor]]] = []

    def step(self, *, synchronized: bool = True) -> None:
        """Make one training step, on one batch or on several whose gradients are added up.

        On CUDA the call returns before the device is done. Without synchronisation the parameters
        of the ranks diverge until `realign` is called.
        """
        clock, faults, strategy = self.clock, self.faults, self.strategy
        clock.begin_step()
        faults.at_step()
        self._steps += 1
        self.optimizer.zero_grad(set_to_none=True)
        clock.mark(Phase.OPTIMIZER)
        faults.in_data()
        losses = []
        for number in range(self._accumulate):
            inputs, targets = on_device(self._next_batch(), self._device, self.memory_format)
            clock.mark(Phase.H2D)
            is_last = number == self._accumulate - 1
            with (
                nullcontext() if synchronized else strategy.unsynchronized(self.model),
                nullcontext() if is_last else strategy.accumulating(self.model),
            ):
                loss = strategy.forward_backward(self, inputs, targets)
            losses.append(loss.detach())
        self._scaler.step(self.optimizer)
        self._scaler.update()
        clock.mark(Phase.OPTIMIZER)
        self._losses = losses

    def _next_batch(self) -> Batch:
        """Return the next batch, in host memory."""
        batch = self.strategy.part_of(next(self.batches))
        if self.batches.epoch != self._epoch:
            self._epoch = self.batches.epoch
            if self._scheduler is not None:
                self._scheduler.step()
        self.clock.mark(Phase.DATA)
        return batch

    def forward_backward(self, inputs: Any, targets: Any, *, share: float = 1.0) -> torch.Tensor:
        """Compute the gradients of a batch through the whole model, and return the loss.

        If the batch is only a part of a step, `share` is the weight of its loss in the step.
        """
        share /= self._accumulate
        self.faults.begin_forward(share)
        with self.autocast:
            output = self.case.forward(self.forward_model, inputs)
            # With layers on several devices, the clock's device then waits for the whole forward.
            loss = self.case.loss(output, targets).to(self._device)
            loss = loss if share == 1 else loss * share
        self.faults.end_forward()
        self.clock.mark(Phase.FORWARD)
        self._scaler.scale(loss).backward()
        self.clock.mark(Phase.BACKWARD)
        return loss

    def begin_window(self, *, marked_every: int) -> None:
        """Start a window in which one of every `marked_every` steps has its phases timed."""
        # Checked later: reading a loss waits for the device.
        self._losses_before_windows.append((self._steps, self._losses))
        self.clock.begin(marked_every)

    def phases(self) -> Phases:
        """Return the seconds spent in each phase of the window; call `synchronize` first."""
        return self.clock.phases()

    @property
    def events_per_step(self) -> int:
        """The number of events that mark the phases of a step."""
        return self.clock.events_per_step

    def realign(self) -> None:
        """Bring all ranks back into agreement after steps without synchronisation."""
        self.strategy.realign(self.model, self.optimizer)
        self._scaler.load_state_dict(self._aligned_scaler)
        self._losses = []

    def remember(self) -> None:
        """Validate and save the state that `realign` restores, before unsynchronised steps."""
        self.validate_finite()
        self._aligned_scaler = self._scaler.state_dict()
        self.strategy.remember(self.model, self.optimizer)

    def synchronize(self) -> None:
        """Return once the devices have done all their work."""
        for device in self.strategy.devices:
            torch.cuda.synchronize(device)

    def final_loss(self) -> float:
        """Return the loss of the last step."""
        return self.strategy.final_loss(_sum(self._losses))

    def validate_finite(self) -> None:
        """Raise InvalidTrainingError, naming the step, if a loss or parameter is not finite."""
        finite_at, found = 0, []
        for step, losses in (*self._losses_before_windows, (self._steps, self._losses)):
            if not math.isfinite(_sum(losses)):
                found.append(f"the loss of step {step}")
                break
            finite_at = step
        if (name := not_finite(self._own_model)) is not None:
            found.append(f"parameter {name}")
        self._losses_before_windows = [(finite_at, [])]
        if found:
            raise InvalidTrainingError(
                f"rank {self.strategy.rank} diverged after step {finite_at}: "
                f"{' and '.join(found)} is not a finite number; choose a smaller learning rate or "
                "a larger batch"
            )


def _validate_type(case: TrainingCase, method: str, made: object, kind: type) -> None:
    if not isinstance(made, kind):
        name, found = f"{type(case).__name__}.{method}()", type(made).__name__
        raise CaseError(f"{name} returned {found}, not a {kind.__name__}; see its 'return'")


def _sum(losses: Sequence[torch.Tensor]) -> float:
    """Return the loss of a step, summed over its batches."""
    return math.fsum(float(loss.float().mean()) for loss in losses)
