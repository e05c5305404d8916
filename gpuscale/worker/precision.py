"""Number formats: what `--precision` means to torch."""

from contextlib import AbstractContextManager, nullcontext

import torch

from gpuscale.records.configuration import Precision

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_fp32_mode(precision: Precision) -> None:
    """Let fp32 be fp32: torch allows TF32 in convolutions unless it is told otherwise."""
    mode = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = mode
    torch.backends.cudnn.conv.fp32_precision = mode  # type: ignore[attr-defined] # not in stubs


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context of forward and loss."""
    if precision in _AUTOCAST:
        return torch.autocast(device.type, dtype=_AUTOCAST[precision])
    return nullcontext()


def grad_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
    """The loss scaler of fp16, which passes everything through for other precisions."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
