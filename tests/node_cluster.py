"""A Slurm of several hosts on this machine: each node has its own name, address and processes.

A node is a set of Linux namespaces (network, host name, mounts, processes), joined to the
others by a virtual switch. The file system is shared, as a cluster's is, except where a test
mounts something over it on one node. Killing a node ends all of its processes at once.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from slurm_daemons import (
    PROGRAMS,
    SEARCH_PATH,
    answers,
    configure,
    munged_command,
    within_limit,
)

COMMAND_LIMIT_S = 240.0
LOGIN_ADDRESS = "10.77.0.254"
_GPUS = 2
_NEW_NAMESPACES = ("unshare", "--net", "--uts", "--mount", "--fork")
_PROGRAMS = (
    *(*PROGRAMS, "salloc", "scontrol"),
    *("ip", "tc", "unshare", "nsenter", "setpriv", "mount"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A host of the cluster, for as long as its first process lives."""

    name: str
    address: str
    pid: int
    """Of the process that keeps its namespaces, as this machine numbers it."""

    def enter(self, *command: str, folder: Path | None = None) -> list[str]:
        """The command line that runs a command on this host."""
        place = Path.cwd() if folder is None else folder
        return ["nsenter", "--target", str(self.pid), "--all", f"--wd={place}", "--", *command]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCluster:
    """A running cluster: a login host with the controller, and its nodes."""

    directory: Path
    login: Node
    nodes: Sequence[Node]
    environment: Mapping[str, str] = field(repr=False)

    def popen(
        self, *command: str, folder: Path, log: Path, environment: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a command on the login host; what it prints goes to `log`."""
        with log.open("wb") as output:
            return subprocess.Popen(
                self.login.enter(*command, folder=folder),
                env={**self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def run(
        self,
        *command: str,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        on: Node | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command on a host, the login host by default; what it printed, both streams."""
        return run_on(
            on or self.login,
            *command,
            folder=folder or self.directory,
            environment={**self.environment, **(environment or {})},
        )


def run_on(
    node: Node, *command: str, folder: Path, environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run a command on a host; what it printed, both streams."""
    return subprocess.run(
        node.enter(*command, folder=folder),
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )


def reason_against() -> str | None:
    """Why such a cluster cannot be had here; None where it can."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=SEARCH_PATH) is None]
    if missing:
        return f"needs Slurm, MUNGE and iproute2; missing: {missing[0]}"
    return reason_against_hosts()


def reason_against_hosts() -> str | None:
    """Why hosts of their own cannot be made of namespaces here; None where they can."""
    if os.geteuid() != 0:
        return "needs root: hosts are made of network namespaces"
    tried = subprocess.run(
        [*_NEW_NAMESPACES, "ip", "link", "add", "gpuscale0", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


def start_cluster(stack: ExitStack, *, nodes: int, cpus: int = 2) -> NodeCluster:
    """A cluster whose daemons and hosts end with the stack."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nodes-")))
    login, *hosts = start_hosts(stack, directory, [f"n{number + 1}" for number in range(nodes)])
    names = [host.name for host in hosts]
    environment = configure(
        directory,
        controller=f"login({login.address})",
        lines=[
            *(
                f"NodeName={host.name} NodeAddr={host.address} CPUs={cpus} Gres=gpu:{_GPUS}"
                for host in hosts
            ),
            f"PartitionName=main Nodes={','.join(names)} MaxTime=24:00:00 Default=YES State=UP",
        ],
        nodes=names,
        gpus=_GPUS,
    )
    cluster = NodeCluster(directory=directory, login=login, nodes=hosts, environment=environment)
    _start_daemons(cluster, stack)
    return cluster


def _start_daemons(cluster: NodeCluster, stack: ExitStack) -> None:
    directory = cluster.directory
    munged = _daemon(cluster, stack, cluster.login, *munged_command(directory))
    if not answers(directory, lambda: munged.poll() is not None):
        pytest.skip(f"munged does not start: {(directory / 'login-munged.out').read_text()}")
    _daemon(cluster, stack, cluster.login, "slurmctld", "-D")
    for node in cluster.nodes:
        _daemon(cluster, stack, node, "slurmd", "-D", "-N", node.name)
    if not within_limit(lambda: _is_idle(cluster)):
        pytest.fail(f"Slurm does not become ready: {cluster.run('sinfo', '--long', '-N').stdout}")


def start_hosts(
    stack: ExitStack, directory: Path, names: Sequence[str], *, own_processes: bool = True
) -> list[Node]:
    """A login host and further ones, joined by a switch, that end with the stack.

    With `own_processes` each host numbers its processes, and they all end with its first one;
    without, every host sees all processes of this machine.
    """
    login = _host(stack, "login", LOGIN_ADDRESS, within=None, own_processes=own_processes)
    addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, start=1)}
    known = {"localhost": "127.0.0.1", "login": LOGIN_ADDRESS, **addresses}
    hosts_file = directory / "hosts"
    hosts_file.write_text("".join(f"{address} {name}\n" for name, address in known.items()))
    _on(login, "mount", "--bind", str(hosts_file), "/etc/hosts")
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
        stack.callback(kill_host, host)
    return [login, *hosts]


def limit_link(node: Node, rate: str) -> None:
    """Let a host send no faster than `rate` (tc's words: `100mbit`); `none` lifts the limit."""
    if rate == "none":
        _on(node, "tc", "qdisc", "del", "dev", "eth0", "root")
    else:
        limit = f"root tbf rate {rate} burst 32kbit latency 400ms"
        _on(node, "tc", "qdisc", "replace", "dev", "eth0", *limit.split())


def mount_over(node: Node, place: Path, source: Path | None = None) -> None:
    """Let a host see another file in a place, or an empty folder, of which the others know nothing.

    Args:
        node: Which host.
        place: The file, or the folder, to hide.
        source: The file to show there; None hides a folder.
    """
    if source is None:
        _on(node, "mount", "-t", "tmpfs", "none", str(place))
    else:
        _on(node, "mount", "--bind", str(source), str(place))


def processes_in(folder: Path) -> list[str]:
    """Command lines, on all hosts, of processes that work in a folder or were told of it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if (entry / "cwd").readlink().is_relative_to(folder) or str(folder) in command:
                found.append(command)
    return found


def _host(
    stack: ExitStack, name: str, address: str, *, within: Node | None, own_processes: bool
) -> Node:
    """The namespaces of a host, kept by a process that ends with the stack or with this one."""
    new = ("--pid", "--mount-proc") if own_processes else ()
    keeper = [*_NEW_NAMESPACES, *new, "--kill-child=SIGKILL", "sleep", "infinity"]
    # Of the login host the mounts (its table of hosts) are shared, not its processes, or
    # this machine could not number them.
    entering = ["nsenter", "--target", str(within.pid), "--mount", "--"] if within else []
    # A pytest that is killed takes its hosts along.
    tied = ["setpriv", "--pdeathsig", "KILL", "--"]
    process = subprocess.Popen([*tied, *entering, *keeper], stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    within_limit(lambda: bool(children.read_text().strip()))
    node = Node(name=name, address=address, pid=int(children.read_text().split()[0]))
    stack.callback(kill_host, node)
    own = Path(f"/proc/{node.pid}/ns/uts")
    within_limit(lambda: own.readlink() != Path("/proc/self/ns/uts").readlink())
    _on(node, "hostname", name)
    _on(node, "ip", "link", "set", "lo", "up")
    return node


def _on(node: Node, *command: str) -> None:
    path = {**os.environ, "PATH": SEARCH_PATH}
    subprocess.run(node.enter(*command, folder=Path("/")), check=True, env=path)


def _daemon(
    cluster: NodeCluster, stack: ExitStack, node: Node, *command: str
) -> "subprocess.Popen[bytes]":
    name = f"{node.name}-{command[0]}.out"
    with (cluster.directory / name).open("wb") as output:
        process = subprocess.Popen(
            node.enter(*command, folder=cluster.directory),
            env=dict(cluster.environment),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    # Of the command that entered the host; the daemon ends with the host's first process.
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def kill_host(node: Node) -> None:
    """End all processes of a host at once, as a power failure does."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(node.pid, signal.SIGKILL)


def kill_daemon(node: Node) -> None:
    """End a host's slurmd alone, as a crash of it does; what it started goes on."""
    wanted = f"slurmd\0-D\0-N\0{node.name}\0".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes().endswith(wanted):
                os.kill(int(process.name), signal.SIGKILL)


def _is_idle(cluster: NodeCluster) -> bool:
    states = cluster.run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()
    return states == ["idle"] * len(cluster.nodes)
