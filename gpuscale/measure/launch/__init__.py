"""Registry of the launchers, which start ranks on one node or across nodes."""

import pkgutil
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING

from gpuscale.base.errors import RunTerminated
from gpuscale.base.process_ends import die_with_parent, end_at_interrupt

if TYPE_CHECKING:
    # Every pytest run in the environment imports this file, so it must load quickly.
    from gpuscale.measure.schedulers.placement import ProcessStarter

# A launcher for several nodes is a class derived from ProcessStarter, with an entry here.
ACROSS_NODES: Mapping[str, str] = {
    "slurm": "gpuscale.measure.schedulers.slurm:Slurm",
    "mpirun": "gpuscale.measure.launch.mpirun:OpenMpi",
}
LAUNCHERS = ("local", *ACROSS_NODES)
_LOCAL = "gpuscale.measure.schedulers.placement:ThisNode"
TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)

# Modules of the ranks are given by name, since no other module may import them.
PRELOADED = (
    *("torch.distributed", "torch.nn.parallel", "torchvision.transforms.v2"),
    *(f"gpuscale.measure.worker.{name}" for name in ("entry", "environment", "gpus", "probes")),
    # Case files import it for `pytest.mark`.
    "pytest",
)
"""Modules that all ranks need and that are slow to import; imported before ranks are forked."""
_JOBS: Mapping[str, str] = {
    "rank": "gpuscale.measure.worker.entry:main",
    "command": "gpuscale.measure.worker.command:main",
    "describe": "gpuscale.measure.worker.environment:describe",
    "probe": "gpuscale.measure.worker.probes:probe",
}


@contextmanager
def terminations_raised() -> Iterator[None]:
    """While the context lasts, raise RunTerminated in the main thread on SIGTERM or SIGHUP."""

    def end(number: int, _: FrameType | None) -> None:
        raise RunTerminated(number)

    earlier = {number: signal.signal(number, end) for number in TERMINATIONS}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def ignore_terminations() -> None:
    """Ignore SIGTERM and SIGHUP from now on, so that a session can report after its last run."""
    for number in TERMINATIONS:
        # Python would reset a handler of its own while it shuts down.
        signal.signal(number, signal.SIG_IGN)


def process_starter(name: str) -> "ProcessStarter":
    """Return the ProcessStarter of the launcher with this name, one of `LAUNCHERS`."""
    starter: ProcessStarter = pkgutil.resolve_name(ACROSS_NODES.get(name, _LOCAL))()
    return starter


def import_all(names: Iterable[str]) -> None:
    """Import modules and ignore failures; a rank that needs a broken module reports the failure."""
    for name in names:
        with suppress(Exception):
            import_module(name)


def do_in_rank(job: str, *arguments: str) -> None:
    """In a newly forked process, call the function for `job`, such as `rank`, with `arguments`."""
    # A command's watcher first ends the command; all others end at once.
    if job != "command":
        die_with_parent()
        end_at_interrupt()
    pkgutil.resolve_name(_JOBS[job])(*arguments)
