"""Record this machine's GPUs, libraries and settings, as the ranks of a session will see them."""

import contextlib
import os
import platform
import socket
import sys
from pathlib import Path

from gpuscale.base.errors import GpuscaleError
from gpuscale.base.host import cpu_model
from gpuscale.measure.evidence.software import VARIABLE_PREFIXES, python_packages
from gpuscale.measure.run_directory import RunDirectory, write_atomically
from gpuscale.measure.schedulers import scheduler_of_job
from gpuscale.records import Environment
from gpuscale.records.environment import CACHE_VARIABLES


def describe(folder: str, device: str) -> None:
    """Write this machine's Environment, or why the machine is unusable, into a run's folder."""
    directory = RunDirectory(path=Path(folder))
    name = directory.host_names()[int(os.environ["RANK"])]
    # Importing torchvision would import torch._dynamo, which takes ten seconds of a busy CPU.
    fields = {"device": device, **python_packages([*map(Path, sys.path)])}
    try:
        if device != "cpu":
            # Imported here, since torch takes seconds and initialises CUDA.
            from gpuscale.measure.worker.gpus import seen_by_torch

            fields |= seen_by_torch(device)
    except GpuscaleError as error:
        # Omit the traceback: the fault lies in the machine, not in this code.
        write_atomically(directory.refusal(name), str(error))
        raise SystemExit(1) from None
    scheduler = scheduler_of_job(os.environ)
    found = Environment(
        **fields,
        host=socket.gethostname(),
        cpu_model=cpu_model(),
        cpu_count=len(os.sched_getaffinity(0)),
        python_version=platform.python_version(),
        kernel=platform.release(),
        variables={
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(VARIABLE_PREFIXES) and name not in CACHE_VARIABLES
        },
        scheduler=None if scheduler is None else scheduler.name,
        job_id=None if scheduler is None else os.environ[scheduler.job_variable],
    )
    # If the launcher has been interrupted, it has removed the folder.
    with contextlib.suppress(FileNotFoundError):
        directory.environment(name).write(found)
