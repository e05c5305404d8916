"""The training of one rank, built from its request: its step, and what it left."""

import hashlib
import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from gpuscale.base.errors import CaseError, InvalidTrainingError
from gpuscale.measure.worker.data import Batch, Batches, on_device
from gpuscale.measure.worker.faults import Faults
from gpuscale.measure.worker.phases import Phase, phase_clock
from gpuscale.measure.worker.strategies import AUTOCAST, Strategy, local_part, not_finite
from gpuscale.records import Phases, RunRequest
from gpuscale.workload.cases import TrainingCase
from gpuscale.workload.injections import parse_injection

_FIRST_WITH_TF32 = (8, 0)
"""The first with bf16 in hardware, too."""


def set_fp32_mode(precision: str | None) -> None:
    """Let fp32 be fp32, whatever a case has allowed: by default torch has TF32 in convolutions."""
    # From torch 2.9 on there is a newer way to say it. What it says of all there is, or of all of
    # cuDNN, goes before what the older one says of convolutions.
    places: Any = torch.backends
    if hasattr(places.cudnn, "fp32_precision"):
        for place in (places, places.cudnn, places.mkldnn.conv, places.mkldnn.rnn):
            place.fp32_precision = "none"
    # These setters write what the newer `fp32_precision` settings hold too. Those write only
    # themselves, and torch.compile, which asks in the older way, then fails over the difference.
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def _validate_precision(precision: str | None, devices: Sequence[int]) -> None:
    if precision == "tf32" and os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        raise CaseError(
            "--precision tf32: NVIDIA_TF32_OVERRIDE=0 keeps NVIDIA's libraries from TF32, and "
            "what is measured would be fp32; unset it, or leave the option out"
        )
    # In what else they would compute, and what to choose.
    otherwise = {
        "tf32": "has no TF32 and would compute in fp32; leave the option out",
        "bf16": "has no bf16 in hardware and emulates it slowly, if at all; choose fp16",
    }.get(precision or "")
    for device in devices if otherwise else ():
        if torch.cuda.get_device_capability(device) < _FIRST_WITH_TF32:
            gpu = torch.cuda.get_device_name(device)
            raise CaseError(f"--precision {precision}: {gpu} {otherwise}")


def load_case(request: RunRequest) -> TrainingCase:
    """The request's case at its size; its module is imported for it. Else a CaseError."""
    for path in reversed(request.import_paths):
        if path not in sys.path:
            sys.path.insert(0, path)
    found: object = _load_module(request.case_module, Path(request.case_file))
    for part in request.case_class.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, TrainingCase)):
        raise CaseError(
            f"{request.case_file}: no TrainingCase named {request.case_class} at the top of the "
            "module; ranks import the case from its file, so it cannot live inside a function"
        )
    case = found()
    case.size = case.named_size(request.configuration.size)
    return case


