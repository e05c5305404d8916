"""A launcher by its name on the command line."""

from pathlib import Path

from gpuscale.launch import Launcher
from gpuscale.launch.local import LocalLauncher
from gpuscale.launch.mpirun import OpenMpi
from gpuscale.launch.nodes import NodesLauncher
from gpuscale.launch.slurm import Slurm


def launcher_by_name(name: str, *, device: str, folder: Path) -> Launcher:
    """The launcher `local`, `slurm` or `mpirun`.

    Args:
        name: Which one.
        device: `auto`, `cuda` or `cpu`.
        folder: Where the results lie; with several nodes, what ranks leave lies there too.
    """
    if name == "local":
        return LocalLauncher(device=device)
    return nodes_launcher(name, device=device, folder=folder)


def nodes_launcher(name: str, *, device: str, folder: Path) -> NodesLauncher:
    """One of the launchers that reach all nodes of a job: `slurm` or `mpirun`."""
    scheduler = Slurm() if name == "slurm" else OpenMpi()
    return NodesLauncher(scheduler, device=device, folder=folder)
