"""Collect evidence about a node: settings, CPU load from other processes, and network.

Nothing in this folder imports torch or touches CUDA, because launch/keeper.py uses it and forks
ranks that do. Paths below `/proc` and `/sys` are relative to a `root`; tests set it to a file tree.
"""

import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuscale.base.host import allowed_cpus, cpus_in, text_of
from gpuscale.base.process_ends import descendants
from gpuscale.measure.evidence.network import NetworkMeter, log_variables, read_logs
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.measure.telemetry.sampler import DriverProcess
from gpuscale.records import HostLoad, NodeEvidence

SAMPLER_VARIABLE = "GPUSCALE_SAMPLER"
"""Environment variable with the process ID of the GPU sampler, which ci/overhead.py suspends."""
_BUSY_COLUMNS = (0, 1, 2, 7)
"""Columns of a CPU in /proc/stat: user, niced and system time, and time stolen by other virtual
machines. Interrupts are left out: most serve the run's own traffic."""
_ALL_COLUMNS = range(8)
_OWN_COLUMNS = slice(11, 15)
"""Columns of /proc/PID/stat after the process name: CPU time of the process and ended children."""
_FEWEST_OWN_CORES = 0.05
_SHORTEST_S = 0.1

_Reader = Callable[[Path], str]
_READ_BYTES = 16384
# No other kernel options are recorded, since they may contain secrets.
_KERNEL_OPTIONS = re.compile(
    r"(amd|intel)_(iommu|pstate)|iommu(\.passthrough|\.strict)?|swiotlb|pci|pcie_aspm|"
    r"mitigations|nopti|spectre_v2|nospectre_v2|nosmt|numa|numa_balancing|transparent_hugepage|"
    r"(default_)?hugepagesz|hugepages|isolcpus|nohz|nohz_full|rcu_nocbs|irqaffinity|preempt|"
    r"(intel_idle|processor)\.max_cstate|idle|clocksource|tsc"
)
_IMAGE_VARIABLES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")


class LoadMeter:
    """Measures the CPU time used by processes outside a family since the meter's creation.

    The family is one process (by default this one) and its descendants, including those that have
    ended. CPUs on which the family may not run are ignored. The load average would not do: it
    includes the run's own ranks, and work that ended minutes ago.
    """

    def __init__(self, family: int | None = None, root: Path = Path("/")) -> None:
        self._root, self._family = root, family or os.getpid()
        members = self._members()
        # A scheduler's daemon, as the head of a family, may run on CPUs that the job does not have.
        bound = members - {self._family} or members
        self._cpus = set[int]().union(*(cpus_in(allowed_cpus(each, root)) for each in bound))
        self._before = self._ticks(members)

    def load(
        self, gpu_processes: int | None = None, *, may_run_elsewhere: bool = False
    ) -> HostLoad:
        """Return the host's load since the meter was created, with `gpu_processes` copied into it.

        With `may_run_elsewhere`, the load is unknown if the family used almost no CPU time: a
        daemon outside it has probably started the workers, as with `srun` and `docker run`.
        """
        now = self._ticks(self._members())
        elapsed, busy, own = (after - then for after, then in zip(now, self._before, strict=True))
        cores, others = len(self._cpus) or os.cpu_count() or 1, None
        ticks_per_core = elapsed / cores
        fewest = _FEWEST_OWN_CORES * ticks_per_core if may_run_elsewhere else 0
        if ticks_per_core >= _SHORTEST_S * os.sysconf("SC_CLK_TCK") and own >= fewest:
            others = round(max(0, busy - own) / ticks_per_core, 3)
        return HostLoad(other_cores=others, cores=cores, gpu_processes=gpu_processes)

    def _members(self) -> set[int]:
        return {self._family, *descendants(self._family, self._root)}

    def _ticks(self, members: Collection[int]) -> tuple[int, int, int]:
        """Return numbers of CPU clock ticks: in total, while busy, and used by the `members`."""
        every = busy = own = 0
        for line in text_of(self._root / "proc/stat").splitlines():
            name, *counts = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in self._cpus:
                ticks = [int(count) for count in counts]
                every += sum(ticks[column] for column in _ALL_COLUMNS)
                busy += sum(ticks[column] for column in _BUSY_COLUMNS)
        for process in members:
            stat = text_of(self._root / f"proc/{process}/stat")
            own += sum(map(int, stat.rpartition(")")[2].split()[_OWN_COLUMNS]))
        return every, busy, own


