"""Find the CPUs that a process may use, those near a GPU, and those that a rank is bound to."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from gpuscale.base.errors import UsageError
from gpuscale.base.host import text_of

SITE, UNBOUND = "site", "none"
"""Values of `--cpu-bind` other than a map: bind as the scheduler does here, or not at all."""
_MAP = re.compile(
    r"map_cpu:(?:0x[0-9a-f]{1,4}|[0-9]{1,5})(?:,(?:0x[0-9a-f]{1,4}|[0-9]{1,5}))*"
    r"|mask_cpu:(?:0x)?[0-9a-f]{1,1024}(?:,(?:0x)?[0-9a-f]{1,1024})*",
    re.IGNORECASE,
)
_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*(\S+)", re.MULTILINE)


def is_map(binding: str) -> bool:
    """True if a binding lists the CPUs of each rank, in the form of srun's `--cpu-bind`."""
    return _MAP.fullmatch(binding) is not None and all(_cpus_of_ranks(binding))


def bound_cpus(binding: str, places: Iterable[int]) -> set[int]:
    """Return the CPUs to which a map binds a rank, by its places; empty if the binding is no map.

    A place is the number of a GPU, or the local rank on a CPU. As under srun, a map with too few
    entries begins again. Raise a UsageError if this process may not use one of the CPUs.
    """
    if not is_map(binding):
        return set()
    ranks = _cpus_of_ranks(binding)
    cpus = set[int]().union(*(ranks[place % len(ranks)] for place in places))
    allowed = allowed_cpus("self")
    if missing := sorted(cpus - cpus_in(allowed)):
        raise UsageError(
            f"--cpu-bind: CPU {missing[0]} is not among those of the job here ({allowed}); ask the "
            "scheduler for whole nodes, or mend the map"
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
    """Return the NUMA nodes of these CPUs; empty if unknown."""
    return tuple(sorted(n for n, own in _numa_nodes(root).items() if not own.isdisjoint(cpus)))


def gpu_numa_node(pci_address: str, root: Path = Path("/")) -> int | None:
    """Return the NUMA node of a GPU; None if unknown, or if the machine has only one."""
    # NVML writes the domain with more digits than the kernel.
    folder = root / "sys/bus/pci/devices" / pci_address[-12:].lower()
    numa_node = text_of(folder / "numa_node")
    return int(numa_node) if numa_node.isdecimal() else None


def cpus_near(
    places: Sequence[int | None], cpus: Iterable[int], count: int, root: Path = Path("/")
) -> set[int]:
    """Choose `count` CPUs: an equal share near each place, else those with the lowest numbers.

    `places` are the NUMA nodes of GPUs; None if unknown.
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
