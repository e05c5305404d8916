"""PyTorch Lightning: Lightning's Trainer runs the steps, using DistributedDataParallel."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from greenlet import getcurrent, greenlet
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.plugins import MixedPrecision, Precision
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy

from gpuscale.measure.worker.data import Batch, Batches, on_device
from gpuscale.measure.worker.phases import Phase
from gpuscale.measure.worker.strategies.data_parallel import DistributedDataParallelStrategy
from gpuscale.measure.worker.training import Strategy, Training
from gpuscale.records import RunRequest
from gpuscale.workload.cases import TrainingCase

_ENDLESS = 2**40


class LightningTraining(Training):
    """Training in which Lightning's Trainer runs the steps.

    `Trainer.fit` cannot be called for a single step: it requests batches until training ends. It
    therefore runs as a coroutine, which is paused between steps. A thread would be woken late on a
    busy host, and the delay would be part of each window.
    """

    def __init__(
        self, case: TrainingCase, request: RunRequest, strategy: Strategy, batches: Batches
    ) -> None:
        super().__init__(case, request, strategy, batches)
        self._trainer = Trainer(
            accelerator=self._device.type,
            strategy=DDPStrategy(
                # Repeat this rank's device for each rank, since Lightning indexes it by local rank.
                parallel_devices=[self._device] * strategy.world_size,
                # Use the existing ranks; by default, Lightning would first look for Slurm.
                cluster_environment=TorchElasticEnvironment(),
                precision_plugin=self._precision(request.configuration.precision),
            ),
            max_epochs=-1,
            accumulate_grad_batches=self._accumulate,
            # Logged values are copied to the host, as for any logger, but not written.
            logger=DummyLogger(),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        # Otherwise Lightning would let each rank use all cores.
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
        self._is_synchronized = True
        self._measuring = getcurrent()
        self._fit = greenlet(self._trainer.fit)
        at_sigterm = signal.getsignal(signal.SIGTERM)
        self._fit.switch(_Module(self, self.forward_model), _Steps(self))
        # A rank must end at once on SIGTERM; Lightning's handler would first notify the others.
        signal.signal(signal.SIGTERM, at_sigterm)
        self.model = self.forward_model = self._trainer.strategy.model

    def step(self, *, synchronized: bool = True) -> None:
        self._is_synchronized = synchronized
        self._fit.switch()
        assert not self._fit.dead, "Lightning ended its training by itself"

    def batches_as_asked(self) -> Iterator[Batch]:
        """Yield the batches of one step each time that `step` is called, and wait in between."""
        while True:
            self._measuring.switch()
            with nullcontext() if self._is_synchronized else self._unsynchronized():
                self.clock.begin_step()
                self._steps += 1
                self.faults.at_step(self._steps)
                self.faults.in_data()
                self._losses = []
                for _ in range(self._accumulate):
                    yield self._next_batch()
                    self.clock.mark(Phase.OPTIMIZER)

    def loss_of(self, model: Callable[..., Any], batch: Batch) -> torch.Tensor:
        """Compute the loss of a batch that is already on the device."""
        inputs, targets = batch
        with self.faults.in_forward():
            loss = self.case.loss(self.case.forward(model, inputs), targets)
        self._losses.append(loss.detach())
        return loss

    def final_loss(self) -> float:
        """Return the loss of the last step: the mean over the accumulated batches."""
        return super().final_loss() / self._accumulate

    def _precision(self, precision: str | None) -> Precision:
        if precision == "bf16":
            return MixedPrecision("bf16-mixed", self._device.type)
        if precision == "fp16":
            # On a CPU, the Trainer's `precision` argument would select bf16 instead.
            return MixedPrecision("16-mixed", self._device.type, self._scaler)
        return Precision()

    @contextmanager
    def _unsynchronized(self) -> Iterator[None]:
        """Enter a context in which a step waits for no other rank, nor for Lightning's broadcasts.

        Otherwise Lightning's rank 0 broadcasts at each step whether it has received SIGTERM.
        """
        loop = self._trainer.fit_loop.epoch_loop
        loop._broadcast_sigterm_tensor = nullcontext
        with self.strategy.unsynchronized(self.model):
            yield
        del loop._broadcast_sigterm_tensor


class LightningStrategy(DistributedDataParallelStrategy):
    """Strategy with the ranks and process group of `ddp`; Lightning itself wraps the model."""

    training = LightningTraining

    def wrap(self, model: torch.nn.Module, case: TrainingCase) -> torch.nn.Module:
        return model.to(self.device)


class _Module(LightningModule):
    """A LightningModule that trains a case's model and marks the phases of each step."""

    def __init__(self, training: LightningTraining, model: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self._training = training

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        return self.model(*inputs, **keywords)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._training.optimizer

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        parts = on_device(batch, self.device, self._training.memory_format)
        self._training.clock.mark(Phase.H2D)
        return parts

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        loss = self._training.loss_of(self.model, batch)
        self.log("loss", loss)
        return loss

    def on_before_zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        self._training.clock.mark(Phase.FORWARD)

    def on_before_backward(self, loss: torch.Tensor) -> None:
        self._training.clock.mark(Phase.OPTIMIZER)

    def on_after_backward(self) -> None:
        self._training.clock.mark(Phase.BACKWARD)


class _Steps:
    """A data loader for Lightning whose only epoch never ends."""

    def __init__(self, training: LightningTraining) -> None:
        self._training = training

    def __iter__(self) -> Iterator[Batch]:
        return self._training.batches_as_asked()

    def __len__(self) -> int:
        # If a loader has no length, Lightning prefetches one more batch.
        return _ENDLESS
