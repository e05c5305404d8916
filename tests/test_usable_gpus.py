"""GPUs that torch cannot use are told, and the CPU is not measured in their place."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from measuring import BENCH_CASES, run_pytest
from nvml.library import BLACKWELL_GPU, GPU_A, GPU_B, GPU_WITHOUT_POWER, compile_driver

from gpuscale.errors import GpuscaleError
from gpuscale.worker.machine import _cudnn_version, refuse_missing_kernels

CUDA_12_6 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "built_for"),
    [
        ((7, 0), CUDA_12_6),
        ((8, 0), CUDA_13),
        # Binaries run on later minors of their major, and PTX on all that comes after.
        ((8, 9), CUDA_13),
        ((12, 1), CUDA_13),
        ((13, 0), CUDA_13),
    ],
)
def test_a_gpu_that_torch_has_kernels_for_is_measured(
    capability: tuple[int, int], built_for: list[str]
) -> None:
    refuse_missing_kernels(0, "a GPU", capability, built_for)


@pytest.mark.parametrize(
    ("capability", "built_for", "remedy"),
    [
        ((7, 0), CUDA_13, "built for CUDA 12.6, or torch 2.6"),
        ((11, 0), CUDA_12_6, "install a torch that was built for it"),
        ((10, 0), ["sm_90a", "sm_100a"], "install a torch that was built for it"),
    ],
)
def test_a_gpu_without_kernels_is_refused_before_its_first_kernel(
    capability: tuple[int, int], built_for: list[str], remedy: str
) -> None:
    with pytest.raises(GpuscaleError, match=r"GPU 2 \(Some model\)") as caught:
        refuse_missing_kernels(2, "Some model", capability, built_for)
    assert remedy in str(caught.value)


def test_a_cudnn_that_torch_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def version() -> int:
        raise RuntimeError("cuDNN version incompatibility: compiled against (9, 1), found (8, 9)")

    monkeypatch.setattr(torch.backends.cudnn, "version", version)
    with pytest.raises(GpuscaleError, match=r"torch cannot use cuDNN: .*found \(8, 9\)"):
        _cudnn_version()


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [((), True), (("--device", "cuda"), True), (("--device", "cpu"), False)],
)
def test_a_session_refuses_to_measure_the_cpu_beside_gpus_unless_it_is_asked_to(
    tmp_path: Path, options: tuple[str, ...], is_refused: bool
) -> None:
    session = run_pytest(
        tmp_path,
        str(BENCH_CASES / "test_mnist_cnn.py"),
        # The machine is looked at before tests are collected.
        *("--gpus", "1", "--runs", "1", "--strategy", "ddp", "--collect-only", *options),
        environment=(
            f"LD_LIBRARY_PATH={compile_driver(tmp_path)}",
            "CUDA_VISIBLE_DEVICES=0",
            "FAKE_NVML_FLEET=0,1",
        ),
    )
    assert ("cannot use the 2 GPUs here" in session.output) is is_refused
    assert ("measure CPU ranks with --device cpu" in session.output) is is_refused
    assert session.exit_code == (4 if is_refused else 0), session.output
    assert "Traceback" not in session.output


def test_gpus_that_are_hidden_or_given_to_other_jobs_are_not_ours_to_use(tmp_path: Path) -> None:
    # 98 is one of another job, 99 a lost one of ours.
    asked = {("0", "0,1"): 2, ("NoDevFiles", "0,1"): 0, ("0", "98,98"): 0, ("0", "98,0,99"): 2}
    script = (
        "import os\n"
        "from gpuscale.worker.machine import _gpus_of_driver\n"
        f"for visible, fleet in {[*asked]}:\n"
        "    os.environ.update(CUDA_VISIBLE_DEVICES=visible, FAKE_NVML_FLEET=fleet)\n"
        "    print(_gpus_of_driver())\n"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(compile_driver(tmp_path))}
    answer = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert [int(line) for line in answer.stdout.split()] == [*asked.values()]


def test_a_gpu_is_named_as_nvidia_smi_names_it_and_has_its_limits(tmp_path: Path) -> None:
    script = "from gpuscale.worker.machine import known_to_driver; print(known_to_driver())"
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(compile_driver(tmp_path)),
        # The second one cannot be reached, and the last two lack a limit.
        "FAKE_NVML_FLEET": "0,99,1,2,9",
    }
    answer = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    limits = {"power_limit_w": 300.0, "application_clock_mhz": 1312.0, "max_clock_mhz": 1530.0}
    found = ast.literal_eval(answer.stdout)
    assert found == {
        GPU_A: {"smi_index": 0, "pci_address": "00000000:00:00.0", **limits},
        GPU_B: {"smi_index": 2, "pci_address": "00000000:11:00.0", **limits},
        GPU_WITHOUT_POWER: found[GPU_WITHOUT_POWER],
        BLACKWELL_GPU: found[BLACKWELL_GPU],
    }
    assert limits.keys() - found[GPU_WITHOUT_POWER] == {"power_limit_w"}
    assert limits.keys() - found[BLACKWELL_GPU] == {"application_clock_mhz"}
