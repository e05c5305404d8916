"""Settings of a node that affect its speed: clocks, memory, kernel options and container."""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID

_Reader = Callable[[Path], str | None]

_READ_BYTES = 16384
# Any other option may hold a secret.
_KERNEL_OPTIONS = re.compile(
    r"(amd|intel)_(iommu|pstate)|iommu(\.passthrough|\.strict)?|swiotlb|pci|pcie_aspm|"
    r"mitigations|nopti|spectre_v2|nospectre_v2|nosmt|numa|numa_balancing|transparent_hugepage|"
    r"(default_)?hugepagesz|hugepages|isolcpus|nohz|nohz_full|rcu_nocbs|irqaffinity|preempt|"
    r"(intel_idle|processor)\.max_cstate|idle|clocksource|tsc"
)
_IMAGE_VARIABLES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
_SIF_MAGIC, _SIF_ID = slice(32, 41), slice(48, 64)
"""Positions of the format's name and of the image's own ID in an image of Apptainer."""


def read_settings(root: Path = Path("/")) -> tuple[dict[str, str], dict[str, str]]:
    """Return the known settings, and the reason for each that could not be read, by name."""
    found: dict[str, str] = {}
    absent: dict[str, str] = {}
    for name, read in SETTINGS.items():
        try:
            if value := read(root):
                found[name] = value
        except (OSError, ValueError) as error:
            absent[name] = getattr(error, "strerror", None) or str(error)
    return found, absent


def _in_files(files: str, pattern: str) -> _Reader:
    """Return a function that reads a value from these files: `a`, or `a on 3, b on 1`."""

    def read(root: Path) -> str:
        counts = Counter(filter(None, (_matched(path, pattern) for path in root.glob(files))))
        values = sorted(counts.items())
        return ", ".join(f"{v} on {n}" if len(values) > 1 else v for v, n in values)

    return read


def _matched(path: Path, pattern: str) -> str:
    """Return the match of the pattern's group in a file; ValueError if there is no match."""
    with path.open("rb") as file:
        text = file.read(_READ_BYTES).decode(errors="replace")
    if (found := re.match(pattern, text, re.DOTALL)) is None:
        raise ValueError(f"unexpected content of {path.name}: {text[:40]!r}")
    return found[1] or ""


def _iommu(root: Path) -> str:
    groups = root / "sys/kernel/iommu_groups"
    if groups.is_dir() and not any(groups.iterdir()):
        return "off"
    return ", ".join(sorted({_matched(path, r"(\S+)") for path in groups.glob("*/type")}))


def _kernel_options(root: Path) -> str:
    # What follows two dashes is for the init process.
    words = f"{_matched(root / 'proc/cmdline', r'(.*)')} ".partition(" -- ")[0].split()
    named = ((word, word.partition("=")[0].replace("-", "_")) for word in words)
    return " ".join(w for w, name in named if _KERNEL_OPTIONS.fullmatch(name)) or "none"


def _container_image(root: Path) -> str:
    """Return the image that Apptainer names, or the container's name for Enroot."""
    if image := next(filter(None, map(os.environ.get, _IMAGE_VARIABLES)), None):
        return image
    # Enroot leaves this file in its containers; only the mounted folder has the name.
    if (root / ".lock").exists():
        pattern = r"(?:.*\n)?\S+ \S+ \S+ \S*?([^/\s]+) / "
        name = _matched(root / "proc/self/mountinfo", pattern)
        return re.sub(r"^pyxis_\d+(\.\d+$|(?=_))", "pyxis", name)
    others = {"docker": ".dockerenv", "podman": "run/.containerenv"}
    return next((name for name, file in others.items() if (root / file).exists()), "none")


def _container_build(root: Path) -> str | None:
    """Return the image's ID or the time of its build: a digest would read all its gigabytes."""
    for image in filter(None, map(os.environ.get, _IMAGE_VARIABLES)):
        # Containers need not see the file that they were started from.
        with suppress(OSError), (root / image.lstrip("/")).open("rb") as file:
            header = file.read(_SIF_ID.stop)
            if header[_SIF_MAGIC] == b"SIF_MAGIC":
                return str(UUID(bytes=header[_SIF_ID]))
    built = r'.*"org\.label-schema\.build-date"\s*:\s*"([^"]+)"'
    return _in_files(".singularity.d/labels.json", built)(root) or os.environ.get("NVIDIA_BUILD_ID")


_CPUS = "sys/devices/system/cpu"
# A name is shown with spaces for underscores.
SETTINGS: Mapping[str, _Reader] = {
    "governor": _in_files(f"{_CPUS}/cpufreq/policy*/scaling_governor", r"(\S+)"),
    "frequency_boost": _in_files(f"{_CPUS}/cpufreq/boost", r"(\d+)"),
    "SMT": _in_files(f"{_CPUS}/smt/control", r"(\S+)"),
    "microcode": _in_files("proc/cpuinfo", r"(?:.*?\nmicrocode\s*: (\S+))?"),
    "kernel_options": _kernel_options,
    "transparent_hugepages": _in_files(
        "sys/kernel/mm/transparent_hugepage/enabled", r".*\[(\w+)\]"
    ),
    "NUMA_balancing": _in_files("proc/sys/kernel/numa_balancing", r"(\d+)"),
    "IOMMU": _iommu,
    "container_image": _container_image,
    "container_build": _container_build,
}
