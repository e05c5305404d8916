"""Start a command's processes, with pipes for output and environment variables for ranks."""

import math
import os
import shutil
import signal
import socket
import subprocess
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from gpuscale.base.errors import UsageError
from gpuscale.base.host import variables_of
from gpuscale.base.process_ends import (
    descendants,
    end_at_interrupt,
    processes_with,
    signal_at_parent_death,
)
from gpuscale.measure.run_directory import RunDirectory, write_atomically
from gpuscale.measure.worker.output import COMMAND_SOURCE, CommandError, Output
from gpuscale.records import Failure, RunRequest
from gpuscale.records.request import CommandRequest
from gpuscale.workload.command_case import ON_EACH_NODE, fields_of, filled, starter_of

RANK_COUNT_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
"""Environment variables of torchrun, DeepSpeed, MPI and Slurm with the number of ranks."""
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


class Place(msgspec.Struct, frozen=True):
    """The position of this process among the processes that start a command for a run."""

    request: RunRequest
    command: CommandRequest
    directory: RunDirectory
    number: int
    is_across: bool
    """True if the run was launched across nodes, even if it uses only one node."""

    @property
    def rank(self) -> int | None:
        """The rank that this process starts; None if the command itself starts the ranks."""
        return self.number if self.request.launch == "per-rank" else None

    @property
    def hosts(self) -> list[str]:
        """The hosts of the run, as named by the launcher."""
        return self.directory.host_names() if self.is_across else ["localhost"]

    @property
    def node(self) -> int:
        """Index in `hosts` of the node on which this process runs."""
        return self.number if self.rank is None else self.rank // self.gpus_on(0)

    def gpus_on(self, node: int) -> int:
        """Return how many of the run's GPUs are on a node; the last node may have fewer."""
        block = math.ceil(self.request.gpus / len(self.hosts))
        return min(block, self.request.gpus - node * block)

    @property
    def covers_all_nodes(self) -> bool:
        """True if the command is started once for all nodes, and starts its ranks itself."""
        return self.is_across and self.request.launch == "once"

    @property
    def has_peers(self) -> bool:
        """True if other processes start the command too, or watch other nodes while it runs."""
        return self.request.processes > 1

    @property
    def label(self) -> str:
        """Text such as ` on n2` for messages; empty if local or if one command covers all nodes."""
        return f" on {socket.gethostname()}" if self.is_across and not self.covers_all_nodes else ""

    def processes(self) -> set[int]:
        """Return the process IDs of the command on this node."""
        return processes_with(self.directory.variable) if self.covers_all_nodes else descendants()

    def world_sizes(self) -> set[int]:
        """Return world sizes in the processes' environments; if `is_across`, save their ranks."""
        found = defaultdict[str, set[int]](set)
        for process in self.processes():
            # The process may have ended, or belong to another user.
            with suppress(OSError):
                variables = variables_of(process)
                for name in (*RANK_COUNT_VARIABLES, *_RANK_VARIABLES):
                    count = variables.get(name, "")
                    if count.isdigit() and count != os.environ.get(name):
                        found[name].add(int(count))
        if self.is_across:
            numbers = next(filter(None, (found[name] for name in _RANK_VARIABLES)), set[int]())
            path = self.directory.started(self.number)
            write_atomically(path, " ".join(map(str, sorted(numbers))))
        return set[int]().union(*(found[name] for name in RANK_COUNT_VARIABLES))


