"""Data parallelism with a whole model per GPU; base class of strategies with process groups."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gpuscale.base.errors import InvalidTrainingError
from gpuscale.measure.worker.training import HALF_TYPES, Strategy, T, autocast_for, state_tensors
from gpuscale.records import RunRequest
from gpuscale.workload.cases import TrainingCase

_FIRST_COMPRESSED = 2
"""Earliest step at which torch lets PowerSGD compress gradients."""


class DataParallelStrategy(Strategy):
    """The strategy `dp`: torch's DataParallel scatters each batch from one process to all GPUs."""

    def wrap(self, model: torch.nn.Module, case: TrainingCase) -> torch.nn.Module:
        model = autocasting(model.to(self.device), self._precision, self.device.type)
        return torch.nn.DataParallel(model, device_ids=list(self.devices) or None)


def autocasting(model: torch.nn.Module, precision: str | None, device_type: str) -> torch.nn.Module:
    """Return the model wrapped to run under autocast, or unchanged for fp32 and tf32."""
    return _Autocasting(model, precision, device_type) if precision in HALF_TYPES else model


class _Autocasting(torch.nn.Module):
    """A model that enters autocast in each thread that calls it.

    DataParallel calls each replica on a separate thread and turns autocast on there, but does not
    pass on the dtype: bf16 would become fp16, without a loss scaler.
    """

    def __init__(self, model: torch.nn.Module, precision: str | None, device_type: str) -> None:
        super().__init__()
        self._model, self._precision, self._device_type = model, precision, device_type

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        with autocast_for(self._precision, self._device_type):
            return self._model(*inputs, **keywords)


class ProcessGroupStrategy(Strategy):
    """Base class of strategies with one rank per device; even one rank has a process group."""

    def __init__(self, request: RunRequest) -> None:
        self.rank = int(os.environ["RANK"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        super().__init__(request)
        self.devices = () if self.device.index is None else (self.device.index,)
        # Barriers use gloo on the CPU even if gradients use NCCL: a barrier kernel would wait in
        # the very stream that is being timed.
        backend = "gloo"
        if self.devices:
            # NCCL does not support two ranks on one GPU.
            shares_gpu = request.configuration.ranks_per_gpu is not None
            backend = "cpu:gloo,cuda:gloo" if shares_gpu else "cpu:gloo,cuda:nccl"
        # Longer than the run's timeout, so that a hang is reported with the stack traces of all
        # ranks rather than as a timeout error of one rank.
        dist.init_process_group(backend, timeout=timedelta(seconds=request.timeout_s + 60))

    def barrier(self) -> None:
        dist.all_reduce(torch.zeros(1))

    def largest(self, value: float) -> float:
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor.item())

    def gathered(self, own: T) -> list[T]:
        everyone: list[T] = [own] * self.world_size if self.rank == 0 else []
        dist.gather_object(own, everyone or None)
        return everyone


class DistributedDataParallelStrategy(ProcessGroupStrategy):
    """The strategy `ddp`: one process per GPU; the backward pass all-reduces gradients."""

    _has_run = False

    def wrap(self, model: torch.nn.Module, case: TrainingCase) -> torch.nn.Module:
        options: dict[str, Any] = dict(case.strategy_options.get("ddp", {}))
        hook = options.pop("comm_hook", None)
        devices = list(self.devices) or None
        wrapped = DistributedDataParallel(model.to(self.device), device_ids=devices, **options)
        if hook == "powerSGD":
            # By default 1000 steps stay uncompressed, so windows would contain both kinds.
            state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=_FIRST_COMPRESSED)
            wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif hook is not None:
            wrapped.register_comm_hook(None, getattr(default_hooks, f"{hook}_hook"))
        return wrapped

    def accumulating(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Return DDP's `no_sync` context; at the first call, a null one, to allow static graphs."""
        assert isinstance(model, DistributedDataParallel)
        if not self._has_run:
            # With static_graph, torch records the graph in a first, synchronised backward pass.
            self._has_run = True
            return nullcontext()
        context: AbstractContextManager[None] = model.no_sync()
        return context

    @contextmanager
    def unsynchronized(self, model: torch.nn.Module) -> Iterator[None]:
        """Enter a context in which DDP exchanges neither gradients nor buffers between ranks."""
        assert isinstance(model, DistributedDataParallel)
        # `no_sync` does not reset this flag. If it is set, the first forward pass after a
        # synchronised step broadcasts buffers, and waiting for rank 0 hides a delay of rank 0.
        model.require_forward_param_sync = False
        with model.no_sync():
            yield
        # The next synchronised step must broadcast buffers again.
        model.require_forward_param_sync = True

    def realign(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        tensors = state_tensors(model, optimizer)
        elements = float(sum(tensor.numel() for tensor in tensors))
        # Every rank compares sizes, so that all raise here and none hangs in a broadcast.
        if self.largest(elements) != -self.largest(-elements):
            raise InvalidTrainingError(
                f"{type(optimizer).__name__} keeps states of different sizes on different ranks in "
                "steps without gradient synchronisation; ddp cannot be measured with it"
            )
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)
