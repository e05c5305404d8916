"""Starting ranks: a launcher on one node, one across nodes, and the tables of both."""

import pkgutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    # Every pytest run in the environment imports this file.
    from gpuscale.measure.run_directory import NodeSamples, RunDirectory
    from gpuscale.measure.schedulers.placement import ProcessStarter
    from gpuscale.records import Environment, Run, RunRequest

# A launcher across nodes is a ProcessStarter and its line here.
ACROSS_NODES: Mapping[str, str] = {
    "slurm": "gpuscale.measure.schedulers.slurm:Slurm",
    "mpirun": "gpuscale.measure.launch.mpirun:OpenMpi",
}
LAUNCHERS = ("local", *ACROSS_NODES)
_LOCAL = "gpuscale.measure.launch.local:LocalLauncher"
_NODES = "gpuscale.measure.launch.nodes:NodesLauncher"
_TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)

# The ranks, which no module of this layer imports.
PRELOAD = "gpuscale.measure.worker.preload"
_JOBS: Mapping[str, str] = {
    "rank": "gpuscale.measure.worker.entry:main",
    "command": "gpuscale.measure.worker.command:main",
    "overhead": "gpuscale.measure.worker.entry:compare_with_bare_loop",
    "trial": "gpuscale.measure.worker.trial:main",
    "describe": "gpuscale.measure.worker.machine:describe_to",
    "probe": "gpuscale.measure.worker.node_probe:probe",
}


class RunTerminated(BaseException):
    """A signal asked this process to end while ranks were running; they have ended."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def terminations_raised() -> Iterator[None]:
    """Raise RunTerminated in the main thread when SIGTERM or SIGHUP comes."""

    def end(number: int, _: FrameType | None) -> None:
        raise RunTerminated(number)

    earlier = {number: signal.signal(number, end) for number in _TERMINATIONS}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class Launcher(Protocol):
    """Starts all the ranks of a run and returns what they measured."""

    running: "RunDirectory | None" = None
    """The folder of the run under way."""

    @property
    def environment(self) -> "Environment":
        """The machine, or the nodes of the job, as ranks see it; found out at the first use."""

    def run(self, request: "RunRequest") -> "Run":
        """Make one run; a failure of a rank is in `Run.failure`, not raised.

        No rank is left when it returns.
        """

    def misfits(self, requests: "Sequence[RunRequest]") -> Sequence[str]:
        """Try the cases, and return how those fail whose batches surely do not fit their models.

        Empty if the launcher does not try cases.
        """
        return ()

    def progress(self) -> tuple[str, int, int] | None:
        """Stage, done and total of the run under way; None if unknown.

        May be asked from another thread than that of `run`.
        """
        directory = self.running
        return None if directory is None else directory.read_progress()

    def samples(self) -> "Sequence[NodeSamples]":
        """The files that samplers on the nodes left in the last run; they last until the next run.

        Empty on one node, which the session samples by itself.
        """
        return ()

    def close(self) -> None:
        """End the processes that start ranks, and delete what the last run left."""


def launcher_by_name(
    name: str, *, device: str, folder: Path, fresh_tasks: bool = False
) -> Launcher:
    """The launcher of a name in `LAUNCHERS`.

    Args:
        name: The value of `--launcher`.
        device: `auto`, `cuda` or `cpu`.
        folder: The folder of the results; across nodes, ranks leave their files there.
        fresh_tasks: Start each rank of each run as a task of its own; only across nodes.
    """
    found: Launcher
    if name == "local":
        found = pkgutil.resolve_name(_LOCAL)(device=device)
    else:
        launcher = pkgutil.resolve_name(_NODES)
        found = launcher(name, device=device, folder=folder, fresh_tasks=fresh_tasks)
    return found


def process_starter(name: str) -> "ProcessStarter | None":
    """The starter of processes on nodes for a launcher; None for the local one."""
    if name not in ACROSS_NODES:
        return None
    starter: ProcessStarter = pkgutil.resolve_name(ACROSS_NODES[name])()
    return starter


def do_in_rank(job: str, *arguments: str) -> None:
    """Do a job in this process, which was forked for it: the way into the worker."""
    pkgutil.resolve_name(_JOBS[job])(*arguments)