def start_command(place: Place, pipes: Path | None, output: Output) -> "subprocess.Popen[bytes]":
    """Start the command; `output` reads from it and, given a folder `pipes`, from each rank too."""
    request, directory, command = place.request, place.directory, place.command
    here = place.gpus_on(place.node)
    variables = {**os.environ, **_device_variables(request.devices[:here])}
    name, _, folder = directory.variable.partition("=")
    variables |= {"PYTHONUNBUFFERED": "1", "GPUSCALE_REPORT": "1", name: folder}
    if not request.devices or starter_of(command.words, ON_EACH_NODE):
        # torchrun sets this only for several ranks on a node, so T(1) and T(n) would differ.
        variables.setdefault("OMP_NUM_THREADS", "1")
    if pipes is not None:
        _make_rank_pipes(here, pipes, output)
        variables["GPUSCALE_PYTHON_EXEC"] = os.environ.get("PYTHON_EXEC", "")
        variables["GPUSCALE_PIPES"] = str(pipes)
        variables["PYTHON_EXEC"] = str(pipes / "python")
    if place.rank is not None:
        variables["LOCAL_WORLD_SIZE"] = str(here)
    values = {
        "gpus": request.gpus,
        "nodes": len(place.hosts),
        "gpus_per_node": here,
        "node_rank": place.node,
        "batch": request.batch_per_gpu,
        # A command without a batch size does not contain this placeholder.
        "global_batch": (request.batch_per_gpu or 0) * request.gpus,
        "master_addr": os.environ["MASTER_ADDR"],
        "master_port": os.environ["MASTER_PORT"],
        "hosts": ",".join(place.hosts),
        "hostfile": _hostfile(place) if "hostfile" in fields_of(command.words) else "",
    }
    words = filled(command.words, values)
    outputs = [os.pipe(), os.pipe()]
    # Linux's names for the pipes to which the command writes: `pipe:[17] pipe:[18]`.
    names = " ".join(str(Path(f"/proc/self/fd/{writing}").readlink()) for _, writing in outputs)
    try:
        # A command with a CPU map is started once for each rank.
        cpus = request.cpus_of(0 if place.rank is None else int(os.environ["LOCAL_RANK"]))
        process = subprocess.Popen(
            words,
            cwd=command.folder,
            env=variables | {"GPUSCALE_OUTPUT": names},
            stdin=subprocess.DEVNULL,
            stdout=outputs[0][1],
            stderr=outputs[1][1],
            start_new_session=True,
            preexec_fn=partial(_prepare, cpus),
        )
    except UsageError as error:
        raise CommandError(Failure(kind="raised", message=str(error))) from None
    except OSError as error:
        # Another node may lack the program, or the folder of the session.
        problem = f"'{error.filename or words[0]}'{place.label}: {error.strerror}"
        message = f"the command cannot be started: {problem}"
        raise CommandError(Failure(kind="launch", message=message)) from None
    for reading, writing in outputs:
        os.close(writing)
        output.listen(reading, COMMAND_SOURCE)
    return process


def _prepare(cpus: Collection[int]) -> None:
    """Bind this new process to CPUs and restore signal handling, before the command starts."""
    if cpus:
        os.sched_setaffinity(0, cpus)
    signal_at_parent_death(signal.SIGKILL)
    end_at_interrupt()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _device_variables(devices: Sequence[int]) -> dict[str, str]:
    variables = {}
    # On AMD's GPUs HIP's variable takes precedence over CUDA's.
    hip = ["HIP_VISIBLE_DEVICES"] if os.environ.get("HIP_VISIBLE_DEVICES") else []
    for name in ("CUDA_VISIBLE_DEVICES", *hip):
        visible = dict(enumerate(filter(None, os.environ.get(name, "").split(","))))
        shown = (visible.get(device, str(device)) for device in dict.fromkeys(devices))
        variables[name] = ",".join(shown)
    return variables


def _make_rank_pipes(ranks: int, folder: Path, output: Output) -> None:
    """Create and listen to named pipes for each rank that torchrun may start on this node."""
    # torchrun starts this script in place of Python; it redirects a rank's output to the pipes.
    shutil.copyfile(Path(__file__).with_name("rank_python.sh"), folder / "python").chmod(0o755)
    for number in range(ranks):
        for stream in ("out", "err"):
            path = folder / f"{number}.{stream}"
            os.mkfifo(path)
            # Open for writing too, to avoid an end of file whenever no rank has the pipe open.
            output.listen(os.open(path, os.O_RDWR | os.O_NONBLOCK), f"local rank {number}")


def _hostfile(place: Place) -> Path:
    """Write a hostfile in the format of Open MPI and DeepSpeed, and return its path."""
    path = place.directory.path.absolute() / f"hostfile-{place.number}"
    lines = (f"{host} slots={place.gpus_on(node)}\n" for node, host in enumerate(place.hosts))
    path.write_text("".join(lines), encoding="utf-8")
    return path
