"""GPUs that torch cannot use are told, and the CPU is not measured in their place."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from measuring import BENCH_CASES, run_pytest
from nvml.library import BLACKWELL_GPU, GPU_A, GPU_B, GPU_WITHOUT_POWER, compile_driver

from gpuscale.base.errors import GpuscaleError
from gpuscale.measure.run_directory import RecordFile
from gpuscale.measure.worker import description
from gpuscale.measure.worker.machine import validate_kernels
from gpuscale.plugin.options import parse_options
from gpuscale.plugin.terminal import header_lines
from gpuscale.records import Environment
from gpuscale.reports.phrases import software_text

CUDA_12_6 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
ROCM_6_3 = ["gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100"]
CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_120", "compute_120"]


def nvidia_gpu(major: int, minor: int) -> SimpleNamespace:
    return SimpleNamespace(name="Some model", major=major, minor=minor)


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
def test_a_gpu_with_kernels_is_measured(capability: tuple[int, int], built_for: list[str]) -> None:
    validate_kernels(0, nvidia_gpu(*capability), built_for)


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
        validate_kernels(2, nvidia_gpu(*capability), built_for)
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("target", "built_for", "is_served"),
    [
        ("gfx90a:sramecc+:xnack-", ROCM_6_3, True),
        ("gfx950:sramecc+:xnack-", ROCM_6_3, False),
        ("gfx90a:sramecc+:xnack-", ["gfx90a:xnack-"], True),
        ("gfx90a:sramecc+:xnack-", ["gfx90a:xnack+", "gfx942"], False),
        # Generic builds, each for its own family.
        ("gfx906:sramecc+:xnack-", ["gfx9-generic"], True),
        ("gfx90a:sramecc+:xnack-", ["gfx9-generic", "gfx9-4-generic"], False),
        ("gfx950:sramecc+:xnack-", ["gfx9-4-generic"], True),
        ("gfx942:sramecc+:xnack-", ["gfx9-generic", "gfx11-generic"], False),
        ("gfx1036", ["gfx10-3-generic"], True),
        ("gfx1010:xnack-", ["gfx10-3-generic"], False),
        # A torch that does not name it is not doubted.
        ("", ["gfx90a"], True),
    ],
)
def test_a_gpu_of_amd_is_judged_by_its_target_and_not_by_a_compute_capability(
    target: str, built_for: list[str], is_served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.3.42134-a9a80e791")
    gpu = SimpleNamespace(name="AMD Instinct", major=9, minor=0, gcnArchName=target)
    if is_served:
        validate_kernels(0, gpu, built_for)
        return
    with pytest.raises(GpuscaleError) as caught:
        validate_kernels(0, gpu, built_for)
    said = str(caught.value)
    assert f"GPU 0 (AMD Instinct) is {target}, and torch" in said
    assert f"kernels for {', '.join(built_for)} only" in said
    assert "compute capability" not in said
    assert "CUDA" not in said.replace(torch.__version__, "")


def test_amd_gpus_have_rocm_and_no_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(
        name="AMD Instinct MI250X",
        major=9,
        minor=0,
        gcnArchName="gfx90a:sramecc+:xnack-",
        uuid="65303434-3830-3136-3839-323537666234",
        total_memory=64 << 30,
    )
    monkeypatch.setattr(torch.version, "hip", "6.3.42134-a9a80e791")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 3_003_000)
    for name, value in {
        "is_available": True,
        "init": None,
        "device_count": 1,
        "get_device_properties": gpu,
        "get_arch_list": ROCM_6_3,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 21, 5))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    for function in ("die_with_parent", "end_at_interrupt"):
        monkeypatch.setattr(description, function, lambda: None)
    set_here = ("RCCL_X", "HSA_X", "HIP_X", "ROCR_X", "MIOPEN_X", "MPICH_X", "CXI_X", "NCCL_X")
    for name in set_here:
        monkeypatch.setenv(name, "1")
    path = tmp_path / "environment.json"
    description.describe_to(str(path), "auto")
    found = RecordFile(path, Environment).read()
    assert (found.device, found.gpu_names) == ("rocm", ("AMD Instinct MI250X",))
    assert found.rocm_version == "6.3.42134-a9a80e791"
    assert (found.rccl_version, found.miopen_version) == ("2.21.5", "3003000")
    assert (found.cuda_version, found.cudnn_version, found.nccl_version) == (None, None, None)
    assert found.variables.keys() >= {*set_here}
    said = software_text(found)
    assert "ROCm 6.3.42134-a9a80e791, RCCL 2.21.5" in said
    assert "CUDA" not in said
    options = parse_options({"gpus": "1"})
    assert "1× AMD Instinct MI250X, RCCL (device: rocm)" in next(header_lines(found, options, None))


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
        "from gpuscale.measure.worker.machine import _gpus_of_driver\n"
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
    script = "from gpuscale.measure.worker.machine import known_to_driver; print(known_to_driver())"
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
    firmware = [{"firmware": f"VBIOS 88.00.0{number}, GSP 575.57.08"} for number in (0, 1)]
    assert found == {
        GPU_A: {
            "smi": "NVML",
            "smi_index": 0,
            "pci_address": "00000000:00:00.0",
            **limits,
            **firmware[0],
        },
        GPU_B: {
            "smi": "NVML",
            "smi_index": 2,
            "pci_address": "00000000:11:00.0",
            **limits,
            **firmware[1],
        },
        GPU_WITHOUT_POWER: found[GPU_WITHOUT_POWER],
        BLACKWELL_GPU: found[BLACKWELL_GPU],
    }
    assert limits.keys() - found[GPU_WITHOUT_POWER] == {"power_limit_w"}
    assert limits.keys() - found[BLACKWELL_GPU] == {"application_clock_mhz"}