def _load_module(name: str, file: Path) -> ModuleType:
    """The module by its name where that leads to `file`, else straight from the file."""
    try:
        module = importlib.import_module(name)
        if module.__file__ and Path(module.__file__).samefile(file):
            return module
    except ImportError:
        # pytest's importlib mode names modules in ways that only pytest can resolve.
        pass
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise CaseError(f"{file}: not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _validate_type(case: TrainingCase, method: str, made: object, kind: type) -> None:
    if not isinstance(made, kind):
        name, found = f"{type(case).__name__}.{method}()", type(made).__name__
        raise CaseError(f"{name} returned {found}, not a {kind.__name__}; see its 'return'")


class Training:
    """The training of one rank, step by step, with what measuring needs around it."""

    def __init__(
        self, case: TrainingCase, request: RunRequest, strategy: Strategy, batches: Batches
    ) -> None:
        asked, self._device = request.configuration, strategy.device
        _validate_precision(asked.precision, strategy.devices)
        self.case, self.strategy, self.batches = case, strategy, batches
        self.memory_format = torch.channels_last if asked.channels_last else torch.preserve_format
        built = case.model()
        _validate_type(case, "model", built, torch.nn.Module)
        self._own_model = model = built.to(memory_format=self.memory_format)
        self.model = strategy.wrap(model, case)
        # Parameters keep the names that the case gave them, which a wrapped module's have not.
        self.optimizer = case.optimizer(model, request.gpus)
        _validate_type(case, "optimizer", self.optimizer, torch.optim.Optimizer)
        # torch.compile keeps the module's own type, which its signature cannot say.
        self.forward_model = torch.compile(self.model) if asked.compiled else self.model
        self._scheduler = case.scheduler(self.optimizer)
        # After all that the case does by itself, which often allows TF32.
        set_fp32_mode(asked.precision)
        injections = [parse_injection(text) for text in request.injections]
        self.faults = Faults(injections, rank=strategy.rank, device=self._device)
        dtype = AUTOCAST.get(asked.precision)
        self.autocast: AbstractContextManager[object] = (
            nullcontext() if dtype is None else torch.autocast(self._device.type, dtype=dtype)
        )
        # It passes everything through for other precisions.
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=asked.precision == "fp16")
        self._aligned_scaler = self._scaler.state_dict()
        self.clock = phase_clock(self._device)
        self._accumulate = asked.accumulate or 1
        self._epoch = 0
        self._steps = 0
        self._losses: list[torch.Tensor] = []
        self._losses_before_windows: list[tuple[int, list[torch.Tensor]]] = []

    def step(self, *, synchronized: bool = True) -> None:
        """Train on one batch, or on several whose gradients add up.

        On CUDA it returns before the device is done. Without synchronisation the ranks drift
        apart, until `realign`.
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
        """The next batch, in host memory."""
        batch = self.strategy.part_of(next(self.batches))
        if self.batches.epoch != self._epoch:
            self._epoch = self.batches.epoch
            if self._scheduler is not None:
                self._scheduler.step()
        self.clock.mark(Phase.DATA)
        return batch

    def forward_backward(self, inputs: Any, targets: Any, *, share: float = 1.0) -> torch.Tensor:
        """The loss of a batch through the model as a whole, after the backward pass.

        Of a part of a step it is the share in the step's loss.
        """
        share /= self._accumulate
        self.faults.begin_forward(share)
        with self.autocast:
            output = self.case.forward(self.forward_model, inputs)
            # Where layers lie on several devices, the clock's then waits for all of the forward.
            loss = self.case.loss(output, targets).to(self._device)
            loss = loss if share == 1 else loss * share
        self.faults.end_forward()
        self.clock.mark(Phase.FORWARD)
        self._scaler.scale(loss).backward()
        self.clock.mark(Phase.BACKWARD)
        return loss

    def begin_window(self, *, marked_every: int) -> None:
        """Start to take the phases of a window, in one step of so many."""
        # To be looked at afterwards: to read a loss is to wait for the device.
        self._losses_before_windows.append((self._steps, self._losses))
        self.clock.begin(marked_every)

    def phases(self) -> Phases:
        """The phases of the window, in seconds; to be asked after `synchronize`."""
        return self.clock.phases()

    @property
    def events_per_step(self) -> int:
        """The events that mark the phases of a step."""
        return self.clock.events_per_step

    def realign(self) -> None:
        """Let all ranks go on from rank 0's state, after steps that were not synchronised."""
        self.strategy.realign(self.model, self.optimizer)
        self._scaler.load_state_dict(self._aligned_scaler)
        self._losses = []

    def remember(self) -> None:
        """Keep what `realign` cannot take from another rank, before such steps."""
        self.validate_finite()
        self._aligned_scaler = self._scaler.state_dict()
        self.strategy.remember(self.model, self.optimizer)

    def synchronize(self) -> None:
        """Return once the device has done all that was asked of it."""
        for device in self.strategy.devices:
            torch.cuda.synchronize(device)

    def final_loss(self) -> float:
        """The loss of the last step."""
        return self.strategy.final_loss(_sum(self._losses))

    def validate_finite(self) -> None:
        """Raise an InvalidTrainingError that says what is not a finite number, and since when."""
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


def _sum(losses: Sequence[torch.Tensor]) -> float:
    """Of the parts of one step, which its batches have."""
    return math.fsum(float(each.float().mean()) for each in losses)


def parameter_digest(model: torch.nn.Module) -> str:
    """SHA-256 over all parameters in order, or this rank's parts of them, bit for bit.

    Buffers are left out: batch-norm statistics are each rank's own between two forwards.
    """
    digest = hashlib.sha256()
    for parameter in model.parameters():
        flat = local_part(parameter).reshape(-1).contiguous().cpu()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
