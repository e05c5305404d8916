"""This host and its processes: CPU model, environment variables, process trees, signals.

`python host.py PARENT COMMAND …` becomes a command that gets SIGTERM when that parent dies. `srun`
and `mpirun` end all their processes at SIGTERM, and would not notice that pytest was killed with
SIGKILL. Since it runs by its path, this file imports nothing of gpuscale.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

VARIABLE_PREFIXES = (
    *("CUBLAS_", "CUDA_", "CUDNN_", "CXI_", "FI_", "GLOO_", "HIP_", "HSA_", "MIOPEN_", "MKL_"),
    *("MPICH_", "NCCL_", "NVIDIA_TF32_OVERRIDE", "OMP_", "PYTORCH_", "RCCL_", "ROCR_", "TORCH_"),
    *("TORCHINDUCTOR_", "UCX_"),
)
"""Prefixes of the environment variables that affect how ranks compute and communicate."""

JOB_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})
"""Variables among these that hold the devices of one job on one node."""

FAULT_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE)
"""Signals that never follow from the end of another process, as SIGABRT and SIGTERM may."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def cpu_model() -> str | None:
    """The model of the CPU; None if unknown."""
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
    """Ask the kernel to make this process the parent of descendants whose parent has ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> set[int]:
    """The process ids of this process's children, their children and so on (Linux; else none)."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        # A process may end meanwhile.
        with suppress(OSError):
            # The name, in parentheses, may contain anything.
            _, _, rest = path.read_text(errors="replace").rpartition(")")
            children.setdefault(int(rest.split()[1]), []).append(int(path.parent.name))
    found, left = set[int](), [os.getpid()]
    while left:
        left += children.get(left.pop(), [])
        found.update(left)
    return found


def living_descendants() -> set[int]:
    """The descendants of this process that still run; those that have ended are reaped."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return descendants()


def end_descendants(grace_s: float) -> None:
    """End all descendants of this process, which adopts orphans: by SIGTERM, then by SIGKILL."""

    def signal_all(processes: set[int], number: signal.Signals) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    deadline_s = time.monotonic() + grace_s
    signal_all(living_descendants(), signal.SIGTERM)
    while left := living_descendants():
        if time.monotonic() > deadline_s:
            signal_all(left, signal.SIGKILL)
        time.sleep(0.02)


def _prctl(what: int, value: int) -> None:
    # Imported here, since a comparison does not need it.
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
    """Let Ctrl-C end this process at once, even inside a collective that Python cannot leave.

    The process that forked this one may block the signal, which is inherited.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def python_environment() -> dict[str, str]:
    """The environment for a Python that must import gpuscale even if it is not installed."""
    folders = (os.environ.get("PYTHONPATH"), str(Path(__file__).resolve().parents[2]))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


if __name__ == "__main__":
    signal_at_parent_death(signal.SIGTERM)
    if os.getppid() == int(sys.argv[1]):
        os.execvp(sys.argv[2], sys.argv[2:])
