"""Tensors of the CPU that say on which emulated device they lie.

A storage on a device is one in host memory that carries the device's number, so views, `.data` and
gradients lie where their storage does. Below autograd a dispatch mode sees every operator: it
computes on the CPU, refuses operands on several devices, and marks what comes out.
"""

import weakref
from typing import Any

import torch
from cuda_emulation.devices import allocate, free, index_of, of_thread, submit, synchronize
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

_MARK = "_emulated_device"
_PLAIN = {torch.Tensor, torch.nn.Parameter, FakeTensor}
# Operators that copy between devices, or take lists of tensors from any. DDP fills its buckets by
# `mul.out`: it makes them in C++, where it takes the parameters to lie on the CPU.
_OF_SEVERAL = (
    "aten::copy_",
    "aten::_foreach",
    "aten::index",
    "aten::set_",
    "aten::mul.out",
    "c10d::",
)


def storage_of(tensor: torch.Tensor) -> Any:
    """The storage, which keeps its attributes for as long as it lives; None without one."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def number_of(tensor: torch.Tensor) -> int | None:
    """The device that a tensor lies on; None is the CPU, or a place that is not emulated."""
    return getattr(storage_of(tensor), _MARK, None)


def _place(made: Any, given: Any, number: int) -> None:
    """Say that new tensors lie on a device; what an operator writes into stays where it is."""
    old = {storage_of(each)._cdata for each in _tensors(given) if storage_of(each) is not None}
    for each in _tensors(made):
        storage = storage_of(each)
        if storage is None or storage._cdata in old or hasattr(storage, _MARK):
            continue
        allocate(number, storage.nbytes())
        setattr(storage, _MARK, number)
        weakref.finalize(storage, free, number, storage.nbytes())


class Computing(TorchDispatchMode):
    """Computes on the CPU what is asked of a device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the operator's result, marked with its device."""
        if set(types) - _PLAIN:
            # A tensor of another kind, such as DTensor, comes down as the plain ones in it.
            return NotImplemented
        kwargs = dict(kwargs or {})
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            # Tensors without values keep their devices by themselves.
            return func(*args, **kwargs)
        number = _common_device(func, (args, kwargs))
        asked = kwargs.get("device")
        if isinstance(asked, torch.device) and asked.type == "cuda":
            number, kwargs["device"] = index_of(asked), torch.device("cpu")
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        number = getattr(of_thread, "landing", number)
        if number is None:
            return func(*args, **kwargs)
        submit(number)
        if func is torch.ops.aten._local_scalar_dense.default:
            synchronize(number)
        try:
            made = func(*args, **kwargs)
        except RuntimeError as error:
            if "DefaultCPUAllocator" in str(error):
                raise torch.OutOfMemoryError(f"CUDA out of memory. {error}") from None
            raise
        _place(made, (args, kwargs), number)
        return made


def _common_device(func: Any, operands: Any) -> int | None:
    """The device of all operands but single numbers; None of those on the CPU."""
    tensors = _tensors(operands)
    places = {number_of(each) for each in tensors}
    devices = places - {None}
    has_host = any(number_of(each) is None and each.dim() for each in tensors)
    if len(devices) + (has_host and bool(devices)) > 1 and not func.name().startswith(_OF_SEVERAL):
        found = sorted("cpu" if place is None else f"cuda:{place}" for place in places)
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(found)}! (in {func})"
        )
    return next(iter(devices), None)


def _tensors(nested: Any) -> list[torch.Tensor]:
    found = (each for each in tree_flatten(nested)[0] if isinstance(each, torch.Tensor))
    return [each for each in found if not each.is_meta]


class Moved(torch.autograd.Function):
    """A tensor on another device, whose gradient comes back to where it was."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, number: int | None) -> torch.Tensor:
        """A copy there."""
        ctx.number = number_of(tensor)
        return _copied(tensor, number)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """A copy of the gradient back here."""
        return _copied(gradients[0], ctx.number), None


def _copied(tensor: torch.Tensor, number: int | None) -> torch.Tensor:
    of_thread.landing = number
    try:
        return tensor.detach().clone()
    finally:
        del of_thread.landing
