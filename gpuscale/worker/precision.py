"""Number formats: what `--precision` means to torch."""

from contextlib import AbstractContextManager, nullcontext

import torch

_AUTOCAST: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_fp32_mode(precision: str | None) -> None:
    """Let fp32 be fp32: torch allows TF32 in convolutions unless it is told otherwise."""
    # These setters write what torch's newer `fp32_precision` settings hold too. Those write only
    # themselves, and torch.compile, which asks in the older way, then fails over the difference.
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def autocast_dtype(precision: str | None) -> torch.dtype | None:
    """What autocast computes in; None where there is no autocast."""
    return _AUTOCAST.get(precision or "")


def autocast(precision: str | None, device: torch.device) -> AbstractContextManager[object]:
    """The context of forward and loss."""
    dtype = autocast_dtype(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def grad_scaler(precision: str | None, device: torch.device) -> torch.amp.GradScaler:
    """The loss scaler of fp16, which passes everything through for other precisions."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
