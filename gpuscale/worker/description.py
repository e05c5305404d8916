"""The machine as the ranks see it, told by a process that may touch CUDA."""

import os
import platform
import socket
import sys
from pathlib import Path

import torch

from gpuscale.encoding import to_json
from gpuscale.errors import GpuscaleError
from gpuscale.host import VARIABLE_FAMILIES, cpu_model
from gpuscale.records import Environment, GpuDevice
from gpuscale.run_directory import write_atomically
from gpuscale.worker.lifeline import die_with_parent, end_at_interrupt

_JOB_VARIABLES = {"SLURM_JOB_ID": "slurm", "LSB_JOBID": "lsf", "PBS_JOBID": "pbs"}


def main(path: str, device: str) -> None:
    """Write this machine's Environment to `path`; `device` is `cuda`, `cpu` or `auto`."""
    die_with_parent()
    end_at_interrupt()
    write_atomically(Path(path), to_json(describe(device)))


def describe(device: str) -> Environment:
    """The environment that ranks on this machine measure in."""
    gpus = () if device == "cpu" else _gpus()
    on_gpu = device == "cuda" or bool(gpus)
    scheduler, job_id = _job()
    return Environment(
        device="cuda" if on_gpu else "cpu",
        host=socket.gethostname(),
        cpu_model=cpu_model(),
        cpu_count=len(os.sched_getaffinity(0)),
        gpus=gpus,
        python_version=platform.python_version(),
        torch_version=str(torch.__version__),
        torchvision_version=_torchvision_version(),
        cuda_version=torch.version.cuda,
        cudnn_version=_cudnn_version(on_gpu),
        nccl_version=_nccl_version(on_gpu),
        kernel=platform.release(),
        variables={
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(VARIABLE_FAMILIES)
        },
        scheduler=scheduler,
        job_id=job_id,
    )


def _gpus() -> tuple[GpuDevice, ...]:
    if not torch.cuda.is_available():
        return ()
    # Before it has started CUDA, torch counts what NVML does: the GPUs of the machine, while of
    # those in MIG mode CUDA offers a single instance.
    try:
        torch.cuda.init()
    except (RuntimeError, torch.cuda.DeferredCudaCallError) as error:
        raise GpuscaleError(
            f"CUDA does not start: {str(error).splitlines()[0]} (see whether 'nvidia-smi' works; "
            "of a GPU in MIG mode choose an instance, with CUDA_VISIBLE_DEVICES=MIG-…)"
        ) from None
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            GpuDevice(
                index=index,
                name=properties.name,
                uuid=str(properties.uuid),
                memory_bytes=properties.total_memory,
            )
        )
    return tuple(found)


def _job() -> tuple[str | None, str | None]:
    for variable, scheduler in _JOB_VARIABLES.items():
        if job := os.environ.get(variable):
            return scheduler, job
    # SGE's JOB_ID alone is too common a name to mean SGE.
    if "SGE_TASK_ID" in os.environ and (job := os.environ.get("JOB_ID")):
        return "sge", job
    return None, None


def _torchvision_version() -> str | None:
    try:
        import torchvision
    except (ImportError, RuntimeError):
        # torchvision raises RuntimeError beside a torch that it was not built for.
        return None
    return str(torchvision.__version__)


def _cudnn_version(on_gpu: bool) -> str | None:
    version = torch.backends.cudnn.version() if on_gpu else None
    return None if version is None else str(version)


def _nccl_version(on_gpu: bool) -> str | None:
    if not on_gpu or not torch.distributed.is_nccl_available():
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
