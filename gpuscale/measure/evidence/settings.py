"""Settings of a node that bear on performance: `SETTINGS` has one entry for each."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID

_Reader = Callable[[Path], str | None]

_READ_BYTES = 4096
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
_NOTHING = "none"


def read_settings(root: Path = Path("/")) -> tuple[dict[str, str], dict[str, str]]:
    """Return the known settings, and the reason for each that could not be read, by name."""
    found: dict[str, str] = {}
    absent: dict[str, str] = {}
    for name, read in SETTINGS.items():
        try:
            value = read(root)
        except OSError as error:
            absent[name] = error.strerror or str(error)
        except ValueError as error:
            absent[name] = str(error)
        else:
            found |= {} if value is None else {name: value}
    return found, absent


def folded(values: Iterable[str]) -> str:
    """Return the common value, or `a on 3, b on 1` if values differ; empty without values."""
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{value} on {count}" for value, count in sorted(counts.items()))


def _in_files(files: str, pattern: str) -> _Reader:
    """Read what the pattern's group matches in all files; None if no file exists."""

    def read(root: Path) -> str | None:
        values = (_matched(path, pattern) for path in root.glob(files))
        return folded(filter(None, values)) or None

    return read


def _matched(path: Path, pattern: str) -> str | None:
    """Return what the pattern's group matches in a file; ValueError if the pattern does not."""
    with path.open("rb") as file:
        text = file.read(_READ_BYTES).decode(errors="replace")
    found = re.match(pattern, text, re.DOTALL)
    if found is None:
        raise ValueError(f"unexpected content of {path.name}: {text[:40]!r}")
    return found[1]


def _iommu(root: Path) -> str | None:
    groups = root / "sys/kernel/iommu_groups"
    if groups.is_dir() and not any(groups.iterdir()):
        return "off"
    kinds = {_matched(path, r"(\S+)") or "" for path in groups.glob("*/type")}
    return ", ".join(sorted(kinds)) or None


def _kernel_options(root: Path) -> str | None:
    line = _matched(root / "proc/cmdline", r"(.*)") or ""
    # What follows is for the init process.
    words, _, _ = f"{line} ".partition(" -- ")
    named = ((word, word.partition("=")[0].replace("-", "_")) for word in words.split())
    shown = (word for word, name in named if _KERNEL_OPTIONS.fullmatch(name))
    return " ".join(shown) or _NOTHING


def _container_image(root: Path) -> str:
    """Return the image that Apptainer names, or the container's name for Enroot."""
    for variable in _IMAGE_VARIABLES:
        if image := os.environ.get(variable):
            return image
    # Enroot leaves this file in its containers; only the mounted folder has the name.
    if (root / ".lock").exists():
        pattern = r"(?:.*\n)?\S+ \S+ \S+ \S*?([^/\s]+) / "
        name = _matched(root / "proc/self/mountinfo", pattern) or ""
        return re.sub(r"^pyxis_\d+(\.\d+$|(?=_))", "pyxis", name)
    others = {"docker": ".dockerenv", "podman": "run/.containerenv"}
    return next((name for name, file in others.items() if (root / file).exists()), _NOTHING)


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
