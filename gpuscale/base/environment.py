"""The environment variables that gpuscale records and passes on, and the CPU of this host."""

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


def cpu_model(root: Path = Path("/")) -> str | None:
    """Return the model name of the CPU, or else of the machine; None if unknown."""
    lines = text_of(root / "proc/cpuinfo").splitlines()
    for line in lines:
        key, _, value = line.partition(":")
        # The key is "model name" on x86, and "cpu" on POWER.
        if key.strip() in ("model name", "cpu") and value.strip():
            return value.strip()
    # On Arm, such as Grace, Linux reports no model name.
    names = ("proc/device-tree/model", "sys/devices/soc0/machine", "sys/class/dmi/id/product_name")
    return next(filter(None, (text_of(root / name) for name in names)), None)


def text_of(path: Path) -> str:
    """Return a file's text without leading or trailing whitespace; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip(" \t\n\r\0")
    except OSError:
        return ""


def variables_of(process: int | str, root: Path = Path("/")) -> dict[str, str]:
    """Return a process's initial environment variables; raise an OSError if they cannot be read."""
    text = (root / f"proc/{process}/environ").read_bytes().decode(errors="surrogateescape")
    return dict(entry.partition("=")[::2] for entry in text.split("\0"))


def python_environment() -> dict[str, str]:
    """Return this process's environment with gpuscale's parent folder added to PYTHONPATH."""
    folders = (os.environ.get("PYTHONPATH"), str(Path(__file__).resolve().parents[2]))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
