"""Builds the NVML library of the tests, and names the devices in it."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "fake_nvml.c"
# As CUDA gives them, without NVML's prefix.
GPU_A = "00000000-aaaa-4000-8000-000000000000"
GPU_B = "11111111-bbbb-4000-8000-000000000001"
GPU_WITHOUT_POWER = "22222222-cccc-4000-8000-000000000002"
GPU_IN_MIG_MODE = "33333333-dddd-4000-8000-000000000003"
MIG_DEVICE = "44444444-eeee-4000-8000-000000000004"
GPU_ON_FOUR_LANES = "55555555-ffff-4000-8000-000000000005"
GPU_WITH_ECC_ERRORS = "66666666-aaaa-4000-8000-000000000006"
HOT_GPU = "77777777-bbbb-4000-8000-000000000007"
GPU_WITH_INACTIVE_LINK = "88888888-cccc-4000-8000-000000000008"
BLACKWELL_GPU = "aaaaaaaa-dddd-4000-8000-00000000000a"
UNKNOWN_UUID = "99999999-9999-4000-8000-000000000009"


def compile_driver(folder: Path, *flags: str) -> Path:
    """The folder, with `libnvidia-ml.so.1` in it; skips the test where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the NVML library of the test with")
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", str(library)]
    subprocess.run([*command, str(SOURCE)], check=True)
    return folder
