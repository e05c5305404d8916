"""The strategies `mp` and `pipeline`, which divide a model into stages, one stage per GPU."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from gpuscale.base.errors import CaseError, InvalidTrainingError
from gpuscale.base.text import counted
from gpuscale.measure.worker.data import SEED, Batch, example_batch, map_tensors, on_device
from gpuscale.measure.worker.phases import Phase
from gpuscale.measure.worker.strategies.data_parallel import ProcessGroupStrategy, autocasting
from gpuscale.measure.worker.training import Strategy, Training
from gpuscale.records import RunRequest
from gpuscale.workload.cases import TrainingCase

_CPU = torch.device("cpu")
_SAME_ON_GPUS = 0.01
"""Largest relative difference allowed between gradients on GPUs, where summation order varies."""


class ModelParallelStrategy(Strategy):
    """The strategy `mp`: layers are spread over devices, which compute one after another."""

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
    """A model whose stages are on several devices; each stage passes its output to the next."""

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
    """Group the blocks of a case's model into `count` stages; raise CaseError if impossible."""
    groups = with_parameters(case.blocks(model))
    where = f"{type(case).__name__}.blocks(model)"
    if len(groups) < count:
        raise CaseError(
            f"{where} gives {counted(len(groups), 'block')} with parameters, and each of {count} "
            "GPUs needs one; return all modules of the model, in order, or choose fewer GPUs"
        )
    inputs, _ = example_batch(case)
    # Operations are counted rather than timed, so that the stages are the same in every run.
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
    """Cut a sequence into `parts` so that the largest sum is minimal; return the start indices."""

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
    """Merge adjacent blocks until each group has parameters, because an optimiser needs some."""
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
        meta = {
            name: torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)
            for name, tensor in (*block.named_parameters(), *block.named_buffers())
        }
        with FlopCounterMode(display=False) as counter:
            output = functional_call(block, meta, (values,))
            output.sum().backward()
        counts.append(counter.get_total_flops())
        values = output.detach().requires_grad_()
    return counts


class PipelineStrategy(ProcessGroupStrategy):
    """The strategy `pipeline`: one rank per stage; a single rank trains without a pipeline."""

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
        """Enter a context in which even a single rank uses micro-batches, to measure their cost."""
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
        """Raise InvalidTrainingError if overlapping the micro-batches changes the result."""
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
            torch.manual_seed(SEED)
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
        """Compute gradients for one micro-batch after another, without overlap between stages."""
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