class NodeWatch:
    """Samples the GPUs of this node and collects evidence about the node, for one run at a time."""

    def __init__(self, scratch: Path) -> None:
        """Fork a process that samples GPUs; `scratch` is a folder on this node for NCCL's logs."""
        self._scratch, self.driver = scratch, DriverProcess()

    @contextmanager
    def watched(
        self,
        directory: RunDirectory,
        host: str,
        addresses: Mapping[str, str | None],
        *,
        is_everywhere: bool,
        is_command: bool,
    ) -> Iterator[dict[str, str]]:
        """Watch a run: yield environment variables for its ranks and, on exit, write the evidence.

        `addresses` holds UUIDs of the GPUs to sample, each with its PCI address (None if unknown).
        `is_everywhere` is True if the variables yielded on one node reach the ranks on all nodes,
        and `is_command` is True if the run measures a user's command.
        """
        began_s = time.monotonic()
        logs, variables, gpu_processes = self._scratch, dict[str, str](), None
        if is_everywhere:
            logs = Path(tempfile.gettempdir()) / f"gpuscale-nccl-{directory.path.name}"
        # Sampling starts before the ranks, so that no rank counts among the GPUs' processes.
        if addresses:
            if not self.driver.is_usable:
                self.driver = DriverProcess()
            variables[SAMPLER_VARIABLE] = str(self.driver.number)
            gpu_processes = self.driver.start(addresses, directory.samples(host))
        # If each rank of a node is a task of its own, all tasks have the same parent.
        load, network = LoadMeter(os.getppid()), NetworkMeter()
        with suppress(OSError):
            logs.mkdir(mode=0o700, exist_ok=True)
        cost_s = time.monotonic() - began_s
        yield variables | log_variables(logs, os.environ)
        began_s = time.monotonic() - cost_s
        # If the launcher has ended, the folder of the run is gone; sampling must stop all the same.
        with suppress(OSError):
            settings, absent = read_settings()
            connections, problem = read_logs(logs, host)
            with suppress(OSError):
                logs.rmdir()
            evidence = NodeEvidence(
                host=host,
                load=load.load(gpu_processes, may_run_elsewhere=is_command),
                settings=settings,
                ports=network.read(),
                connections=connections,
                absent=absent if problem is None else {**absent, "nccl": problem},
                cost_s=round(time.monotonic() - began_s, 6),
            )
            directory.node_evidence(host).write(evidence)
        if addresses:
            self.driver.stop()


def read_settings(root: Path = Path("/")) -> tuple[dict[str, str], dict[str, str]]:
    """Return the node's settings by name, and reasons by name for those that cannot be read."""
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
    """Return a reader of `files` by `pattern`: `a`, or `a on 3, b on 1` if 1 of 4 files differs."""

    def read(root: Path) -> str:
        counts = Counter(filter(None, (_matched(path, pattern) for path in root.glob(files))))
        values = sorted(counts.items())
        return ", ".join(f"{v} on {n}" if len(values) > 1 else v for v, n in values)

    return read


def _matched(path: Path, pattern: str) -> str:
    """Return a pattern's first group, matched at a file's start; raise ValueError if no match."""
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
    # The kernel passes options after `--` to the init process.
    words = f"{_matched(root / 'proc/cmdline', r'(.*)')} ".partition(" -- ")[0].split()
    named = ((word, word.partition("=")[0].replace("-", "_")) for word in words)
    return " ".join(w for w, name in named if _KERNEL_OPTIONS.fullmatch(name)) or "none"


def _container_image(root: Path) -> str:
    """Return the Apptainer image, the Enroot container's name, `docker`, `podman` or `none`."""
    if image := next(filter(None, map(os.environ.get, _IMAGE_VARIABLES)), None):
        return image
    # Enroot containers have this file; only the mounted folder's path contains their name.
    if (root / ".lock").exists():
        name = _matched(root / "proc/self/mountinfo", r"(?:.*\n)?\S+ \S+ \S+ \S*?([^/\s]+) / ")
        return re.sub(r"^pyxis_\d+(\.\d+$|(?=_))", "pyxis", name)
    others = {"docker": ".dockerenv", "podman": "run/.containerenv"}
    return next((name for name, file in others.items() if (root / file).exists()), "none")


_CPUS = "sys/devices/system/cpu"
# Reports show names with spaces in place of underscores.
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
}
