"""The devices that ranks train on, as `--device` and records name them; torch calls both "cuda"."""

from collections.abc import Mapping
from typing import NamedTuple


class GpuKind(NamedTuple):
    """Names of the software that belongs to the GPUs of one vendor."""

    library: str
    """Library by which ranks exchange data."""
    tool: str
    """Command that lists the GPUs."""
    variable: str
    """Environment variable that selects the visible GPUs."""


GPU_KINDS: Mapping[str, GpuKind] = {
    "cuda": GpuKind("NCCL", "nvidia-smi", "CUDA_VISIBLE_DEVICES"),
    "rocm": GpuKind("RCCL", "rocminfo", "HIP_VISIBLE_DEVICES"),
}
DEVICES = (*GPU_KINDS, "cpu")


def is_gpu(device: str) -> bool:
    """True if ranks train on GPUs; False on CPUs, and if an imported record names no device."""
    return device in GPU_KINDS
