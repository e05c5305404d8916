"""What torch, gloo, CUDA and NCCL say is recognised, in the words of each version."""

import json

import pytest
from capture_texts import SAMPLES

from gpuscale.base import known_error_messages as messages

OF_TORCH = json.loads(SAMPLES.read_text())
TABLES = {"lost peer": messages.LOST_PEER_LINES, "out of memory": messages.OUT_OF_MEMORY}
NCCL = "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, "


def test_texts_of_each_supported_torch_are_there() -> None:
    assert {version.rpartition(".")[0] for version in OF_TORCH} >= {"2.6", "2.11", "2.14", "2.15"}


@pytest.mark.parametrize("version", OF_TORCH)
def test_what_a_torch_says_on_a_cpu_is_recognised(version: str) -> None:
    for kind, samples in OF_TORCH[version].items():
        said = {name: text for name, text in samples.items() if text is not None}
        assert len(said) > len(samples) / 2
        unknown = [text for text in said.values() if not TABLES[kind].search(text)]
        assert unknown == [], kind
    lost = filter(None, OF_TORCH[version]["lost peer"].values())
    assert not any(map(messages.OUT_OF_MEMORY.search, lost))


@pytest.mark.parametrize(
    ("table", "text", "report"),
    [
        ("SYSTEM", "RuntimeError: CUDA error: uncorrectable ECC error encountered",
         "jade-hpc-gpu/jade-hpc-gpu.github.io/issues/194"),
        ("SYSTEM", "RuntimeError: CUDA error: unspecified launch failure",
         "pytorch/pytorch/issues/74235"),
        ("SYSTEM", "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
         "pytorch/pytorch/issues/100691"),
        ("SYSTEM", f"{NCCL}remote process exited or there was a network error, NCCL version 2.21.5 "
         "ncclRemoteError: A call failed possibly due to a network error",
         "NVIDIA/nccl/issues/2076"),
        ("SYSTEM", f"{NCCL}internal error, NCCL version 2.14.3 ncclInternalError: Internal check "
         "failed. Last error: Net : Connection closed by remote peer", "NVIDIA/nccl/issues/1514"),
        ("SYSTEM", f"{NCCL}unhandled cuda error, NCCL version 2.20.5 ncclUnhandledCudaError: Call "
         "to CUDA function failed.", "NVIDIA/nccl/issues/1410"),
        ("LOST_PEER_LINES", f"{NCCL}remote process exited or there was a network error",
         "NVIDIA/nccl/issues/2076"),
        ("NCCL_ERROR", f"{NCCL}internal error", "NVIDIA/nccl/issues/1514"),
        # The watchdog of NCCL, by which a hang ends.
        ("LOST_PEER_LINES", "after throwing an instance of 'c10::DistBackendError'",
         "sgl-project/sglang/issues/1693"),
        # torchrun, ended because something else failed first.
        ("LOST_PEER_LINES", "torch.distributed.elastic.multiprocessing.api.SignalException: "
         "Process 293812 got signal: 15", "NVIDIA/nvidia-resiliency-ext/issues/18"),
        ("OUT_OF_MEMORY", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB",
         "murong-xu/CADS/issues/4"),
        ("OUT_OF_MEMORY", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate",
         "pytorch/pytorch/issues/16417"),
        ("OUT_OF_MEMORY", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling",
         "QwenLM/Qwen3/issues/873"),
        ("OUT_OF_MEMORY", "NCCL WARN Cuda failure 'out of memory'",
         "PKU-YuanGroup/Open-Sora-Plan/issues/386"),
        ("NO_ENGINE", "RuntimeError: GET was unable to find an engine to execute this computation",
         "pytorch/pytorch/issues/108645"),
    ],
)  # fmt: skip
def test_reported_cuda_and_nccl_texts_are_recognised(table: str, text: str, report: str) -> None:
    assert getattr(messages, table).search(text), f"https://github.com/{report}"


def test_a_wrong_index_on_a_gpu_is_a_fault_of_the_case() -> None:
    # https://github.com/googlecolab/colabtools/issues/4326
    text = "RuntimeError: CUDA error: device-side assert triggered"
    assert not messages.SYSTEM.search(text)
