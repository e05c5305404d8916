"""Floating-point precision of training (`--precision`): autocast, TF32 and hardware checks."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gpuscale.base.errors import CaseError

HALF_TYPES: Mapping[str | None, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NEEDS_HARDWARE = ("tf32", "bf16")
_FIRST_WITH_TF32 = (8, 0)
"""Lowest compute capability with hardware support for TF32 and bf16."""


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
