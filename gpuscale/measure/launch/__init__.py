"""Interface and registry of the launchers, which start ranks on one node or across nodes."""

import pkgutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from gpuscale.base.errors import RunTerminated

if TYPE_CHECKING:
    # Every pytest run in the environment imports this file.
    from gpuscale.measure.run_directory import NodeSamples, RunDirectory
    from gpuscale.measure.schedulers.placement import ProcessStarter
    from gpuscale.records import Environment, Run, RunRequest
    from gpuscale.records.probe import NodeProbe, NodeProbeRequest
    from gpuscale.records.request import FigureOutcome

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
PRELOADED = (
    *("torch.distributed", "torch.nn.parallel", "torchvision.transforms.v2"),
    *(
        f"gpuscale.measure.worker.{name}"
        for name in ("entry", "description", "machine", "node_probe")
    ),
    # Case files import it for their mark.
    "pytest",
)
"""Slow modules that all ranks need, imported before ranks are forked."""
_JOBS: Mapping[str, str] = {
    "rank": "gpuscale.measure.worker.entry:main",
    "command": "gpuscale.measure.worker.command:main",
    "overhead": "gpuscale.measure.worker.entry:compare_with_bare_loop",
    "trial": "gpuscale.measure.worker.trial:main",
    "describe": "gpuscale.measure.worker.description:describe_to",
    "probe": "gpuscale.measure.worker.node_probe:probe",
}


@contextmanager
def terminations_raised() -> Iterator[None]:
    """While the context lasts, raise RunTerminated in the main thread on SIGTERM or SIGHUP."""

    def end(number: int, _: FrameType | None) -> None:
        raise RunTerminated(number)

    earlier = {number: signal.signal(number, end) for number in _TERMINATIONS}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class Launcher(Protocol):
    """Starts all ranks of a run and returns their measurements."""

    running: "RunDirectory | None" = None
    """The folder of the run in progress; None between runs."""
    command_software: "Environment | None" = None
    """Software of the last run's interpreter; None if gpuscale itself trained."""
    command_figures: "FigureOutcome | None" = None
    """Figures that the last run's command printed; None if it printed none."""

    @property
    def environment(self) -> "Environment":
        """This machine or the nodes of the job, as seen by ranks; determined on first use."""

    def run(self, request: "RunRequest") -> "Run":
        """Make one run. If a rank fails, no error is raised; `Run.failure` says why.

        All ranks have ended when this method returns.
        """

    def probe(self, request: "NodeProbeRequest") -> "tuple[NodeProbe, ...]":
        """Measure how fast each node's devices compute and copy, and each pair communicates."""

    def misfits(self, requests: "Sequence[RunRequest]") -> Sequence[str]:
        """Check that the cases' models accept their batches; return messages for wrong shapes.

        The default is to check nothing and return no messages.
        """
        return ()

    def progress(self) -> tuple[str, int, int] | None:
        """Return the current run's progress as (stage, done, total); None if unknown.

        This method may be called from a different thread than `run`.
        """
        directory = self.running
        return None if directory is None else directory.read_progress()

    def samples(self) -> "Sequence[NodeSamples]":
        """Return the GPU samples files of all nodes for the last run, kept until the next run.

        Empty on a single node, where the pytest process itself starts the sampler.
        """
        return ()

    def close(self) -> None:
        """End the processes that start ranks, and delete the files of the last run."""


def launcher_by_name(
    name: str, *, device: str, folder: Path, fresh_tasks: bool = False, is_command: bool = False
) -> Launcher:
    """Create the launcher with this name, one of `LAUNCHERS`.

    Args:
        name: The value of `--launcher`.
        device: `auto`, or one of `DEVICES`.
        folder: The folder for results; a launcher across nodes also puts the runs' files there.
        fresh_tasks: If True, a launcher across nodes starts each rank of each run as a new task.
        is_command: If True, only a command is measured, which shares no imports with gpuscale.
    """
    found: Launcher
    if name == "local":
        found = pkgutil.resolve_name(_LOCAL)(device=device, preloads=not is_command)
    else:
        launcher = pkgutil.resolve_name(_NODES)
        found = launcher(name, device=device, folder=folder, fresh_tasks=fresh_tasks)
    return found


def process_starter(name: str) -> "ProcessStarter | None":
    """Return the ProcessStarter of the launcher with this name; None for `local`."""
    if name not in ACROSS_NODES:
        return None
    starter: ProcessStarter = pkgutil.resolve_name(ACROSS_NODES[name])()
    return starter


def do_in_rank(job: str, *arguments: str) -> None:
    """Run a job, such as `rank` or `describe`, in this process, which was forked to run it."""
    pkgutil.resolve_name(_JOBS[job])(*arguments)
