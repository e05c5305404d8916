"""Hosts on this machine, each with its own name, address and processes, and clusters of them.

A host is a set of Linux namespaces (network, host name, mounts, processes), joined to the
others by a virtual switch. The file system is shared, as a cluster's is, except where a test
mounts something over it on one host. Killing a host ends all of its processes at once; all
hosts end with the pytest that made them, however that ends.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from command_line import ran
from measuring import heed_interrupts

LIMIT_S = 600.0
"""For whatever a test waits for: longer than it takes on the busiest machine."""
LOGIN_ADDRESS = "10.77.0.254"
# The daemons of Debian lie outside the PATH of ordinary users.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
_NEW_NAMESPACES = ("unshare", "--net", "--uts", "--mount", "--fork")
_PROGRAMS = ("ip", "tc", "unshare", "nsenter", "setpriv", "mount")
_OF_A_JOB = ("SLURM", "SBATCH", "SALLOC", "SRUN", "OMPI", "PMI", "SGE", "GPUSCALE")
# What a pytest that is killed started is killed as well.
_TIED = ("setpriv", "--pdeathsig", "KILL", "--")

Answer = subprocess.CompletedProcess[str]
Started = subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host, for as long as its first process lives."""

    name: str
    address: str
    pid: int
    """Process id, on this machine, of the process that keeps the namespaces."""
    network: Path
    """Name of its network namespace in /proc, which no other one gets before the stack ends."""

    def start(
        self, *command: str, folder: Path, log: Path, environment: Mapping[str, str]
    ) -> Started:
        """Start a command on this host; both of its streams go to `log`."""
        place = ["nsenter", "--target", str(self.pid), "--all", f"--wd={folder}", "--"]
        with log.open("wb") as output:
            return subprocess.Popen(
                # Tied twice: what enters a host may leave a child there to run the command.
                [*_TIED, *place, *_TIED, *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=heed_interrupts,
            )

    def run(self, *command: str, folder: Path, environment: Mapping[str, str]) -> Answer:
        """Run a command on this host; its output holds both streams."""
        with tempfile.TemporaryDirectory() as kept:
            log = Path(kept) / "log"
            process = self.start(*command, folder=folder, log=log, environment=environment)
            try:
                code = process.wait(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                pytest.fail(f"{command} does not end on {self.name}: {log.read_text()}")
            return subprocess.CompletedProcess(command, code, log.read_text())

    def kill(self) -> None:
        """End all processes of this host at once, as a power failure does."""
        # They end with the first one only if the host numbers its processes.
        while here := _processes_in_namespace("net", self.network):
            for pid in here:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def limit_link(self, rate: str, queue: str = "burst 32kbit latency 400ms") -> None:
        """Limit what this host sends to `rate`, such as `100mbit`; a short queue drops packets."""
        limit = f"root tbf rate {rate} {queue}"
        _on(self, "tc", "qdisc", "replace", "dev", "eth0", *limit.split())

    def lift_limit(self) -> None:
        """Send as fast as at first."""
        _on(self, "tc", "qdisc", "del", "dev", "eth0", "root")

    def limit_uplink(self, rate: str, *, beyond: Sequence["Host"], adapter: str) -> None:
        """Send to these hosts as behind a switch with a slow uplink, and to others by `adapter`."""
        root = "dev eth0 root handle 1: htb default 1"
        _on(self, "tc", "qdisc", "add", *root.split())
        for number, limit in (("1:1", adapter), ("1:2", rate)):
            of_class = f"dev eth0 parent 1: classid {number} htb rate {limit} burst 32k cburst 32k"
            _on(self, "tc", "class", "add", *of_class.split())
        for host in beyond:
            match = f"dev eth0 parent 1: protocol ip u32 match ip dst {host.address} flowid 1:2"
            _on(self, "tc", "filter", "add", *match.split())

    def bind(self, cpus: set[int]) -> None:
        """Run the processes of this host, and those that they start, on these CPUs alone."""
        for pid in _processes_in_namespace("pid", Path(f"/proc/{self.pid}/ns/pid").readlink()):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(pid, cpus)

    def mount_over(self, place: Path, source: Path) -> None:
        """On this host only, show another file or folder in place of one."""
        _on(self, "mount", "--bind", str(source), str(place))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A login host, on which commands run, and nodes; a scheduler's daemons run on them."""

    directory: Path
    login: Host
    nodes: Sequence[Host]
    environment: Mapping[str, str] = field(repr=False)

    def start(
        self, *command: str, folder: Path, log: Path, environment: Mapping[str, str] | None = None
    ) -> Started:
        """Start a command on the login host; both of its streams go to `log`."""
        variables = {**self.environment, **(environment or {})}
        return self.login.start(*command, folder=folder, log=log, environment=variables)

    def run(
        self,
        *command: str,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        on: Host | None = None,
    ) -> Answer:
        """Run a command on a host, the login host by default; its output holds both streams."""
        variables = {**self.environment, **(environment or {})}
        host = on or self.login
        return host.run(*command, folder=folder or self.directory, environment=variables)

    def daemon(self, stack: ExitStack, host: Host, *command: str) -> None:
        """Start a daemon, which stays in the foreground and ends with its host."""
        log = self.directory / f"{Path(command[0]).name}-{host.name}.out"
        process = host.start(*command, folder=self.directory, log=log, environment=self.environment)
        stack.callback(process.wait)
        stack.callback(process.kill)

    def wait_until_ready(self, condition: Callable[[], bool]) -> None:
        """Wait for the daemons; fail with what they printed."""
        if not within_limit(condition, 120):
            logs = sorted(self.directory.glob("*.out"))
            said = "\n".join(f"{log.name}: {log.read_text(errors='replace')}" for log in logs)
            pytest.fail(f"the cluster does not become ready:\n{said}")


@contextmanager
def cluster_of(
    names: Sequence[str], *, programs: Sequence[str], packages: str, variables: Mapping[str, str]
) -> Iterator[tuple[Cluster, ExitStack]]:
    """Provide a cluster, and a stack whose contents end before its hosts do.

    Without `programs`, which are those of `packages`, a test is skipped. In the scheduler's
    `variables`, `{directory}` stands for its folder.
    """
    skip_without_hosts(programs, packages)
    with ExitStack() as stack:
        # A short path: the sockets below it may have at most 108 characters.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-")))
        directory.chmod(0o755)  # MUNGE insists that everyone can reach its socket
        login, *nodes = start_hosts(stack, directory, names)
        told = {name: text.format(directory=directory) for name, text in variables.items()}
        environment = {**outside_environment(), **told}
        cluster = Cluster(directory=directory, login=login, nodes=nodes, environment=environment)
        yield cluster, stack


def outside_environment() -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_OF_A_JOB)}
    return {**kept, "PATH": SEARCH_PATH}


