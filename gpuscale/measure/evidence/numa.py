"""Read on which NUMA nodes this machine's GPUs and the CPUs of a process are."""

from collections.abc import Iterable
from pathlib import Path

from gpuscale.base.host import text_of


def cpu_numa_nodes(cpus: Iterable[int], root: Path = Path("/")) -> tuple[int, ...]:
    """Return the NUMA nodes of these CPUs; empty if unknown."""
    folders = (root / f"sys/devices/system/cpu/cpu{cpu}" for cpu in cpus)
    names = {node.name for folder in folders for node in folder.glob("node[0-9]*")}
    return tuple(sorted(int(name.removeprefix("node")) for name in names))


def gpu_numa_node(pci_address: str, root: Path = Path("/")) -> int | None:
    """Return the NUMA node of a GPU; None if unknown, or if the machine has only one."""
    numa_node = text_of(root / "sys/bus/pci/devices" / pci_address / "numa_node")
    return int(numa_node) if numa_node.isdecimal() else None
