"""The machine as a rank sees it: what it is, how fast it computes, and how fast nodes communicate.

CUDA is touched here, and so in a process of its own.
"""

import contextlib
import os
import platform
import socket
import timeit
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]
import torch
import torch.distributed as dist

from gpuscale.base.errors import GpuscaleError
from gpuscale.base.host import VARIABLE_FAMILIES, cpu_model, die_with_parent, end_at_interrupt
from gpuscale.measure.run_directory import RecordFile, RunDirectory, write_atomically
from gpuscale.measure.schedulers import scheduler_of_job
from gpuscale.measure.worker.strategies import cuda_device
from gpuscale.records import Environment, GpuDevice, NodeProbe
from gpuscale.records.request import NodeProbeRequest, SendTime

_GPU_MATRIX = 4096
_CPU_MATRIX = 512
_COMPUTATIONS = 15
_BYTES_OF_A_FLOAT = 4
_HIDDEN = ("", "-1", "NoDevFiles")
"""Of `CUDA_VISIBLE_DEVICES`; the last is what Slurm sets for a job without GPUs."""
_FIRST_OF_CUDA_13 = (7, 5)
"""The least capability that default builds of torch serve from 2.11 on; those for CUDA 12.6, which
serve older ones, end with 2.14 (pytorch/pytorch, issues 172352 and 190385)."""
_AMD_FAMILIES = {
    "gfx9-generic": ("gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"),
    "gfx9-4-generic": ("gfx94", "gfx950"),
}
"""How the names of the processors begin that run a generic build, if not as its own name does."""


def describe_to(path: str, device: str) -> None:
    """Write this machine's Environment to `path`; `device` is `cuda`, `cpu` or `auto`.

    Where its GPUs cannot be used, why goes into the folder's `refusal` beside it.
    """
    die_with_parent()
    end_at_interrupt()
    try:
        gpus = () if device == "cpu" else _gpus(device)
        on_gpu = device == "cuda" or bool(gpus)
        cudnn_version = _cudnn_version() if on_gpu else None
    except GpuscaleError as error:
        # Without a traceback: the machine is to be mended, and not this code.
        write_atomically(Path(path).with_suffix(".refusal"), str(error))
        raise SystemExit(1) from None
    has_nccl = on_gpu and dist.is_nccl_available()
    set_here = sorted(os.environ.items())
    scheduler = scheduler_of_job(os.environ)
    found = Environment(
        device="cuda" if on_gpu else "cpu",
        host=socket.gethostname(),
        cpu_model=cpu_model(),
        cpu_count=len(os.sched_getaffinity(0)),
        gpus=gpus,
        python_version=platform.python_version(),
        torch_version=str(torch.__version__),
        torchvision_version=_torchvision_version(),
        lightning_version=_lightning_version(),
        **_versions(cudnn_version, has_nccl=has_nccl),
        kernel=platform.release(),
        variables={name: value for name, value in set_here if name.startswith(VARIABLE_FAMILIES)},
        scheduler=None if scheduler is None else scheduler.name,
        job_id=None if scheduler is None else os.environ[scheduler.job_variable],
    )
    # Whoever was interrupted meanwhile has taken the folder away.
    with contextlib.suppress(FileNotFoundError):
        RecordFile(Path(path), Environment).write(found)


def _versions(cudnn_version: str | None, *, has_nccl: bool) -> dict[str, Any]:
    """The versions of CUDA's libraries, or those of ROCm, for which torch uses the same names."""
    nccl_version = ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None
    if torch.version.hip is None:
        names = ("cuda_version", "cudnn_version", "nccl_version")
    else:
        names = ("rocm_version", "miopen_version", "rccl_version")
    runtime = torch.version.hip or torch.version.cuda
    return dict(zip(names, (runtime, cudnn_version, nccl_version), strict=True))


def _gpus(device: str) -> tuple[GpuDevice, ...]:
    if not torch.cuda.is_available():
        if present := _gpus_of_driver():
            raise GpuscaleError(
                f"torch {torch.__version__} cannot use the {present} GPUs here: {_why_no_cuda()}; "
                "mend that or CUDA_VISIBLE_DEVICES, or measure CPU ranks with --device cpu"
            )
        return ()
    # Before it has started CUDA, torch counts what NVML does: the GPUs of the machine, while of
    # those in MIG mode CUDA offers a single instance.
    try:
        with warnings.catch_warnings():
            # Of GPUs without kernels, several lines each; see validate_kernels.
            warnings.simplefilter("ignore")
            torch.cuda.init()
    except (RuntimeError, torch.cuda.DeferredCudaCallError) as error:
        remedy = (
            "see whether 'nvidia-smi' works; of a GPU in MIG mode choose an instance, with "
            "CUDA_VISIBLE_DEVICES=MIG-…"
        )
        runtime = "CUDA"
        if torch.version.hip is not None:
            runtime, remedy = "ROCm", "see whether 'rocminfo' works"
        raise GpuscaleError(
            f"{runtime} does not start: {str(error).splitlines()[0]} ({remedy})"
        ) from None
    found = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    built_for = torch.cuda.get_arch_list()
    for number, gpu in enumerate(found):
        validate_kernels(number, gpu, built_for)
    known = known_to_driver()
    return tuple(
        GpuDevice(
            index=n,
            name=gpu.name,
            uuid=str(gpu.uuid),
            memory_bytes=gpu.total_memory,
            **known.get(str(gpu.uuid), {}),
        )
        for n, gpu in enumerate(found)
    )


