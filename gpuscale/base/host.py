"""This host and its processes: CPU model, environment variables, process trees, signals.

`python host.py PARENT COMMAND …` replaces itself with COMMAND, which gets SIGTERM when process
PARENT dies. `srun` and `mpirun` end all their processes at SIGTERM, but would not notice that
pytest was killed with SIGKILL. This file is run by path, so it imports nothing from gpuscale.
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

CACHE_VARIABLES = frozenset(
    {"CUDA_CACHE_PATH", "PYTORCH_KERNEL_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "TORCH_HOME"}
    | {"TORCH_EXTENSIONS_DIR"}
)
"""Environment variables that name folders of caches; torch sets some by the user's login name."""

JOB_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})
"""Environment variables that list the devices that one job may use on one node."""

FAULT_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE)
"""Signals that indicate a fault in a process; SIGABRT and SIGTERM are not among them, since they
may merely result from the end of another process."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def cpu_model(root: Path = Path("/")) -> str | None:
    """Return the model name of the CPU, or else of the machine; None if unknown."""
    lines = text_of(root / "proc/cpuinfo").splitlines()
    for line in lines:
        key, _, value = line.partition(":")
        # x86 says "model name", POWER says "cpu".
        if key.strip() in ("model name", "cpu") and value.strip():
            return value.strip()
    # Linux names no Arm CPU, such as Grace.
    names = ("proc/device-tree/model", "sys/devices/soc0/machine", "sys/class/dmi/id/product_name")
    return next(filter(None, (text_of(root / name) for name in names)), None)


def text_of(path: Path) -> str:
    """Return the text of a file without blanks at its ends; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip(" \t\n\r\0")
    except OSError:
        return ""


def variables_of(process: int | str, root: Path = Path("/")) -> dict[str, str]:
    """Return the variables a process was started with; OSError if it has ended or is another's."""
    text = (root / f"proc/{process}/environ").read_bytes().decode(errors="surrogateescape")
    return dict(entry.partition("=")[::2] for entry in text.split("\0"))


def parent_of(process: int | str, root: Path = Path("/")) -> int:
    """Return the process ID of a process's parent; raise an OSError if the process has ended."""
    # The name, in parentheses, may contain anything.
    stat = (root / f"proc/{process}/stat").read_text(errors="replace")
    return int(stat.rpartition(")")[2].split()[1])


def signal_at_parent_death(number: signal.Signals) -> None:
    """Ask the kernel to signal this process when its parent dies; a no-op except on Linux."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Ask the kernel to make this process the parent of its orphaned descendants."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> set[int]:
    """Return the process IDs of all descendants of this process; empty except on Linux."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        # A process may end meanwhile.
        with suppress(OSError):
            children.setdefault(parent_of(place.name), []).append(int(place.name))
    found, left = set[int](), [os.getpid()]
    while left:
        left += children.get(left.pop(), [])
        found.update(left)
    return found


def living_descendants() -> set[int]:
    """Reap ended children of this process; return all descendants that are still running."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return descendants()


def processes_with(variable: str) -> set[int]:
    """Return the process IDs of other processes that were started with this `NAME=value`."""
    found = set[int]()
    for path in Path("/proc").glob("[0-9]*/environ"):
        # It may have ended, or belong to another user.
        with suppress(OSError):
            if variable.encode() in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return found - {os.getpid()}


def end_descendants(
    grace_s: float, *, variable: str | None = None, spared: int | None = None
) -> None:
    """End descendants and processes with `variable`, but not `spared`: SIGTERM, then SIGKILL."""

    def living() -> set[int]:
        named = processes_with(variable) if variable else set()
        return (living_descendants() | named) - {spared}

    def signal_all(processes: set[int], number: signal.Signals) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    deadline_s = time.monotonic() + grace_s
    signal_all(living(), signal.SIGTERM)
    while left := living():
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
    """Make Ctrl-C end this process at once, even in a collective that Python cannot interrupt.

    The signal is also unblocked: a block may be inherited from the process that forked this one.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def python_environment() -> dict[str, str]:
    """Return environment variables that let Python import gpuscale even if it is not installed."""
    folders = (os.environ.get("PYTHONPATH"), str(Path(__file__).resolve().parents[2]))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


if __name__ == "__main__":
    signal_at_parent_death(signal.SIGTERM)
    if os.getppid() == int(sys.argv[1]):
        os.execvp(sys.argv[2], sys.argv[2:])
