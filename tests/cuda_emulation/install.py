"""Puts emulated CUDA devices into torch, in place of what asks the driver or copies in C++."""

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from cuda_emulation.devices import (
    IN_ACCELERATOR,
    IN_CUDA,
    LARGEST_SIDE,
    ROCM_TARGET,
    Event,
    Stream,
    current_device,
    index_of,
)
from cuda_emulation.tensors import Computing, Moved, number_of, storage_of
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_CUDA, _CPU = torch.device("cuda"), torch.device("cpu")
_PINNED = "_is_emulated_as_pinned"
_BASE: Any = torch._C.TensorBase
_TO: Any = torch.Tensor.to
_NUMPY, _JOIN = torch.Tensor.numpy, dist.init_process_group


def _device_of(tensor: torch.Tensor) -> torch.device:
    number = number_of(tensor)
    found: torch.device = _BASE.device.__get__(tensor)
    return found if number is None else torch.device("cuda", number)


def _to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """`Tensor.to`, which in C++ takes all emulated tensors for the CPU's."""
    if is_traceable_wrapper_subclass(tensor) or tensor.is_meta or storage_of(tensor) is None:
        return _TO(tensor, *args, **kwargs)
    wanted = kwargs.pop("device", None)
    rest = []
    for each in args:
        if isinstance(each, (str, torch.device)) or type(each) is int:
            wanted = each
        elif isinstance(each, torch.Tensor):
            wanted, kwargs["dtype"] = each.device, each.dtype
        elif each is not None and not isinstance(each, bool):
            # Not `non_blocking`: nothing blocks here.
            rest.append(each)
    kwargs.pop("non_blocking", None)
    if type(wanted) is int:
        wanted = torch.device("cuda", wanted)
    wanted = None if wanted is None else torch.device(wanted)
    if wanted is None or wanted.type not in ("cuda", "cpu"):
        return _TO(tensor, *([] if wanted is None else [wanted]), *rest, **kwargs)
    number = index_of(wanted) if wanted.type == "cuda" else None
    if number != number_of(tensor):
        tensor = Moved.apply(tensor, number)
    return _TO(tensor, *rest, **kwargs) if rest or kwargs else tensor


def _numpy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if (number := number_of(tensor)) is not None:
        raise TypeError(
            f"can't convert cuda:{number} device type tensor to numpy. Use Tensor.cpu() to copy "
            "the tensor to host memory first."
        )
    return _NUMPY(tensor, *args, **kwargs)


def _pin(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    copy = tensor.clone()
    setattr(storage_of(copy), _PINNED, True)
    return copy


def _made_there(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.tensor` and the like, which make their tensors below the dispatch mode."""

    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != "cuda":
            return make(data, *args, device=device, **kwargs)
        wants_gradient = kwargs.pop("requires_grad", False)
        found = make(data, *args, **kwargs).to(device)
        return found.requires_grad_() if wants_gradient else found

    return made


def _no_larger(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def made(*shape: Any, **kwargs: Any) -> torch.Tensor:
        if all(type(side) is int for side in shape):
            shape = tuple(min(side, LARGEST_SIDE) for side in shape)
        return make(*shape, **kwargs)

    return made


def _broadcast(tensors: Sequence[torch.Tensor], devices: Sequence[int], *_: Any) -> Any:
    return [[each.detach().to(torch.device("cuda", n)) for each in tensors] for n in devices]


def _scatter(
    tensor: torch.Tensor, devices: Sequence[int], sizes: Any, dim: int, streams: Any = None
) -> Any:
    parts = tensor.split(list(sizes), dim) if sizes else tensor.chunk(len(devices), dim)
    pairs = zip(parts, devices, strict=False)
    return tuple(part.detach().to(torch.device("cuda", number)) for part, number in pairs)


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: Any) -> torch.Tensor:
    number = destination if destination is not None else current_device()
    device = _CPU if number == -1 else torch.device("cuda", number)
    return torch.cat([each.detach().to(device) for each in tensors], dim)


def _autocast_as_on_the_host(make: Callable[..., None]) -> Callable[..., None]:
    def made(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        make(self, device_type, dtype, *args, **kwargs)

    return made


def _of_autocast(ask: Callable[[str], Any]) -> Callable[..., Any]:
    return lambda device_type="cuda": ask("cpu" if device_type == "cuda" else device_type)


def _joined(backend: Any = None, *args: Any, **kwargs: Any) -> None:
    """Gloo for all devices, in place of NCCL."""
    if backend is not None:
        backend = str(backend).replace("nccl", "gloo")
    _JOIN(backend, *args, **kwargs)


def _averaged(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """A collective that averages as NCCL's does, which gloo's cannot."""
    signature = inspect.signature(reduce)

    def reduced(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        if given.arguments.get("op") != dist.ReduceOp.AVG:
            return reduce(*args, **kwargs)
        given.arguments["op"] = dist.ReduceOp.SUM
        work = reduce(*given.args, **given.kwargs)
        if work is not None:
            work.wait()
        arguments = given.arguments
        output = arguments["output" if "output" in arguments else "tensor"]
        output.div_(dist.get_world_size(given.arguments.get("group")))
        return work

    return reduced


def _in_mode(run: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """A thread's `run`, where modes, which are a thread's own, are there as well."""

    def run_in_mode(thread: threading.Thread) -> None:
        with _mode():
            run(thread)

    return run_in_mode


def _mode() -> Any:
    mode: Any = Computing
    return mode()


def install() -> None:
    """Put all of it into torch, for good."""
    there: Any = torch
    if ROCM_TARGET:
        there.version.hip, there.version.cuda = "6.4.43482", None
    for module, names in ((there.cuda, IN_CUDA), (there.accelerator, IN_ACCELERATOR)):
        for name, value in names.items():
            setattr(module, name, value)
    there.cuda.nccl.version = lambda: (2, 28, 3)
    there.cuda.nccl.is_available = lambda tensors: False
    there.Stream, there.Event = Stream, Event
    there.backends.cudnn.version = lambda: 92400
    tensor = there.Tensor
    tensor.device = property(_device_of)
    tensor.is_cuda = property(lambda each: _device_of(each).type == "cuda")
    tensor.is_cpu = property(lambda each: _device_of(each).type == "cpu")
    tensor.get_device = lambda each: -1 if (n := number_of(each)) is None else n
    tensor.to, tensor.numpy, tensor.pin_memory = _to, _numpy, _pin
    tensor.cuda = lambda each, device=None, *_, **__: _to(
        each, torch.device("cuda", index_of(device))
    )
    tensor.cpu = lambda each, *_, **__: _to(each, _CPU)
    tensor.is_pinned = lambda each, *_: hasattr(storage_of(each), _PINNED)
    tensor.record_stream = lambda each, stream: None
    there.tensor, there.as_tensor = _made_there(torch.tensor), _made_there(torch.as_tensor)
    inner = there._C
    inner._get_accelerator = lambda *_: _CUDA
    inner._broadcast_coalesced, inner._scatter, inner._gather = _broadcast, _scatter, _gather
    there.autocast.__init__ = _autocast_as_on_the_host(there.autocast.__init__)
    there.is_autocast_enabled = _of_autocast(torch.is_autocast_enabled)
    there.get_autocast_dtype = _of_autocast(torch.get_autocast_dtype)
    there.distributed.init_process_group = _joined
    for name in ("all_reduce", "reduce_scatter_tensor"):
        setattr(dist, name, _averaged(getattr(dist, name)))
    there.rand = _no_larger(torch.rand)
    thread: Any = threading.Thread
    thread.run = _in_mode(thread.run)
    _mode().__enter__()