def known_to_driver() -> dict[str, dict[str, Any]]:
    """The fields of each GPU that NVML tells and CUDA does not, by its UUID as CUDA gives it."""
    found = {}
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for number in range(pynvml.nvmlDeviceGetCount()):
            # A GPU that is lost says nothing, and the others do.
            with contextlib.suppress(pynvml.NVMLError):
                gpu = pynvml.nvmlDeviceGetHandleByIndex(number)
                uuid = str(pynvml.nvmlDeviceGetUUID(gpu)).removeprefix("GPU-")
                found[uuid] = {
                    "smi_index": number,
                    "pci_address": str(pynvml.nvmlDeviceGetPciInfo(gpu).busId),
                    **_limits(gpu),
                }
    return found


def _limits(gpu: Any) -> dict[str, float]:
    """The limits of power and clocks that a GPU of NVML tells."""
    found = {}
    for name, ask, *clock, unit in (
        ("power_limit_w", pynvml.nvmlDeviceGetEnforcedPowerLimit, 1000),
        ("application_clock_mhz", pynvml.nvmlDeviceGetApplicationsClock, pynvml.NVML_CLOCK_SM, 1),
        ("max_clock_mhz", pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM, 1),
    ):
        with contextlib.suppress(pynvml.NVMLError):
            found[name] = ask(gpu, *clock) / unit
    return found


def _gpus_of_driver() -> int:
    """The GPUs of this job by NVML; 0 where there is no driver, or they are hidden on purpose."""
    found = 0
    if os.environ.get("CUDA_VISIBLE_DEVICES") in _HIDDEN:
        return found
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for number in range(pynvml.nvmlDeviceGetCount()):
            try:
                pynvml.nvmlDeviceGetHandleByIndex(number)
            except pynvml.NVMLError as error:
                # NVML counts those of other jobs, too. A lost one of ours is one all the same.
                if isinstance(error, pynvml.NVMLError_NoPermission):
                    continue
            found += 1
    return found


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return "it was built " + ("for ROCm" if torch.version.hip else "without CUDA")
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "it counts none"


def validate_kernels(number: int, gpu: Any, built_for: Sequence[str]) -> None:
    """Raise a GpuscaleError if torch has no kernels for a GPU; else its first kernel would fail.

    `gpu` is what `torch.cuda.get_device_properties()` returns, and `built_for` what
    `torch.cuda.get_arch_list()` does.
    """
    capability = (gpu.major, gpu.minor)
    if torch.version.hip is not None:
        # Its compute capability is 9.0 for gfx900, gfx908 and gfx90a; before 2.1 torch has no name.
        target = getattr(gpu, "gcnArchName", "")
        if not target or any(_runs_on_amd(each, target) for each in built_for):
            return
        has, variable = f"is {target}", "HIP_VISIBLE_DEVICES"
    else:
        if any(_runs_on_nvidia(each, capability) for each in built_for):
            return
        has = "has compute capability {}.{}".format(*capability)
        variable = "CUDA_VISIBLE_DEVICES"
    remedy = "a torch that was built for it"
    if torch.version.hip is None and capability < _FIRST_OF_CUDA_13:
        older = "torch 2.14 or older, built for CUDA 12.6"
        remedy = f"{older}, or torch 2.6, whose default build serves it"
    raise GpuscaleError(
        f"GPU {number} ({gpu.name}) {has}, and torch {torch.__version__} has kernels for "
        f"{', '.join(built_for) or 'no GPU'} only; install {remedy}, or leave the GPU out with "
        f"{variable}"
    )


def _runs_on_nvidia(architecture: str, capability: tuple[int, int]) -> bool:
    """True if `sm_80` (8.0 and 8.6) or `compute_80` (from 8.0) has kernels for this capability."""
    kind, _, version = architecture.partition("_")
    if not version.isdigit():
        # Such as sm_90a, which runs on 9.0 alone; it stands beside an sm_90.
        return False
    built_for = int(version[:-1]), int(version[-1])
    if kind == "compute":
        return built_for <= capability
    return kind == "sm" and built_for[0] == capability[0] and built_for[1] <= capability[1]


