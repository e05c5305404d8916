"""Record the GPUs, libraries and settings of this machine for a session, as ranks see them."""

import contextlib
import os
import platform
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuscale.base.errors import GpuscaleError
from gpuscale.base.host import CACHE_VARIABLES, VARIABLE_PREFIXES, cpu_model
from gpuscale.measure.evidence.software import installed_packages, read_version_file
from gpuscale.measure.run_directory import RunDirectory, write_atomically
from gpuscale.measure.schedulers import scheduler_of_job
from gpuscale.records import Environment, GpuDevice


def describe(folder: str, device: str) -> None:
    """Write this machine's Environment, or why the machine is unusable, into a run's folder."""
    directory = RunDirectory(path=Path(folder))
    name = directory.host_names()[int(os.environ["RANK"])]
    folders = [*map(Path, sys.path)]
    try:
        gpus, on, libraries = _gpus_and_libraries(device, folders)
    except GpuscaleError as error:
        # Omit the traceback: the fault lies in the machine, not in this code.
        write_atomically(directory.refusal(name), str(error))
        raise SystemExit(1) from None
    variables, packages = sorted(os.environ.items()), installed_packages(folders)
    scheduler = scheduler_of_job(os.environ)
    found = Environment(
        device=on,
        host=socket.gethostname(),
        cpu_model=cpu_model(),
        cpu_count=len(os.sched_getaffinity(0)),
        gpus=gpus,
        python_version=platform.python_version(),
        # Importing torchvision would import torch._dynamo, which takes ten seconds of a busy CPU.
        torchvision_version=read_version_file(folders, "torchvision").get("__version__"),
        lightning_version=packages.get("lightning"),
        **libraries,
        packages=packages,
        kernel=platform.release(),
        variables={
            name: value
            for name, value in variables
            if name.startswith(VARIABLE_PREFIXES) and name not in CACHE_VARIABLES
        },
        scheduler=None if scheduler is None else scheduler.name,
        job_id=None if scheduler is None else os.environ[scheduler.job_variable],
    )
    # If the launcher has been interrupted, it has removed the folder.
    with contextlib.suppress(FileNotFoundError):
        directory.environment(name).write(found)


def _gpus_and_libraries(
    device: str, folders: Sequence[Path]
) -> tuple[tuple[GpuDevice, ...], str, Mapping[str, Any]]:
    if device != "cpu":
        # Imported here, since torch takes seconds and initialises CUDA.
        from gpuscale.measure.worker.gpus import seen_by_torch

        return seen_by_torch(device)
    torch = read_version_file(folders, "torch")
    names = {"torch_version": "__version__", "cuda_version": "cuda", "rocm_version": "hip"}
    return (), "cpu", {name: torch.get(constant) for name, constant in names.items()}
