"""One rank's training step."""

from contextlib import nullcontext

import torch

from gpuscale.cases import TrainingCase
from gpuscale.records import Phases, RunRequest
from gpuscale.worker.data import Batches
from gpuscale.worker.faults import Faults
from gpuscale.worker.phase_clock import Phase, phase_clock
from gpuscale.worker.precision import autocast, grad_scaler, set_fp32_mode
from gpuscale.worker.strategies import Strategy


class Training:
    """The model of a case on one rank, with its optimiser and its batches."""

    def __init__(
        self,
        case: TrainingCase,
        request: RunRequest,
        strategy: Strategy,
        batches: Batches,
        faults: Faults,
    ) -> None:
        configuration = request.configuration
        set_fp32_mode(configuration.precision)
        model = case.model()
        self._memory_format = (
            torch.channels_last if configuration.channels_last else torch.preserve_format
        )
        self.model = strategy.wrap(model.to(memory_format=self._memory_format))
        # The optimiser holds the wrapped module's parameters, compiled or not.
        self._optimizer = case.optimizer(self.model.parameters(), request.gpus)
        self._scheduler = case.scheduler(self._optimizer)
        # torch.compile keeps the module's own type, which its signature cannot say.
        self._forward_model = torch.compile(self.model) if configuration.compiled else self.model
        self._autocast = autocast(configuration.precision, strategy.device)
        self._scaler = grad_scaler(configuration.precision, strategy.device)
        self._aligned_scaler = self._scaler.state_dict()
        self._clock = phase_clock(strategy.device)
        self._strategy = strategy
        self._faults = faults
        self._case = case
        self._device = strategy.device
        self._batches = batches
        self._epoch = 0
        self._loss: torch.Tensor | None = None

    def step(self, *, synchronized: bool = True) -> None:
        """Train on one batch; on CUDA it returns before the device is done.

        Without synchronisation the ranks drift apart, until `realign`.
        """
        clock, faults = self._clock, self._faults
        faults.at_step()
        faults.in_data()
        inputs, targets = next(self._batches)
        self._step_scheduler_after_epochs()
        clock.mark(Phase.DATA)
        inputs = inputs.to(self._device, non_blocking=True, memory_format=self._memory_format)
        targets = targets.to(self._device, non_blocking=True)
        clock.mark(Phase.H2D)
        self._optimizer.zero_grad(set_to_none=True)
        clock.mark(Phase.OPTIMIZER)
        with nullcontext() if synchronized else self._strategy.unsynchronized(self.model):
            faults.in_forward()
            with self._autocast:
                output = self._case.forward(self._forward_model, inputs)
                loss = self._case.loss(output, targets)
            clock.mark(Phase.FORWARD)
            self._scaler.scale(loss).backward()
        clock.mark(Phase.BACKWARD)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        clock.mark(Phase.OPTIMIZER)
        self._loss = loss.detach()

    def _step_scheduler_after_epochs(self) -> None:
        if self._batches.epoch != self._epoch:
            self._epoch = self._batches.epoch
            if self._scheduler is not None:
                self._scheduler.step()

    def begin_window(self) -> None:
        """Start to take the phases of a window."""
        self._clock.begin()

    def phases(self) -> Phases:
        """The phases of the window, in seconds; to be asked after `synchronize`."""
        return self._clock.phases()

    def realign(self) -> None:
        """Let all ranks go on from rank 0's state, after steps that were not synchronised."""
        self._strategy.realign(self.model, self._optimizer)
        self._scaler.load_state_dict(self._aligned_scaler)

    def remember(self) -> None:
        """Keep what `realign` cannot take from another rank, before such steps."""
        self._aligned_scaler = self._scaler.state_dict()

    def synchronize(self) -> None:
        """Return once the device has done all that was asked of it."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def last_loss(self) -> float:
        """The loss of the last step.

        Raises:
            RuntimeError: no step was made.
        """
        if self._loss is None:
            raise RuntimeError("no training step was made")
        return float(self._loss.float().mean().item())
