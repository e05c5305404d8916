"""Trees of files below `/sys` and `/proc`, as the kernel and HPE's driver lay them out."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuscale.records.gpu_and_port_counters import PORT_COUNTERS, PortKind


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Drop root's rights for a while, since root ignores permissions."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(was)


def write(root: Path, *files: tuple[str, object]) -> None:
    for name, text in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def counter_files(kind: PortKind, folder: str) -> dict[str, str]:
    """The file of each counter of a port, by the counter's name."""
    found = (counter for counter in PORT_COUNTERS if kind == counter.kind)
    return {c.name: "/".join(filter(None, (folder, c.folder, c.name))) for c in found}


def pci_device(root: Path, link: str, address: str, *, width: int = 16) -> None:
    """Write a PCIe device, to which `link` points."""
    place = f"sys/devices/pci0000:00/{address}"
    write(
        root,
        (f"{place}/uevent", "DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:1021"),
        (f"{place}/numa_node", 1),
        (f"{place}/current_link_speed", "32.0 GT/s PCIe"),
        (f"{place}/current_link_width", width),
    )
    (root / link).parent.mkdir(parents=True, exist_ok=True)
    (root / link).symlink_to(root / place)


def infiniband(
    root: Path,
    adapter: str = "mlx5_0",
    *,
    address: str = "0000:c1:00.0",
    link_layer: str = "InfiniBand",
    **counters: object,
) -> str:
    """Write a port of an adapter, with all counters 0 except those given; return its folder."""
    folder = f"sys/class/infiniband/{adapter}/ports/1"
    pci_device(root, f"sys/class/infiniband/{adapter}/device", address)
    write(root, (f"{folder}/state", "4: ACTIVE"), (f"{folder}/rate", "400 Gb/sec (4X NDR)"))
    write(root, (f"{folder}/link_layer", link_layer))
    count(root, "infiniband", folder, **counters)
    return folder


def slingshot(root: Path, **counters: object) -> str:
    """Write the port `cxi0`, with all counters 0 except those given; return its folder."""
    folder = "sys/class/cxi/cxi0"
    pci_device(root, f"{folder}/device", "0000:d5:00.0")
    properties = f"{folder}/device/properties"
    write(root, (f"{properties}/speed", 200000), (f"{properties}/link", 1))
    write(root, (f"{properties}/current_esm_link_speed", "25.0 GT/s"))
    times = {name: f"{value}@1795426392.000000731" for name, value in counters.items()}
    count(root, "slingshot", folder, **times)
    return folder


def count(root: Path, kind: PortKind, folder: str, **counters: object) -> None:
    """Set all counters of a port; those not given are 0."""
    files = counter_files(kind, folder)
    write(root, *((file, counters.get(name, 0)) for name, file in files.items()))