def skip_without_hosts(programs: Sequence[str], packages: str) -> None:
    """Skip a test where hosts cannot be made or programs are missing; fail it in CI (.ci/run)."""
    reason = _reason_against((*programs, *_PROGRAMS), packages)
    if reason is not None:
        skip_unless_required(reason)


def skip_unless_required(reason: str) -> None:
    """Skip a test of a scheduler, or fail it where none may be skipped."""
    if os.environ.get("TESTS_REQUIRE_SCHEDULERS"):
        pytest.fail(reason)
    pytest.skip(reason)


def _reason_against(programs: Sequence[str], packages: str) -> str | None:
    missing = [name for name in programs if shutil.which(name, path=SEARCH_PATH) is None]
    if missing:
        return f"{missing[0]} is missing (Debian: {packages} iproute2)"
    if os.geteuid() != 0:
        return "needs root: hosts are made of network namespaces"
    making = ("ip", "link", "add", "gpuscale0", "type", "bridge")
    tried = ran(*_NEW_NAMESPACES, *making, env=outside_environment())
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


def start_hosts(
    stack: ExitStack, directory: Path, names: Sequence[str], *, own_processes: bool = True
) -> list[Host]:
    """Start a login host and further hosts, joined by a switch; all end with the stack.

    With `own_processes` each host numbers its processes, and they all end with its first one;
    without, every host sees all processes of this machine.
    """
    login = _host(stack, "login", LOGIN_ADDRESS, within=None, own_processes=own_processes)
    addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, start=1)}
    known = {"localhost": "127.0.0.1", "login": LOGIN_ADDRESS, **addresses}
    hosts_file = directory / "hosts"
    hosts_file.write_text("".join(f"{address} {name}\n" for name, address in known.items()))
    login.mount_over(Path("/etc/hosts"), hosts_file)
    _on(login, "ip", "link", "add", "switch", "type", "bridge")
    _on(login, "ip", "address", "add", f"{LOGIN_ADDRESS}/24", "dev", "switch")
    _on(login, "ip", "link", "set", "switch", "up")
    hosts = []
    for name, address in addresses.items():
        host = _host(stack, name, address, within=login, own_processes=own_processes)
        hosts.append(host)
        port = f"to-{name}"
        _on(login, "ip", "link", "add", port, "type", "veth", "peer", "name", f"at-{name}")
        _on(login, "ip", "link", "set", port, "master", "switch", "up")
        # Not from inside the login host, where the other's process has no number.
        move = ["ip", "link", "set", f"at-{name}", "netns", str(host.pid)]
        subprocess.run(["nsenter", "--target", str(login.pid), "--net", *move], check=True)
        _on(host, "ip", "link", "set", f"at-{name}", "name", "eth0")
        _on(host, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        _on(host, "ip", "link", "set", "eth0", "up")
    for host in (login, *hosts):
        # All of them before the first is waited for: each takes the system a second or two.
        stack.callback(host.kill)
    return [login, *hosts]


def ended(answer: Answer, exit_code: int = 0) -> Answer:
    assert answer.returncode == exit_code, answer.stdout
    return answer


def processes_in(folder: Path) -> list[str]:
    """Return the command lines of processes, on all hosts, that run in a folder or name it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if (entry / "cwd").readlink().is_relative_to(folder) or str(folder) in command:
                found.append(command)
    return found


def _processes_in_namespace(kind: str, name: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        # The namespace of a process that has ended cannot be read.
        with contextlib.suppress(OSError):
            if (entry / "ns" / kind).readlink() == name:
                found.append(int(entry.name))
    return found


def within_limit(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Wait for a condition; return True if it became true in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _host(
    stack: ExitStack, name: str, address: str, *, within: Host | None, own_processes: bool
) -> Host:
    """Start a host: a process that keeps its namespaces until the stack or this process ends."""
    new = ("--pid", "--mount-proc") if own_processes else ()
    keeper = [*_NEW_NAMESPACES, *new, "--kill-child=SIGKILL", "sleep", "infinity"]
    # Of the login host the mounts (its table of hosts) are shared, not its processes, or
    # this machine could not number them.
    entering = ["nsenter", "--target", str(within.pid), "--mount", "--"] if within else []
    process = subprocess.Popen([*_TIED, *entering, *keeper], stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    within_limit(lambda: bool(children.read_text().strip()))
    pid = int(children.read_text().split()[0])
    network = Path(f"/proc/{pid}/ns/net")
    # Or a kill would be of everything outside.
    assert within_limit(lambda: network.readlink() != Path("/proc/self/ns/net").readlink())
    stack.enter_context(network.open("rb"))
    host = Host(name=name, address=address, pid=pid, network=network.readlink())
    stack.callback(host.kill)
    _on(host, "hostname", name)
    _on(host, "ip", "link", "set", "lo", "up")
    return host


def _on(host: Host, *command: str) -> None:
    ended(host.run(*command, folder=Path("/"), environment=outside_environment()))
