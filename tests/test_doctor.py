"""`gpuscale doctor` as a user runs it, on the NVML library of the tests."""

import ctypes
import json
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import python

from gpuscale.measure.telemetry.doctor import ExaminedGpu
from gpuscale.records.gpu_and_port_counters import Reading


@pytest.fixture
def with_driver(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))


def doctor(*arguments: str, **variables: str) -> tuple[int, str]:
    """The exit code and the output of a doctor who finds the driver by these variables."""
    result = python("-m", "gpuscale", "doctor", *arguments, **variables)
    assert result.stderr == ""
    return result.returncode, result.stdout


def problems_of(devices: str, **variables: str) -> list[str]:
    """The problems found on a machine with these devices of the library."""
    code, text = doctor("--format", "json", FAKE_NVML_FLEET=devices, **variables)
    problems: list[str] = json.loads(text)["problems"]
    assert code == (1 if problems else 0)
    return problems


def test_a_machine_without_a_driver_has_no_problem_and_says_so() -> None:
    with suppress(OSError):
        ctypes.CDLL("libnvidia-ml.so.1")
        pytest.skip("this machine has an NVIDIA driver")
    code, text = doctor()
    assert code == 0
    assert "driver    no NVIDIA driver: libnvidia-ml.so.1 not found" in text
    assert text.endswith("no GPU to look at: gpuscale measures CPU ranks here, and says so\n")


@pytest.mark.parametrize(
    ("answer", "code", "shown"),
    [("18", 1, "NVML/RM version mismatch"), ("9", 0, "its kernel module is not loaded")],
)
@pytest.mark.usefixtures("with_driver")
def test_a_driver_that_does_not_work_is_a_problem_and_one_that_is_not_loaded_is_none(
    answer: str, code: int, shown: str
) -> None:
    found, text = doctor(FAKE_NVML_INIT=answer)
    assert (found, shown in text) == (code, True)
    assert ("reload it, or reboot after an update" in text) is (code == 1)


def test_a_gpu_that_has_just_gone_idle_is_not_busy() -> None:
    # Its utilisation is still that of the last second, and its link already at rest.
    for reasons, is_busy in (((), True), (("gpu_idle",), False)):
        reading = Reading(answers={"utilization": 0.9, "clock_event_reasons": reasons})
        assert ExaminedGpu(number=0, reading=reading).is_busy is is_busy
    assert not ExaminedGpu(number=0).is_busy


@pytest.mark.usefixtures("with_driver")
def test_a_gpu_of_another_job_is_no_problem_and_one_that_answers_nothing_is() -> None:
    assert problems_of("0,98,1") == []
    assert "GPU 2  Fake V100 B" in doctor(FAKE_NVML_FLEET="0,98,1")[1]
    lost = problems_of("0,1", FAKE_NVML_FAIL="1:utilization:0:0:15")
    assert len(lost) == 1
    assert lost[0].startswith("GPU 1 cannot be reached (GPU is lost): look for XID messages")


@pytest.mark.usefixtures("with_driver")
def test_json_has_what_each_gpu_answers_or_why_it_does_not() -> None:
    code, text = doctor("--format", "json", FAKE_NVML_FLEET="2")
    document = json.loads(text)
    assert (code, document["format"], document["version"]) == (0, "gpuscale-doctor", 1)
    (gpu,) = document["gpus"]
    assert gpu["uuid"] == "GPU-22222222-cccc-4000-8000-000000000002"
    assert gpu["reading"]["answers"]["pcie_max_generation"] == 3
    assert gpu["reading"]["absent"]["power_w"] == "Not Supported"
    assert not {"power_w", "ecc_uncorrected"} & set(gpu["reading"]["answers"])
    assert document["cpu_count"] >= 1
    assert document["node"]["load"]["cores"] >= 1
