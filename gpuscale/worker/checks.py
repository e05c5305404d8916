"""Did the ranks train together? A speedup that does not train is no speedup."""

import hashlib
import math
import resource

import torch


def parameter_digest(model: torch.nn.Module) -> str:
    """SHA-256 over all parameters in order, bit for bit.

    Buffers are left out: batch-norm statistics are each rank's own between two forwards.
    """
    digest = hashlib.sha256()
    for parameter in model.parameters():
        flat = parameter.detach().reshape(-1).contiguous().cpu()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def loss_of_finite(loss: float, model: torch.nn.Module) -> float | None:
    """The loss; None where it or a parameter of the model is infinite or not a number."""
    finite = math.isfinite(loss) and all(
        bool(torch.isfinite(p.detach()).all()) for p in model.parameters()
    )
    return loss if finite else None


def peak_device_memory_bytes(devices: tuple[int, ...]) -> int | None:
    """The largest peak of the CUDA allocator over the devices; None without devices."""
    if not devices:
        return None
    return max(torch.cuda.max_memory_allocated(device) for device in devices)


def peak_host_memory_bytes() -> int:
    """Peak resident set of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
