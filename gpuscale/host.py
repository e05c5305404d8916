"""What training depends on that is this host's or this process's own, found without a library."""

from pathlib import Path

VARIABLE_FAMILIES = ("CUDA_", "FI_", "GLOO_", "MKL_", "NCCL_", "OMP_", "PYTORCH_", "TORCH_", "UCX_")
"""How the environment variables begin that tell ranks how to compute and to communicate."""

VARIABLES_OF_THE_JOB = frozenset({"CUDA_VISIBLE_DEVICES"})
"""Those of them that tell what a job was given on one node, which is another in the next job."""


def cpu_model() -> str | None:
    """The model of the CPU; None where the system does not name it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        # x86 says "model name", POWER says "cpu".
        if key.strip() in ("model name", "cpu") and value.strip():
            return value.strip()
    return None
