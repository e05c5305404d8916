"""The real sampling process and the real NVML binding, on a library written in C for it."""

import json
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest
from hosts import within_limit
from nvml import library as nvml
from sampling import Sampler, lines_of, sampled

from gpuscale.measure.telemetry.sampler import next_tick
from gpuscale.measure.telemetry.summary import TelemetryReport, summarize
from gpuscale.records.gpu_and_port_counters import NUMBERS

MIB = 1024 * 1024
# One more replay on each of five links at each look after the first, once a second.
FIVE_A_LOOK = range(5, 500, 5)
GPU_IS_LOST, DRIVER_NOT_LOADED, VERSION_MISMATCH, UNKNOWN = 15, 9, 18, 999

Sample = Callable[..., TelemetryReport]


@pytest.fixture(autouse=True)
def fake_driver(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the library records its calls, as `DEVICE FUNCTION`."""
    monkeypatch.setenv("FAKE_NVML_CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def asked(calls: Path, device: int) -> Counter[str]:
    lines = [line.split() for line in calls.read_text().splitlines()]
    return Counter(function for number, function in lines if number == str(device))


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    def of(*uuids: str, ticks: int = 5) -> TelemetryReport:
        return sampled(tmp_path / "samples.jsonl", dict.fromkeys(uuids), ticks)

    return of


def test_each_gpu_is_read_with_its_own_values_and_an_unknown_one_is_named(sample: Sample) -> None:
    report = sample(nvml.GPU_A, f"GPU-{nvml.GPU_B}", nvml.UNKNOWN_UUID)
    one, two, unknown = report.gpu_summaries
    assert report.absent is None
    assert one.samples == two.samples >= 5
    assert (one.uuid, one.name, one.absent) == (nvml.GPU_A, "Fake V100 A", ())
    # The prefix that NVML gives a UUID may be there or not.
    assert (two.uuid, two.name, two.absent) == (f"GPU-{nvml.GPU_B}", "Fake V100 B", ())
    assert one.values["utilization_mean"] == pytest.approx(0.9)
    assert one.values["memory_used_peak_bytes"] == 4096 * MIB
    assert one.values["power_mean_w"] == pytest.approx(250.0)
    assert one.values["sm_clock_mean_mhz"] == pytest.approx(1380.0)
    assert two.values["power_mean_w"] == pytest.approx(150.5)
    assert unknown.absent == (f"device: NVML knows no device with UUID {nvml.UNKNOWN_UUID}",)
    # No sample is older than the window's begin.
    amds = {name for name in NUMBERS if name.startswith("xgmi")}
    assert set(one.values) == set(NUMBERS) - amds - {"energy_j"}


def test_only_the_devices_of_the_run_are_asked_by_the_newest_calls_and_no_more_than_needed(
    sample: Sample, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Device 0 of the job is then NVML's device 1.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    (gpu,) = sample(nvml.GPU_B, ticks=20).gpu_summaries
    assert (gpu.name, gpu.samples >= 20) == ("Fake V100 B", True)
    assert {line.split()[0] for line in calls.read_text().splitlines()} == {"1"}
    functions = asked(calls, 1)
    assert {"fields", "event_reasons", "memory_v2"} <= set(functions)
    assert not set(functions) & {"power", "throttle_reasons", "memory", "nvlink_counter"}
    # The oldest binding that gpuscale takes does not have the newer call.
    newer = "temperature_v" if hasattr(pynvml, "nvmlDeviceGetTemperatureV") else "temperature"
    assert set(functions) & {"temperature", "temperature_v"} == {newer}
    assert 2 <= functions["pcie_width"] < functions["utilization"] / 2


def test_what_a_device_lacks_is_asked_once(sample: Sample, calls: Path) -> None:
    (gpu,) = sample(nvml.GPU_WITHOUT_POWER).gpu_summaries
    assert gpu.values["utilization_mean"] == 0.0
    lacks = ("power", "energy", "power limit", "NVLink", "NVLink errors", "ECC errors")
    assert gpu.absent == tuple(f"{label}: Not Supported" for label in lacks)
    known = {NUMBERS[name].label for name in gpu.values}
    assert not known & set(lacks)
    functions = asked(calls, 2)
    assert functions["power"] == 1
    assert functions["utilization"] >= 5


def test_a_lost_gpu_is_absent(sample: Sample, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The utilisation of a third tick is the last that is answered.
    monkeypatch.setenv("FAKE_NVML_FAIL", f"0:utilization:3:0:{GPU_IS_LOST}")
    lost, other = sample(nvml.GPU_A, nvml.GPU_B, ticks=6).gpu_summaries
    assert lost.samples == other.samples >= 6
    assert other.absent == ()
    assert lost.values["utilization_mean"] == pytest.approx(0.9)
    read = ("utilization", "memory", "power", "energy")
    assert lost.absent[:4] == tuple(f"{label}: GPU is lost" for label in read)
    functions = asked(calls, 0)
    assert (functions["utilization"], functions["energy"], functions["clock"]) == (3, 3, 2)


def test_a_passing_error_is_no_loss(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML_FAIL", f"1:utilization:2:4:{UNKNOWN}")
    (gpu,) = sample(nvml.GPU_B, ticks=6).gpu_summaries
    assert gpu.values["utilization_mean"] == pytest.approx(0.5)
    failed = ("memory", "power", "SM clock", "memory clock")
    assert gpu.absent == tuple(f"{label}: Unknown Error" for label in failed)


def test_in_mig_mode_no_counter_is_taken_for_that_of_an_instance(sample: Sample) -> None:
    gpu, *in_mig_mode = sample(nvml.GPU_A, nvml.MIG_DEVICE, nvml.GPU_IN_MIG_MODE).gpu_summaries
    assert gpu.absent == ()
    for device in in_mig_mode:
        assert (device.samples, device.values) == (0, {})
        assert device.absent == ("device: in MIG mode, in which NVML counts for the whole GPU",)


def test_a_driver_without_the_newer_calls_is_asked_by_the_older(
    sample: Sample, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = nvml.compile_driver(tmp_path, "-DOLD_DRIVER")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(old))
    gpu, hot, linked = sample(nvml.GPU_A, nvml.HOT_GPU, nvml.GPU_WITH_INACTIVE_LINK).gpu_summaries
    # The older call counts the 256 MiB that the driver keeps for itself.
    assert gpu.values["memory_used_peak_bytes"] == (4096 + 256) * MIB
    # The older call smooths over a second, here to a tenth less.
    assert gpu.values["power_mean_w"] == pytest.approx(225.0)
    assert gpu.absent == hot.absent == linked.absent == ()
    assert hot.values["temperature_max_c"] == 91
    assert hot.clock_event_reasons == {"hw_thermal_slowdown": 1.0}
    assert linked.values["nvlink_errors"] in FIVE_A_LOOK
    # Once for the power, and for each of six links by both newer forms of errors, never again.
    assert asked(calls, 0)["fields"] == 13


def test_links_errors_and_slowdowns_of_each_gpu_are_its_own(sample: Sample) -> None:
    faulty = (nvml.GPU_ON_FOUR_LANES, nvml.GPU_WITH_ECC_ERRORS, nvml.HOT_GPU)
    gpus = sample(nvml.GPU_A, *faulty, nvml.GPU_WITH_INACTIVE_LINK).gpu_summaries
    well, narrow, ecc, hot, linked = gpus
    expected = {"memory_clock_mean_mhz": 877, "temperature_max_c": 45, "power_limit_w": 300}
    expected |= {"pcie_generation": 3, "pcie_max_generation": 3, "nvlink_active_min": 6}
    expected |= {"pcie_width": 16, "pcie_max_width": 16}
    expected |= {"nvlink_errors": 0, "ecc_corrected": 0, "ecc_uncorrected": 0}
    assert {name: well.values.get(name) for name in expected} == expected
    assert well.clock_event_reasons == {}
    assert (narrow.values["pcie_width"], narrow.values["pcie_max_width"]) == (4, 16)
    assert hot.clock_event_reasons == {"hw_thermal_slowdown": 1.0}
    assert hot.values["temperature_max_c"] == 91
    # Two uncorrected errors are older than the run; each further look counts one more corrected.
    assert (ecc.values["ecc_corrected"] >= 1, ecc.values["ecc_uncorrected"]) == (True, 0)
    assert linked.values["nvlink_active_min"] == 5
    assert linked.values["nvlink_errors"] in FIVE_A_LOOK
    assert {gpu.absent for gpu in gpus} == {()}


@pytest.mark.skipif(
    not hasattr(pynvml, "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS"),
    reason="the binding is older than Blackwell",
)
def test_the_links_of_a_blackwell_gpu_count_errors_in_their_own_way(sample: Sample) -> None:
    (gpu,) = sample(nvml.BLACKWELL_GPU).gpu_summaries
    assert gpu.values["nvlink_active_min"] == 5
    assert gpu.values["nvlink_errors"] in FIVE_A_LOOK
    assert gpu.absent == ()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (DRIVER_NOT_LOADED, "no NVIDIA driver: its kernel module is not loaded"),
        (VERSION_MISMATCH, "NVML does not start: RM has detected an NVML/RM version mismatch."),
    ],
)
def test_a_driver_that_does_not_start_is_recorded_as_absent(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    monkeypatch.setenv("FAKE_NVML_INIT", str(code))
    report = sample(nvml.GPU_A)
    assert (report.gpu_summaries, report.absent) == ((), reason)


def test_a_binding_that_cannot_be_imported_is_recorded_as_absent(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError('a broken binding')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert sample(nvml.GPU_A).absent == "a broken binding"


def test_every_line_can_be_read_while_the_sampler_writes(tmp_path: Path) -> None:
    output = tmp_path / "samples.jsonl"
    sampler = Sampler({nvml.GPU_A: None}, output, 0.01)
    try:
        assert within_limit(lambda: lines_of(output) > 3)
        header, *ticks = output.read_text().splitlines()[:4]
    finally:
        assert sampler.stop() == 0
    assert output.read_text().endswith("}\n")
    assert json.loads(header)[nvml.GPU_A]["name"] == "Fake V100 A"
    for tick in map(json.loads, ticks):
        answers = tick["readings"][nvml.GPU_A]["answers"]
        assert answers["utilization"] == 0.9
        # The counter of the library is that of 250 W since 1970.
        assert answers["energy_j"] == pytest.approx(250 * tick["time_s"], rel=1e-6)


def test_a_hanging_sampler_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML_HANG", "1")
    output = tmp_path / "samples.jsonl"
    sampler = Sampler({nvml.GPU_A: None}, output, hang_s=1)
    assert sampler.process.wait(240) == -signal.SIGALRM
    sampler.pipe.close()
    absent = summarize(output, [(0, time.time())]).absent
    assert absent == "the GPU sampler ended before its first sample, as after a hang in the driver"


@pytest.mark.parametrize(
    ("tick", "elapsed_s", "expected"),
    [
        (0, 0.002, 1),
        (7, 0.702, 8),  # on time: late by the reading, not by what went before
        (7, 0.699, 8),  # woken a moment early: the tick is not taken twice
        (7, 1.234, 13),  # a reading of half a second: the missed ticks are left out
    ],
)
def test_ticks_lie_on_a_fixed_grid(tick: int, elapsed_s: float, expected: int) -> None:
    assert next_tick(tick, elapsed_s, 0.1) == expected
