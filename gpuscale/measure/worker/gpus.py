"""Describe the GPUs and GPU libraries of this machine as torch and the driver report them.

These functions initialise CUDA, so they must be called in a separate process.
"""

import contextlib
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from gpuscale.base.errors import DeviceAbsentError, DriverAbsentError, GpuscaleError, QueryError
from gpuscale.base.host import JOB_VARIABLES, gpu_numa_node, is_gpu
from gpuscale.measure.telemetry.device import open_smi
from gpuscale.records import GpuDevice

_HIDDEN = ("", "-1", "NoDevFiles")
"""Values of `CUDA_VISIBLE_DEVICES` and the like that hide all GPUs; Slurm sets the last one."""


def seen_by_torch(device: str) -> dict[str, Any]:
    """Return the `Environment` fields about torch, its libraries, the device type and the GPUs."""
    gpus = _gpus()
    on_gpu = is_gpu(device) or bool(gpus)
    cudnn_version = _cudnn_version() if on_gpu else None
    has_nccl = on_gpu and dist.is_nccl_available()
    nccl_version = ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None
    # torch reports the versions of ROCm's libraries under the names of CUDA's.
    on, names = "rocm", ("rocm_version", "miopen_version", "rccl_version")
    if torch.version.hip is None:
        on, names = "cuda", ("cuda_version", "cudnn_version", "nccl_version")
    found = (torch.version.hip or torch.version.cuda, cudnn_version, nccl_version)
    versions = {"torch_version": str(torch.__version__), "cuda_version": None, "rocm_version": None}
    versions |= zip(names, found, strict=True)
    driver_version = None
    if gpus:
        with contextlib.suppress(DriverAbsentError), open_smi() as smi:
            driver_version = smi.driver_version()
    device = on if on_gpu else "cpu"
    return {**versions, "device": device, "gpus": gpus, "driver_version": driver_version}


def _gpus() -> tuple[GpuDevice, ...]:
    if not torch.cuda.is_available():
        if present := _gpus_of_driver():
            raise GpuscaleError(
                f"torch {torch.__version__} cannot use the {present} GPUs here: {_why_no_cuda()}; "
                "correct that or CUDA_VISIBLE_DEVICES, or measure CPU ranks with --device cpu"
            )
        return ()
    # Before CUDA is initialised, torch counts GPUs as NVML does, whereas CUDA offers a process
    # only a single instance of a GPU in MIG mode.
    try:
        with warnings.catch_warnings():
            # torch warns of each GPU without kernels, for which validate_kernels raises.
            warnings.simplefilter("ignore")
            torch.cuda.init()
    except (RuntimeError, torch.cuda.DeferredCudaCallError) as error:
        raise GpuscaleError(
            f"CUDA or ROCm does not start: {str(error).splitlines()[0]} (see whether 'nvidia-smi' "
            "or 'rocminfo' works; of a GPU in MIG mode choose an instance, with "
            "CUDA_VISIBLE_DEVICES=MIG-…)"
        ) from None
    found = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    built_for = torch.cuda.get_arch_list()
    for number, gpu in enumerate(found):
        validate_kernels(number, gpu, built_for)
    known = known_to_driver()
    return tuple(_described(number, gpu, known) for number, gpu in enumerate(found))


def _described(number: int, gpu: Any, known: Mapping[str, dict[str, Any]]) -> GpuDevice:
    address, fields = _pci_address(gpu), dict[str, Any]()
    if torch.version.hip is not None and address is not None:
        fields = {"pci_address": address, **known.get(address.partition(".")[0], {})}
    return GpuDevice(
        index=number,
        name=gpu.name,
        uuid=str(gpu.uuid),
        numa_node=numa_node_of(gpu),
        **known.get(str(gpu.uuid), fields),
    )


def numa_node_of(gpu: Any) -> int | None:
    """Return the NUMA node of a GPU, given its properties; None if unknown."""
    return gpu_numa_node(_pci_address(gpu) or "")


def _pci_address(gpu: Any) -> str | None:
    """Return the PCI address in a GPU's properties; None if absent, as before torch 2.8."""
    if not hasattr(gpu, "pci_bus_id"):
        return None
    return f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"


def known_to_driver() -> dict[str, dict[str, Any]]:
    """Return `GpuDevice` fields that only the driver reports, keyed by UUID (AMD: PCI address)."""
    found: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(DriverAbsentError, QueryError), open_smi() as smi:
        for number, device in smi.all_devices():
            if not isinstance(device, DeviceAbsentError):
                own = {"smi": smi.NAME, "smi_index": number}
                found[device.key] = {**own, **device.description()}
    return found


def _gpus_of_driver() -> int:
    """Return the number of this job's GPUs according to the driver; 0 if none is visible."""
    if any(os.environ.get(name) in _HIDDEN for name in JOB_VARIABLES):
        return 0
    with contextlib.suppress(DriverAbsentError, QueryError), open_smi() as smi:
        # A lost GPU of this job counts too.
        return sum(1 for _ in smi.all_devices())
    return 0


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return "it was built " + ("for ROCm" if torch.version.hip else "without CUDA")
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "it finds none"


def validate_kernels(number: int, gpu: Any, built_for: Sequence[str]) -> None:
    """Raise GpuscaleError if torch, built for these architectures, has no kernels for a GPU."""
    capability = (gpu.major, gpu.minor)
    if torch.version.hip is not None:
        # Compare names (torch 2.1 or later), since gfx900 and gfx90a both have capability 9.0.
        target = getattr(gpu, "gcnArchName", "")
        runs = not target or any(_runs_on_amd(name, target) for name in built_for)
        has, variable = f"is {target}", "HIP_VISIBLE_DEVICES"
    else:
        runs = any(_runs_on_nvidia(name, capability) for name in built_for)
        has = "has compute capability {}.{}".format(*capability)
        variable = "CUDA_VISIBLE_DEVICES"
    if not runs:
        raise GpuscaleError(
            f"GPU {number} ({gpu.name}) {has}, and torch {torch.__version__} has kernels for "
            f"{', '.join(built_for) or 'no GPU'} only; install a torch that was built for it, or "
            f"leave the GPU out with {variable}"
        )


def _runs_on_nvidia(architecture: str, capability: tuple[int, int]) -> bool:
    """Return True if code for `architecture` (such as `sm_80`) runs on this compute capability."""
    kind, _, version = architecture.partition("_")
    if not version.isdigit():
        # For example sm_90a, which runs only on 9.0; builds with it also have sm_90.
        return False
    built_for = int(version[:-1]), int(version[-1])
    if kind == "compute":
        return built_for <= capability
    return kind == "sm" and built_for[0] == capability[0] and built_for[1] <= capability[1]


def _runs_on_amd(architecture: str, target: str) -> bool:
    """Return True if a build such as `gfx90a:xnack-` or `gfx9-4-generic` runs on this target.

    The target includes features, as in `gfx90a:sramecc+:xnack-`. A build that does not name a
    feature runs with either setting of it (LLVM's User Guide for AMDGPU, "Target ID").
    """
    built_for, *wanted = architecture.split(":")
    processor, *features = target.split(":")
    # The name of a build for a family, such as `gfx9-4-generic`, does not list processors.
    is_built_for = built_for == processor or built_for.endswith("-generic")
    return is_built_for and set(wanted) <= set(features)


def _cudnn_version() -> str | None:
    try:
        version = torch.backends.cudnn.version()
    except RuntimeError as error:
        # LD_LIBRARY_PATH selects another cuDNN, or a GPU is too old for this cuDNN.
        raise GpuscaleError(f"torch cannot use cuDNN: {error}") from None
    return None if version is None else str(version)