def _runs_on_amd(architecture: str, target: str) -> bool:
    """True if `gfx90a`, `gfx90a:xnack-` or `gfx9-4-generic` has kernels for this target.

    The target carries its features: `gfx90a:sramecc+:xnack-`. What a build does not name runs
    with either (LLVM's User Guide for AMDGPU, "Target ID" and "Generic Processors").
    """
    built_for, *wanted = architecture.split(":")
    processor, *features = target.split(":")
    if built_for.endswith("-generic"):
        own_name = built_for.removesuffix("-generic").replace("-", "")
        is_built_for = processor.startswith(_AMD_FAMILIES.get(built_for, own_name))
    else:
        is_built_for = processor == built_for
    return is_built_for and set(wanted) <= set(features)


def _cudnn_version() -> str | None:
    try:
        version = torch.backends.cudnn.version()
    except RuntimeError as error:
        # Of another cuDNN that LD_LIBRARY_PATH leads to, or a GPU that is too old for it.
        raise GpuscaleError(f"torch cannot use cuDNN: {error}") from None
    return None if version is None else str(version)


def _torchvision_version() -> str | None:
    try:
        import torchvision
    except (ImportError, RuntimeError):
        # torchvision raises RuntimeError beside a torch that it was not built for.
        return None
    return str(torchvision.__version__)


def _lightning_version() -> str | None:
    # Not by importing it, which takes seconds.
    try:
        return metadata.version("lightning")
    except metadata.PackageNotFoundError:
        return None


def probe(directory: str) -> None:
    """Be the rank of this node that the directory's NodeProbeRequest asks for."""
    die_with_parent()
    run_directory, rank = RunDirectory(path=Path(directory)), int(os.environ["RANK"])
    request = run_directory.probe_request.read()
    torch.set_num_threads(1)
    on_gpu = request.device == "cuda"
    where = cuda_device((0,) if on_gpu else (), 0)
    # Alone first: no rank waits for another while it computes.
    compute_s = tuple(_compute_times(on_gpu))
    patience = timedelta(seconds=request.timeout_s)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=patience)
    sends = tuple(_send_times(request, rank, dist.get_world_size(), where))
    seen = NodeProbe(host=socket.gethostname(), compute_s=compute_s, sends=sends)
    run_directory.probe(rank).write(seen)
    # No rank may leave that another needs: NCCL's sends come back before they are made, and the
    # first rank keeps the store that the others ask when they open a connection.
    if on_gpu:
        torch.cuda.synchronize(where)
    dist.all_reduce(torch.zeros(1))
    # A group that is taken down can hang (measure/worker/entry.py); everything is written.
    os._exit(0)


def _rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Every pair once, in rounds in which no node is in two pairs (the circle method)."""
    places = [*range(nodes), *([-1] if nodes % 2 else [])]
    table = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        table.append([(min(pair), max(pair)) for pair in pairs if min(pair) >= 0])
        places = [places[0], places[-1], *places[1:-1]]
    return table


def _compute_times(on_gpu: bool) -> Iterator[float]:
    size, devices = _CPU_MATRIX, [torch.device("cpu")]
    if on_gpu:
        size = _GPU_MATRIX
        devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    for device in devices:
        matrix = torch.rand(size, size, device=device)

        def work(matrix: torch.Tensor = matrix) -> None:
            # The read brings the result to the host, so that it is there.
            float(torch.mm(matrix, matrix)[0, 0].item())

        yield _shortest(work, _COMPUTATIONS)


def _send_times(
    request: NodeProbeRequest, rank: int, nodes: int, where: torch.device
) -> Iterator[SendTime]:
    message = torch.zeros(request.message_bytes // _BYTES_OF_A_FLOAT, device=where)
    receipt = torch.zeros(1, device=where)

    def send(peer: int) -> None:
        dist.send(message, peer)
        dist.recv(receipt, peer)
        float(receipt.item())

    def answer(peer: int) -> None:
        dist.recv(message, peer)
        dist.send(receipt, peer)

    for pairs in _rounds(nodes):
        dist.all_reduce(torch.zeros(1))
        for pair in pairs:
            if rank not in pair:
                continue
            peer = sum(pair) - rank
            # Each way in turn, the lower one first.
            for sender in pair:
                if sender == rank:
                    yield SendTime(to=peer, time_s=_shortest(partial(send, peer), request.repeats))
                else:
                    _shortest(partial(answer, peer), request.repeats)


def _shortest(work: Callable[[], None], times: int) -> float:
    """Seconds of the quickest of several times, after a first one that does not count."""
    work()
    return min(timeit.repeat(work, number=1, repeat=times))
