"""Starting ranks: one file per way of doing it, and the table of them."""

import pkgutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpuscale.measure.launch.placement import ProcessStarter
    from gpuscale.measure.run_directory import NodeSamples, RunDirectory
    from gpuscale.records import Environment, Run, RunRequest

# A launcher across nodes is its file in this folder and its line here.
ACROSS_NODES: Mapping[str, str] = {
    "slurm": "gpuscale.measure.launch.srun:Slurm",
    "mpirun": "gpuscale.measure.launch.mpirun:OpenMpi",
}
_TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)
LAUNCHERS = ("local", *ACROSS_NODES)

# The ranks, which no module of this layer imports.
_IN_RANKS: Mapping[str, str] = {
    "rank": "gpuscale.measure.worker.entry:main",
    "command": "gpuscale.measure.worker.command:main",
    "overhead": "gpuscale.measure.worker.entry:compare_with_bare_loop",
    "trial": "gpuscale.measure.worker.trial:main",
    "describe": "gpuscale.measure.worker.machine:describe_to",
    "probe": "gpuscale.measure.worker.node_probe:probe",
}


class RunTerminated(BaseException):
    """This process was asked by a signal to end while ranks were running; they have ended."""

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
        """The machine, or the nodes of the job, as the ranks see it; found out at the first use."""

    def run(self, request: "RunRequest") -> "Run":
        """Make one run; what goes wrong in a rank is told in `Run.failure`, not raised.

        No rank is left when it returns.
        """

    def misfits(self, requests: "Sequence[RunRequest]") -> Sequence[str]:
        """How the cases fail whose batches surely do not fit their models, before they are run.

        Nothing where that is not tried.
        """
        return ()

    def progress(self) -> tuple[str, int, int] | None:
        """Stage, done and total of the run under way; None where nothing is known.

        May be asked from another thread than that of `run`.
        """
        directory = self.running
        return None if directory is None else directory.read_progress()

    def samples(self) -> "Sequence[NodeSamples]":
        """The files that samplers on the nodes left in the last run, until the next run.

        None where there is one node, which the session samples by itself.
        """
        return ()

    def close(self) -> None:
        """Delete what the last run left."""
        return


def launcher_by_name(name: str, *, device: str, folder: Path) -> Launcher:
    """The launcher of a name in `LAUNCHERS`, for the device `auto`, `cuda` or `cpu`.

    Across nodes, what ranks leave lies in the folder, which is that of the results.
    """
    if name == "local":
        from gpuscale.measure.launch.local import LocalLauncher

        return LocalLauncher(device=device)
    from gpuscale.measure.launch.nodes import NodesLauncher

    return NodesLauncher(name, device=device, folder=folder)


def process_starter(name: str) -> "ProcessStarter":
    """The starter of processes on nodes of that name in `ACROSS_NODES`."""
    found: ProcessStarter = pkgutil.resolve_name(ACROSS_NODES[name])()
    return found


def do_in_rank(job: str, *arguments: str) -> None:
    """Do a job of `_IN_RANKS` in a process of its own.

    It is the way from a forked process into the worker.
    """
    pkgutil.resolve_name(_IN_RANKS[job])(*arguments)
