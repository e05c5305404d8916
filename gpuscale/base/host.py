"""This host, and a process's place on it, found without a library: CPU, variables, parent's death.

The file is also run by its path, as `python host.py PARENT COMMAND …`: it becomes a command that
gets SIGTERM when that parent dies. `srun` and `mpirun` end all their processes at SIGTERM; when
pytest is killed with SIGKILL, nobody else would tell them. So it imports nothing of gpuscale.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

VARIABLE_FAMILIES = (
    *("CUBLAS_", "CUDA_", "CUDNN_", "CXI_", "FI_", "GLOO_", "HIP_", "HSA_", "MIOPEN_", "MKL_"),
    *("MPICH_", "NCCL_", "NVIDIA_TF32_OVERRIDE", "OMP_", "PYTORCH_", "RCCL_", "ROCR_", "TORCH_"),
    *("TORCHINDUCTOR_", "UCX_"),
)
"""How the environment variables begin that tell ranks how to compute and to communicate."""

VARIABLES_OF_THE_JOB = frozenset(
    {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}
)
"""Those of them that tell what a job was given on one node, which is another in the next job."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


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


def signal_at_parent_death(number: signal.Signals) -> None:
    """Ask the kernel to send this process a signal when its parent dies (Linux; else a no-op)."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Ask the kernel that this process becomes the parent of descendants whose own has ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> set[int]:
    """The process ids of this process's children, their children and so on (Linux; else none)."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        # A process may end while it is looked at.
        with suppress(OSError):
            # Its name, in brackets, may hold anything.
            _, _, rest = path.read_text(errors="replace").rpartition(")")
            children.setdefault(int(rest.split()[1]), []).append(int(path.parent.name))
    found, left = set[int](), [os.getpid()]
    while left:
        left += children.get(left.pop(), [])
        found.update(left)
    return found


def _prctl(what: int, value: int) -> None:
    # Only ranks and what starts them need it; a comparison does not wait for its import.
    import ctypes

    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(what, value, 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies."""
    parent = os.getppid()
    signal_at_parent_death(signal.SIGKILL)
    if os.getppid() != parent:
        # The parent died between the two calls: its death signal went unsent.
        os.kill(os.getpid(), signal.SIGKILL)


def end_at_interrupt() -> None:
    """Let Ctrl-C end this process at once, also inside a collective that Python cannot leave.

    The fork server holds the signal back, and what it forks inherits that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def python_environment() -> dict[str, str]:
    """The variables of a Python that is to import gpuscale even where it is not installed."""
    folders = (os.environ.get("PYTHONPATH"), str(Path(__file__).resolve().parents[2]))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


if __name__ == "__main__":
    signal_at_parent_death(signal.SIGTERM)
    if os.getppid() == int(sys.argv[1]):
        os.execvp(sys.argv[2], sys.argv[2:])
