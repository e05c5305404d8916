"""The environment variables that gpuscale records and passes on."""

import os
from pathlib import Path

VARIABLE_PREFIXES = (
    *("CUBLAS_", "CUDA_", "CUDNN_", "CXI_", "FI_", "GLOO_", "HIP_", "HSA_", "MIOPEN_", "MKL_"),
    *("MPICH_", "NCCL_", "NVIDIA_TF32_OVERRIDE", "OMP_", "PYTORCH_", "RCCL_", "ROCR_", "TORCH_"),
    *("TORCHINDUCTOR_", "UCX_"),
)
"""Prefixes of the environment variables that affect how ranks compute and communicate."""

CACHE_VARIABLES = frozenset(
    {"CUDA_CACHE_PATH", "PYTORCH_KERNEL_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "TORCH_HOME"}
    | {"TORCH_EXTENSIONS_DIR"}
)
"""Environment variables that name cache folders; torch's defaults may contain the login name."""

JOB_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})
"""Environment variables that list the devices that one job may use on one node."""


def variables_of(process: int | str) -> dict[str, str]:
    """Return a process's initial environment variables; raise an OSError if they cannot be read."""
    text = Path(f"/proc/{process}/environ").read_bytes().decode(errors="surrogateescape")
    return dict(entry.partition("=")[::2] for entry in text.split("\0"))


def python_environment() -> dict[str, str]:
    """Return this process's environment with gpuscale's parent folder added to PYTHONPATH."""
    folders = (os.environ.get("PYTHONPATH"), str(Path(__file__).resolve().parents[2]))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
