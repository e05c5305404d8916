"""Types of devices (CUDA, ROCm, CPU), and this host's CPUs, NUMA nodes and processes."""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpuscale.base.errors import UsageError

SITE, UNBOUND = "site", "none"
"""Values of `--cpu-bind` other than a map: keep the site's binding of ranks, or bind no ranks."""
_MAP = re.compile(
    r"map_cpu:(?:0x[0-9a-f]{1,4}|[0-9]{1,5})(?:,(?:0x[0-9a-f]{1,4}|[0-9]{1,5}))*"
    r"|mask_cpu:(?:0x)?[0-9a-f]{1,1024}(?:,(?:0x)?[0-9a-f]{1,1024})*",
    re.IGNORECASE,
)
_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*(\S+)", re.MULTILINE)
JOB_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})
"""Environment variables that list the devices that one job may use on one node."""


class GpuKind(NamedTuple):
    """Names of a vendor's communication library, GPU query tool and GPU selection variable."""

    library: str
    tool: str
    variable: str


GPU_KINDS: Mapping[str, GpuKind] = {
    "cuda": GpuKind("NCCL", "nvidia-smi", "CUDA_VISIBLE_DEVICES"),
    "rocm": GpuKind("RCCL", "rocminfo", "HIP_VISIBLE_DEVICES"),
}
DEVICES = (*GPU_KINDS, "cpu")
UNRECORDED = "unrecorded"
"""Type of an unknown device, such as that of an imported figure."""
UNRECORDED_GPU = "gpu"
"""Type of a GPU whose vendor is unknown, such as that of an imported figure."""


def is_gpu(device: str) -> bool:
    """True for the device types `cuda` and `rocm`; False for all others, such as `cpu`."""
    return device in GPU_KINDS


def device_word(device: str) -> str:
    """Return the noun for a type of device: `GPU`, `CPU rank`, or `device` if unknown."""
    return {"cpu": "CPU rank", UNRECORDED: "device"}.get(device, "GPU")


def is_map(binding: str) -> bool:
    """True if `binding` is a valid `map_cpu:` or `mask_cpu:` list, as for srun's `--cpu-bind`."""
    return _MAP.fullmatch(binding) is not None and all(_cpus_of_ranks(binding))


def bound_cpus(binding: str, places: Iterable[int]) -> set[int]:
    """Return the CPUs that a `map_cpu:` or `mask_cpu:` list gives a rank; empty for other bindings.

    `places` are the rank's GPU numbers or, without GPUs, its local rank. As in srun, a list that
    is too short is repeated. Raise a UsageError if this process may not use one of the CPUs.
    """
    if not is_map(binding):
        return set()
    ranks = _cpus_of_ranks(binding)
    cpus = set[int]().union(*(ranks[place % len(ranks)] for place in places))
    allowed = allowed_cpus("self")
    if missing := sorted(cpus - cpus_in(allowed)):
        raise UsageError(
            f"--cpu-bind: CPU {missing[0]} is not one of the job's on this node ({allowed}); ask "
            "the scheduler for whole nodes, or correct the map"
        )
    return cpus


def allowed_cpus(process: int | str, root: Path = Path("/")) -> str:
    """Return the CPUs on which a process may run, such as `0-7,64-71`; empty if unknown."""
    found = _ALLOWED.search(text_of(root / f"proc/{process}/status"))
    return found[1] if found else ""


def cpus_in(text: str) -> set[int]:
    """Parse a list of CPUs as Linux writes it, such as `0-7,64-71`."""
    parts = (part.partition("-") for part in text.split(",") if part)
    return {cpu for first, _, last in parts for cpu in range(int(first), int(last or first) + 1)}


def cpu_numa_nodes(cpus: Collection[int], root: Path = Path("/")) -> tuple[int, ...]:
    """Return the numbers of the NUMA nodes that contain any of these CPUs; empty if unknown."""
    return tuple(sorted(n for n, own in _numa_nodes(root).items() if not own.isdisjoint(cpus)))


def gpu_numa_node(pci_address: str, root: Path = Path("/")) -> int | None:
    """Return the NUMA node of the GPU at a PCI address; None if Linux does not report one."""
    # NVML writes the PCI domain with more digits than the kernel does.
    numa_node = text_of(root / "sys/bus/pci/devices" / pci_address[-12:].lower() / "numa_node")
    return int(numa_node) if numa_node.isdecimal() else None


def cpus_near(
    places: Sequence[int | None], cpus: Iterable[int], count: int, root: Path = Path("/")
) -> set[int]:
    """Choose `count` of the `cpus`: an equal share per GPU, if possible on the GPU's NUMA node.

    `places` lists each GPU's NUMA node, None if unknown. CPUs with low numbers are preferred.
    """
    free, nodes, chosen = sorted(cpus), _numa_nodes(root), set[int]()
    for number, place in enumerate(places or (None,), start=1):
        near = set[int]() if place is None else nodes.get(place, set())
        free.sort(key=lambda cpu: (cpu not in near, cpu))
        share = count * number // max(1, len(places)) - len(chosen)
        chosen.update(free[:share])
        del free[:share]
    return chosen


def _numa_nodes(root: Path) -> Mapping[int, set[int]]:
    folders = (root / "sys/devices/system/node").glob("node[0-9]*")
    return {int(f.name.removeprefix("node")): cpus_in(text_of(f / "cpulist")) for f in folders}


def _cpus_of_ranks(binding: str) -> list[set[int]]:
    kind, _, values = binding.lower().partition(":")
    if kind == "map_cpu":
        return [{int(value, 16 if value.startswith("0x") else 10)} for value in values.split(",")]
    masks = [int(value, 16) for value in values.split(",")]
    return [{cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1} for mask in masks]


def cpu_model(root: Path = Path("/")) -> str | None:
    """Return the CPU's model name, or the machine's if Linux reports none; None if unknown."""
    for line in text_of(root / "proc/cpuinfo").splitlines():
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


def variables_of(process: int | str) -> dict[str, str]:
    """Return a process's initial environment variables; raise an OSError if they cannot be read."""
    text = Path(f"/proc/{process}/environ").read_bytes().decode(errors="surrogateescape")
    return dict(entry.partition("=")[::2] for entry in text.split("\0"))


def python_environment() -> dict[str, str]:
    """Return this process's environment with gpuscale's parent folder added to PYTHONPATH."""
    folders = (os.environ.get("PYTHONPATH"), str(Path(__file__).resolve().parents[2]))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
