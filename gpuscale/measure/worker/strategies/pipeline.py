"""Pipeline parallelism: each GPU holds one stage, and micro-batches pass through all stages."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from gpuscale.base.errors import InvalidTrainingError
from gpuscale.measure.worker.data import Batch, on_device
from gpuscale.measure.worker.phases import Phase
from gpuscale.measure.worker.precision import autocasting
from gpuscale.measure.worker.strategies.data_parallel import ProcessGroupStrategy
from gpuscale.measure.worker.strategies.model_parallel import stages_of
from gpuscale.measure.worker.training import Training
from gpuscale.records import RunRequest
from gpuscale.workload.cases import TrainingCase

_CPU = torch.device("cpu")
_SEED = 42
_SAME_ON_GPUS = 0.01
"""Largest relative difference allowed between gradients on GPUs, where summation order varies."""


class PipelineStrategy(ProcessGroupStrategy):
    """One rank per stage of the model; a single rank trains the whole model without a pipeline."""

    def __init__(self, request: RunRequest) -> None:
        super().__init__(request)
        # Every stage needs all samples.
        self.shares = 1
        self._is_first, self._is_last = self.rank == 0, self.rank == self.world_size - 1
        self._micro_batches = (request.configuration.micro_batches or 1) * request.gpus
        # Stages on several GPUs cannot train without communication.
        self.can_pause = self.world_size == 1
        self._schedule: ScheduleGPipe | None = None
        self._divides_alone = False

    def part_of(self, batch: Batch) -> Batch:
        if self.world_size == 1:
            return batch
        inputs, targets = batch
        return inputs if self._is_first else inputs[:0], targets if self._is_last else targets[:0]

    def wrap(self, model: nn.Module, case: TrainingCase) -> nn.Module:
        """Return this rank's stage on its device; the parameters of other stages are dropped."""
        if self.world_size == 1:
            return model.to(self.device)
        stages = stages_of(case, model, self.world_size)
        for number, stage in enumerate(stages):
            stage.to(self.device if number == self.rank else "meta")
        return stages[self.rank]

    @contextmanager
    def unsynchronized(self, model: nn.Module) -> Iterator[None]:
        """Enter a context in which a single rank also splits each batch into micro-batches."""
        self._divides_alone = True
        yield
        self._divides_alone = False

    def forward_backward(
        self, training: Training, inputs: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """Compute gradients; return the micro-batches' mean loss (0 on all but the last stage)."""
        if self.world_size > 1:
            return self._through_pipeline(training, inputs, targets)
        if not self._divides_alone:
            return training.forward_backward(inputs, targets)
        share = 1 / self._micro_batches
        parts = self._divided(inputs, targets)
        losses = [training.forward_backward(*part, share=share).detach() for part in parts]
        return torch.stack(losses).sum()

    def _divided(self, *batch: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
        return zip(*(part.tensor_split(self._micro_batches) for part in batch), strict=True)

    def _through_pipeline(
        self, training: Training, inputs: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        if self._schedule is None:
            self._schedule = self._schedule_of(training)
        losses: list[torch.Tensor] = []
        arguments = (inputs,) if self._is_first else ()
        last: dict[str, Any] = {"target": targets, "losses": losses} if self._is_last else {}
        self._schedule.step(*arguments, **last)
        training.clock.mark(Phase.WAIT)
        if not losses:
            return torch.zeros((), device=self.device)
        return torch.stack([loss.detach() for loss in losses]).sum()

    def _schedule_of(self, training: Training) -> ScheduleGPipe:
        def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            with training.autocast:
                # The loss is scaled here, so that the schedule need not scale gradients.
                found = training.case.loss(output, targets) / self._micro_batches
            training.clock.mark(Phase.FORWARD)
            return found

        model = autocasting(training.model, self._precision, self.device.type)
        stage = _TimedStage(model, self.rank, self.world_size, self.device)
        stage.training = training
        made = ScheduleGPipe(stage, self._micro_batches, loss_fn=loss)
        # Versions of torch after 2.6 scale gradients by default.
        made.scale_grads = False
        return made

    def final_loss(self, loss: float) -> float:
        shared = torch.tensor([loss], dtype=torch.float64)
        dist.broadcast(shared, src=self.world_size - 1)
        return float(shared.item())

    def verify(self, training: Training) -> None:
        """Raise InvalidTrainingError if overlapping the micro-batches changes the result.

        Gradients and buffers must be equal: bit for bit on CPU, within a tolerance on GPUs.
        """
        if self.world_size == 1:
            return
        model = training.model
        batch = self.part_of(next(training.batches))
        inputs, targets = on_device(batch, self.device, training.memory_format)
        before = [buffer.clone() for buffer in model.buffers()]
        found = []
        for way in (self._through_pipeline, self._in_turn):
            for buffer, kept in zip(model.buffers(), before, strict=True):
                buffer.copy_(kept)
            model.zero_grad(set_to_none=True)
            # Both ways must draw the same dropout.
            torch.manual_seed(_SEED)
            way(training, inputs, targets)
            gradients = (parameter.grad for parameter in model.parameters())
            left = [gradient for gradient in gradients if gradient is not None]
            found.append(torch.cat([t.double().flatten() for t in (*left, *model.buffers())]))
        piped, in_turn = found
        same = piped.shape == in_turn.shape
        off = float((piped - in_turn).norm() / in_turn.norm()) if same else float("inf")
        off = self.largest(0.0 if same and torch.equal(piped, in_turn) else off)
        if not off <= (_SAME_ON_GPUS if self.devices else 0.0):
            raise InvalidTrainingError(
                "the pipeline's gradients and buffers differ from those of the same micro-batches "
                f"one after another, by {off:.2g} of their size, so the speedup is meaningless"
            )

    def _in_turn(self, training: Training, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Train on the micro-batches one by one, each going through all stages and back."""
        for values, expected in self._divided(inputs, targets):
            if not self._is_first:
                values = self._receive(self.rank - 1).requires_grad_()
            with training.autocast:
                output = training.model(values)
                if self._is_last:
                    output = training.case.loss(output, expected) / self._micro_batches
            if self._is_last:
                output.backward()
            else:
                self._send(output, self.rank + 1)
                output.backward(self._receive(self.rank + 1))
            if not self._is_first:
                assert values.grad is not None, "a stage that passes no gradient on"
                self._send(values.grad, self.rank - 1)

    def _send(self, values: torch.Tensor, rank: int) -> None:
        dist.send_object_list([values.detach().cpu()], dst=rank, device=_CPU)

    def _receive(self, rank: int) -> torch.Tensor:
        received: list[Any] = [None]
        dist.recv_object_list(received, src=rank, device=_CPU)
        values: torch.Tensor = received[0].to(self.device)
        return values


class _TimedStage(PipelineStage):
    """A pipeline stage that times its computations; the time between them counts as waiting."""

    training: Training
    """The training whose clock times the phases; to be set before the first step."""

    def forward_one_chunk(self, *arguments: Any, **more: Any) -> Any:
        training = self.training
        training.clock.mark(Phase.WAIT)
        with training.faults.in_forward():
            output = super().forward_one_chunk(*arguments, **more)
        training.clock.mark(Phase.FORWARD)
        return output

    def backward_one_chunk(self, *arguments: Any, **more: Any) -> Any:
        self.training.clock.mark(Phase.WAIT)
        done = super().backward_one_chunk(*arguments, **more)
        self.training.clock.mark(Phase.BACKWARD)
        return done
