"""GPUs that torch cannot use are told, and the CPU is not measured in their place."""

import ast
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from command_line import python
from measuring import run_pytest, write_case
from nvml.library import BLACKWELL_GPU, GPU_A, GPU_B, GPU_WITHOUT_POWER

from gpuscale.base.errors import GpuscaleError
from gpuscale.measure.worker.gpus import validate_kernels

CUDA_12_6 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
ROCM_6_3 = ["gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100"]
CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "built_for", "is_served"),
    [
        ((7, 0), CUDA_12_6, True),
        ((8, 0), CUDA_13, True),
        # Binaries run on later minors of their major, and PTX on all that comes after.
        *(((8, 9), CUDA_13, True), ((12, 1), CUDA_13, True), ((13, 0), CUDA_13, True)),
        *(((7, 0), CUDA_13, False), ((11, 0), CUDA_12_6, False)),
        ((10, 0), ["sm_90a", "sm_100a"], False),
    ],
)
def test_a_gpu_without_kernels_is_refused_before_its_first_kernel(
    capability: tuple[int, int], built_for: list[str], is_served: bool
) -> None:
    gpu = SimpleNamespace(name="Some model", major=capability[0], minor=capability[1])
    refused = pytest.raises(GpuscaleError, match=r"GPU 2 \(Some model\).*install a torch that was")
    with nullcontext() if is_served else refused:
        validate_kernels(2, gpu, built_for)


@pytest.mark.parametrize(
    ("target", "built_for", "is_served"),
    [
        ("gfx90a:sramecc+:xnack-", ROCM_6_3, True),
        ("gfx950:sramecc+:xnack-", ROCM_6_3, False),
        ("gfx90a:sramecc+:xnack-", ["gfx90a:xnack-"], True),
        ("gfx90a:sramecc+:xnack-", ["gfx90a:xnack+", "gfx942"], False),
        ("gfx950:sramecc+:xnack-", ["gfx9-4-generic"], True),
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


@pytest.mark.parametrize(("options", "is_refused"), [((), True), (("--device", "cpu"), False)])
def test_a_session_refuses_to_measure_the_cpu_beside_gpus_unless_it_is_asked_to(
    tmp_path: Path, driver: Path, options: tuple[str, ...], is_refused: bool
) -> None:
    write_case(tmp_path, "Case = Tiny")
    # The machine is looked at before tests are collected.
    asked = ("--gpus", "1", "--runs", "1", "--strategy", "ddp", "--collect-only", *options)
    there = {"LD_LIBRARY_PATH": str(driver), "FAKE_NVML_FLEET": "0,1"}
    session = run_pytest(tmp_path, *asked, **there, CUDA_VISIBLE_DEVICES="0")
    assert ("cannot use the 2 GPUs here" in session.output) is is_refused
    assert ("measure CPU ranks with --device cpu" in session.output) is is_refused
    assert session.exit_code == (4 if is_refused else 0), session.output
    assert "Traceback" not in session.output


# 98 is a GPU of another job, 99 a lost one of ours.
OURS = {("0", "0,1"): 2, ("NoDevFiles", "0,1"): 0, ("0", "98,98"): 0, ("0", "98,0,99"): 2}


@pytest.fixture(scope="module")
def told(driver: Path) -> list[str]:
    """What a process with the driver says of these fleets, and last of a machine's GPUs."""
    script = (
        "import os\n"
        "from gpuscale.measure.worker.gpus import _gpus_of_driver, known_to_driver\n"
        f"for visible, fleet in {[*OURS]}:\n"
        "    os.environ.update(CUDA_VISIBLE_DEVICES=visible, FAKE_NVML_FLEET=fleet)\n"
        "    print(_gpus_of_driver())\n"
        # The second one cannot be reached, and the last two lack a limit.
        "os.environ['FAKE_NVML_FLEET'] = '0,99,1,2,9'\n"
        "print(known_to_driver())\n"
    )
    return python("-c", script, LD_LIBRARY_PATH=str(driver)).stdout.splitlines()


def test_gpus_that_are_hidden_or_given_to_other_jobs_are_not_ours_to_use(told: list[str]) -> None:
    assert [int(line) for line in told[:-1]] == [*OURS.values()]


def test_a_gpu_is_named_as_nvidia_smi_names_it_and_has_its_limits(told: list[str]) -> None:
    limits = {"power_limit_w": 300.0, "application_clock_mhz": 1312.0, "max_clock_mhz": 1530.0}
    found = ast.literal_eval(told[-1])
    assert found.keys() == {GPU_A, GPU_B, GPU_WITHOUT_POWER, BLACKWELL_GPU}
    for uuid, index, number, bus in ((GPU_A, 0, 0, "00"), (GPU_B, 2, 1, "11")):
        place = {"smi": "NVML", "smi_index": index, "pci_address": f"00000000:{bus}:00.0"}
        firmware = f"VBIOS 88.00.0{number}, GSP 575.57.08"
        assert found[uuid] == {**place, "partition": None, "firmware": firmware, **limits}
    assert limits.keys() - found[GPU_WITHOUT_POWER] == {"power_limit_w"}
    assert limits.keys() - found[BLACKWELL_GPU] == {"application_clock_mhz"}
