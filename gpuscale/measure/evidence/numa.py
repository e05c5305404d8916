"""Read on which NUMA nodes this machine's GPUs and the CPUs of a process are."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def cpu_numa_nodes(cpus: Iterable[int], root: Path = Path("/")) -> tuple[int, ...]:
    """Return the NUMA nodes of these CPUs; empty if unknown."""
    folders = (root / f"sys/devices/system/cpu/cpu{cpu}" for cpu in cpus)
    names = {node.name for folder in folders for node in folder.glob("node[0-9]*")}
    return tuple(sorted(int(name.removeprefix("node")) for name in names))


def gpu_numa_node(pci_address: str, root: Path = Path("/")) -> int | None:
    """Return the NUMA node of a GPU; None if unknown, or if the machine has only one."""
    with suppress(OSError, ValueError):
        device = root / "sys/bus/pci/devices" / pci_address
        numa_node = int((device / "numa_node").read_text(encoding="ascii"))
        return None if numa_node < 0 else numa_node
    return None
