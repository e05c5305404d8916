"""Collect the evidence of a node: its settings, the load from other processes, and its network.

Nothing in this folder imports torch or touches CUDA, since the keeper forks ranks that do. Paths
below `/proc` and `/sys` are relative to a `root`, for which tests use a tree of files.
"""

import os
import re
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import json

from gpuscale.base.process_ends import die_with_parent
from gpuscale.measure.evidence.host_load import LoadMeter
from gpuscale.measure.evidence.network import NetworkMeter, log_variables, read_logs
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.measure.telemetry.sampler import serve
from gpuscale.records import NodeEvidence

_PATIENCE_S = 10.0
"""Seconds to wait for the driver, which takes seconds to wake GPUs without persistence mode."""
SAMPLER_VARIABLE = "GPUSCALE_SAMPLER"
"""Environment variable with the process ID of the GPU sampler, which ci/overhead.py suspends."""
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


class DriverProcess:
    """A process that samples GPUs, kept apart because ranks must not inherit an open driver.

    The process is forked once, before its parent imports torch: a later fork for each run would
    take tens of milliseconds, because of the memory that torch maps.
    """

    def __init__(self) -> None:
        self._pipe, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pipe.settimeout(_PATIENCE_S)
        self.is_usable = True
        """False once the driver has hung or failed."""
        # The child must not write signals into the pipe that wakes the keeper.
        blocked = signal.valid_signals() - {signal.SIGALRM}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        self.number = os.fork()
        if not self.number:
            with suppress(BaseException):
                die_with_parent()
                self._pipe.close()
                serve(theirs)
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def start(self, addresses: Mapping[str, str | None], output: Path) -> int | None:
        """Start sampling GPUs into a file; return how many processes use them (None if unknown)."""
        answer = self._answer(json.encode({"addresses": addresses, "output": str(output)}))
        return int(answer) if answer.isdigit() else None

    def stop(self) -> None:
        """Take a last sample and stop sampling."""
        self._answer(b"stop")

    def _answer(self, message: bytes) -> bytes:
        with suppress(OSError):
            self._pipe.send(message)
            if answer := self._pipe.recv(100):
                return answer
        # A late answer must not be mistaken for the answer to the next message.
        self.is_usable = False
        self._pipe.close()
        with suppress(ProcessLookupError):
            os.kill(self.number, signal.SIGKILL)
        return b""


class NodeWatch:
    """Samples the GPUs of this node and collects evidence about the node, for one run at a time.

    `scratch` is a folder on this node for NCCL's logs.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._driver: DriverProcess | None = None

    def prepare(self) -> None:
        """Fork the process that reads GPUs, before this process imports torch."""
        self._driver = DriverProcess()

    @property
    def driver_number(self) -> int | None:
        """The ID of the process that reads GPUs; None if there is none."""
        return self._driver.number if self._driver else None

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
        """Watch a run: provide environment variables for its ranks, and at its end write evidence.

        `addresses` maps the UUIDs of the GPUs to sample to their PCI addresses. `is_everywhere` is
        True if ranks on all nodes get the variables provided on one node, and `is_command` if the
        run measures a user's command.
        """
        began_s = time.monotonic()
        logs, variables, gpu_processes = self._scratch, dict[str, str](), None
        if is_everywhere:
            logs = Path(tempfile.gettempdir()) / f"gpuscale-nccl-{directory.path.name}"
        # Sampling starts before the ranks, so that no rank counts among the GPUs' processes.
        if addresses:
            if self._driver is None or not self._driver.is_usable:
                self._driver = DriverProcess()
            variables[SAMPLER_VARIABLE] = str(self._driver.number)
            gpu_processes = self._driver.start(addresses, directory.samples(host))
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
            own_name = socket.gethostname()
            connections, problem = read_logs(logs, own_name)
            with suppress(OSError):
                logs.rmdir()
            evidence = NodeEvidence(
                host=own_name,
                load=load.load(gpu_processes, may_run_elsewhere=is_command),
                settings=settings,
                ports=network.read(),
                connections=connections,
                absent=absent if problem is None else {**absent, "nccl": problem},
                cost_s=round(time.monotonic() - began_s, 6),
            )
            directory.node_evidence(host).write(evidence)
        if addresses and self._driver is not None:
            self._driver.stop()


def read_settings(root: Path = Path("/")) -> tuple[dict[str, str], dict[str, str]]:
    """Return the node's settings, and the reason for each that cannot be read, keyed by name."""
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
    """Return a function that reads the values in files: `a`, or `a on 3, b on 1` if they differ."""

    def read(root: Path) -> str:
        counts = Counter(filter(None, (_matched(path, pattern) for path in root.glob(files))))
        values = sorted(counts.items())
        return ", ".join(f"{v} on {n}" if len(values) > 1 else v for v, n in values)

    return read


def _matched(path: Path, pattern: str) -> str:
    """Return the pattern's group, matched at a file's start; raise ValueError if no match."""
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
    """Return Apptainer's image, Enroot's container name, `docker`, `podman` or `none`."""
    if image := next(filter(None, map(os.environ.get, _IMAGE_VARIABLES)), None):
        return image
    # Enroot containers have this file; only the mounted folder's path contains their name.
    if (root / ".lock").exists():
        pattern = r"(?:.*\n)?\S+ \S+ \S+ \S*?([^/\s]+) / "
        name = _matched(root / "proc/self/mountinfo", pattern)
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
