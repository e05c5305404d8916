"""The real sampling process and the real NVML binding, on a library written in C for it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest
from builders import environment, request, run
from changing import replace
from commands import is_living
from nvml.library import (
    BLACKWELL_GPU,
    GPU_A,
    GPU_B,
    GPU_IN_MIG_MODE,
    GPU_ON_FOUR_LANES,
    GPU_WITH_ECC_ERRORS,
    GPU_WITH_INACTIVE_LINK,
    GPU_WITHOUT_POWER,
    HOT_GPU,
    MIG_DEVICE,
    UNKNOWN_UUID,
    compile_driver,
)

from gpuscale.base.counters import NUMBERS
from gpuscale.measure.run_directory import Sampler
from gpuscale.measure.telemetry.sampler import next_tick
from gpuscale.measure.telemetry.summary import TelemetryReport, sample_run, summarize
from gpuscale.records import GpuDevice, Window

MIB = 1024 * 1024
# One more replay on each of five links at each look after the first, once a second.
FIVE_A_LOOK = range(5, 500, 5)
GPU_IS_LOST, DRIVER_NOT_LOADED, VERSION_MISMATCH, UNKNOWN = 15, 9, 18, 999

Build = Callable[..., Path]
Sample = Callable[..., TelemetryReport]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles the library with some flags; gives the folder that it lies in."""
    return lambda *flags: compile_driver(tmp_path_factory.mktemp("nvml"), *flags)


@pytest.fixture(scope="session")
def driver(build: Build) -> Path:
    return build()


@pytest.fixture
def fake_driver(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)


def lines_of(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


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
    """Samples the devices for some ticks and summarises all of them."""

    def sampled(*uuids: str, ticks: int = 5) -> TelemetryReport:
        output = tmp_path / "samples.jsonl"
        began = time.time()
        sampler = Sampler(addresses=dict.fromkeys(uuids), output=output, interval_s=0.01)
        try:
            wait_until(
                lambda: lines_of(output) > ticks or not is_living(sampler.pid),
                f"the sampler had taken {ticks} samples or had ended",
            )
        finally:
            sampler.stop()
        return summarize(output, uuids=uuids, intervals=[(began, time.time())])

    return sampled


@pytest.mark.usefixtures("fake_driver")
def test_each_gpu_is_read_with_its_own_values_and_an_unknown_one_is_named(sample: Sample) -> None:
    report = sample(GPU_A, f"GPU-{GPU_B}", UNKNOWN_UUID)
    one, two, unknown = report.gpu_summaries
    assert (report.absent, report.driver_version) == (None, "575.57.08")
    assert one.samples == two.samples >= 5
    assert (one.uuid, one.name, one.absent) == (GPU_A, "Fake V100 A", ())
    # The prefix that NVML gives a UUID may be there or not.
    assert (two.uuid, two.name, two.absent) == (f"GPU-{GPU_B}", "Fake V100 B", ())
    assert one.values["utilization_mean"] == pytest.approx(0.9)
    assert one.values["memory_used_peak_bytes"] == 4096 * MIB
    assert one.values["power_mean_w"] == pytest.approx(250.0)
    assert one.values["sm_clock_mean_mhz"] == pytest.approx(1380.0)
    assert two.values["power_mean_w"] == pytest.approx(150.5)
    assert unknown.absent == (f"device: NVML knows no device with UUID {UNKNOWN_UUID}",)
    # No sample is older than the window's begin, and Blackwell counts what this GPU does not.
    amds = {name for name in NUMBERS if name.startswith("xgmi")}
    assert set(one.values) == set(NUMBERS) - amds - {"energy_j", "nvlink_effective_errors"}


@pytest.mark.parametrize(
    ("flags", "offset_s", "utilization", "power_w"),
    [
        # A driver that offers the power of the moment, which is not smoothed.
        ([], "0", 0.45, 250.0),
        (["-DOLD_DRIVER"], "0", 0.45, 125.0),
        # Samples with times of another clock than ours are left alone.
        ([], "86400", 0.9, 250.0),
    ],
)
def test_what_the_driver_sampled_itself_goes_before_readings(
    build: Build,
    sample: Sample,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    offset_s: str,
    utilization: float,
    power_w: float,
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build(*flags)))
    monkeypatch.setenv("FAKE_NVML_SAMPLES", offset_s)
    (gpu,) = sample(GPU_A).gpu_summaries
    assert gpu.values["utilization_mean"] == pytest.approx(utilization)
    assert gpu.windows[0].values["utilization_mean"] == pytest.approx(utilization)
    assert gpu.values["power_mean_w"] == pytest.approx(power_w)
    assert gpu.absent == ()


@pytest.mark.usefixtures("fake_driver")
def test_only_the_devices_of_the_run_are_asked_by_the_newest_calls_and_no_more_than_needed(
    sample: Sample, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Device 0 of the job is then NVML's device 1.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    (gpu,) = sample(GPU_B, ticks=20).gpu_summaries
    assert (gpu.name, gpu.samples >= 20) == ("Fake V100 B", True)
    assert {line.split()[0] for line in calls.read_text().splitlines()} == {"1"}
    functions = asked(calls, 1)
    assert {"fields", "event_reasons", "memory_v2"} <= set(functions)
    assert not set(functions) & {"power", "throttle_reasons", "memory", "nvlink_counter"}
    # The oldest binding that gpuscale takes does not have the newer call.
    newer = "temperature_v" if hasattr(pynvml, "nvmlDeviceGetTemperatureV") else "temperature"
    assert set(functions) & {"temperature", "temperature_v"} == {newer}
    # Once a second and at the end.
    assert 2 <= functions["pcie_width"] < functions["utilization"] / 2


@pytest.mark.usefixtures("fake_driver")
def test_what_a_device_lacks_is_asked_once(sample: Sample, calls: Path) -> None:
    (gpu,) = sample(GPU_WITHOUT_POWER).gpu_summaries
    assert gpu.values["utilization_mean"] == 0.0
    lacks = (
        "power",
        "energy",
        "power limit",
        "NVLink",
        "NVLink errors",
        "ECC errors",
        "XID events",
    )
    assert gpu.absent == tuple(f"{label}: Not Supported" for label in lacks)
    known = {NUMBERS[name].label for name in gpu.values}
    assert (known & set(lacks), gpu.xids) == (set(), None)
    functions = asked(calls, 2)
    assert functions["power"] == 1
    assert functions["utilization"] >= 5


@pytest.mark.usefixtures("fake_driver")
def test_a_lost_gpu_is_absent_from_then_on_and_the_others_go_on(
    sample: Sample, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The utilisation of a third tick is the last that is answered.
    monkeypatch.setenv("FAKE_NVML_FAIL", f"0:utilization:3:0:{GPU_IS_LOST}")
    monkeypatch.setenv("FAKE_NVML_XID", "0:79")
    lost, other = sample(GPU_A, GPU_B, ticks=6).gpu_summaries
    n = lost.samples
    assert n == other.samples >= 6
    assert (other.absent, other.xids) == ((), ())
    # The event is the driver's, and tells of the loss.
    assert lost.values["utilization_mean"] == pytest.approx(0.9)
    assert lost.xids == (79,)
    assert lost.absent[:4] == (
        f"utilization: GPU is lost (in {n - 3} of {n} samples)",
        f"memory: GPU is lost (in {n - 2} of {n} samples)",
        f"power: GPU is lost (in {n - 2} of {n} samples)",
        f"energy: GPU is lost (in {n - 3} of {n} samples)",
    )
    functions = asked(calls, 0)
    assert (functions["utilization"], functions["energy"], functions["clock"]) == (3, 3, 2)


@pytest.mark.usefixtures("fake_driver")
def test_a_passing_error_is_no_loss(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML_FAIL", f"1:utilization:2:4:{UNKNOWN}")
    (gpu,) = sample(GPU_B, ticks=6).gpu_summaries
    assert gpu.values["utilization_mean"] == pytest.approx(0.5)
    once = f"Unknown Error (in 1 of {gpu.samples} samples)"
    failed = ("memory", "power", "SM clock", "memory clock")
    assert gpu.absent == tuple(f"{label}: {once}" for label in failed)


@pytest.mark.usefixtures("fake_driver")
def test_of_mig_only_what_is_the_devices_own_is_reported(sample: Sample) -> None:
    device, whole = sample(MIG_DEVICE, GPU_IN_MIG_MODE).gpu_summaries
    assert device.name == "Fake A100 MIG 1g.5gb"
    assert device.values["memory_used_peak_bytes"] == 512 * MIB
    assert device.values["sm_clock_mean_mhz"] == pytest.approx(1410.0)
    known = {NUMBERS[name].label for name in device.values}
    assert not known & {"utilization", "power", "energy", "power limit", "NVLink errors"}
    assert (device.values.get("ecc_uncorrected"), device.xids) == (None, None)
    assert device.absent[:2] == (
        "utilization: Not Supported",
        "power: measured only for the whole GPU, which other MIG devices share",
    )
    # The sums over a whole GPU are not taken for those of a device of it.
    assert not {"memory_used_peak_bytes", "power_mean_w", "energy_j"} & set(whole.values)
    assert whole.values["sm_clock_mean_mhz"] == pytest.approx(1410.0)


def test_a_driver_without_the_newer_calls_is_asked_by_the_older(
    sample: Sample, build: Build, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build("-DOLD_DRIVER")))
    gpu, hot, linked = sample(GPU_A, HOT_GPU, GPU_WITH_INACTIVE_LINK).gpu_summaries
    # The older call counts the 256 MiB that the driver keeps for itself.
    assert gpu.values["memory_used_peak_bytes"] == (4096 + 256) * MIB
    # The older call smooths over a second, here to a tenth less.
    assert gpu.values["power_mean_w"] == pytest.approx(225.0)
    assert gpu.absent == hot.absent == linked.absent == ()
    assert hot.values["temperature_max_c"] == 91
    assert hot.clock_event_reasons == {"hw_thermal_slowdown": 1.0}
    assert linked.values["nvlink_replay_errors"] in FIVE_A_LOOK
    # Once for the power and once for each newer form of the errors of NVLink, never again.
    assert asked(calls, 0)["fields"] == 3


@pytest.mark.alone
@pytest.mark.thorough
@pytest.mark.usefixtures("fake_driver")
def test_energy_is_the_counters_difference_and_so_is_each_windows(tmp_path: Path) -> None:
    output = tmp_path / "samples.jsonl"
    uuids = [GPU_A, GPU_WITHOUT_POWER]
    sampler = Sampler(addresses=dict.fromkeys(uuids), output=output, interval_s=0.02)
    try:
        wait_until(lambda: lines_of(output) > 1, "the first sample was there")
        began = time.time()
        wait_until(lambda: lines_of(output) > 20, "the windows had passed")
    finally:
        # Its last sample closes the second window.
        ended = time.time()
        sampler.stop()
    middle = (began + ended) / 2
    intervals = [(began, middle), (middle, ended), (ended + 60, ended + 61)]
    gpu, without = summarize(output, uuids=uuids, intervals=intervals).gpu_summaries
    first, second, later = gpu.windows
    assert first.values["energy_j"] / (middle - began) == pytest.approx(250, rel=0.1)
    assert second.values["energy_j"] / (ended - middle) == pytest.approx(250, rel=0.1)
    assert first.samples + second.samples == gpu.samples
    assert (later.samples, later.values) == (0, {})
    assert "energy_j" not in gpu.values
    offered = [without.values, *(window.values for window in without.windows)]
    assert not any("energy_j" in values for values in offered)
    assert without.windows[0].values["sm_clock_mean_mhz"] == 300


@pytest.mark.usefixtures("fake_driver")
def test_links_errors_and_slowdowns_of_each_gpu_are_its_own(sample: Sample) -> None:
    uuids = (GPU_A, GPU_ON_FOUR_LANES, GPU_WITH_ECC_ERRORS, HOT_GPU, GPU_WITH_INACTIVE_LINK)
    well, narrow, ecc, hot, linked = sample(*uuids).gpu_summaries
    expected = {
        "memory_clock_mean_mhz": 877,
        "temperature_max_c": 45,
        "pcie_generation": 3,
        "pcie_max_generation": 3,
        "pcie_width": 16,
        "pcie_max_width": 16,
        "power_limit_w": 300,
        "nvlink_links": 6,
        "nvlink_active_min": 6,
        "nvlink_replay_errors": 0,
        "nvlink_recovery_errors": 0,
        "nvlink_crc_errors": 0,
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
    }
    assert {name: well.values.get(name) for name in expected} == expected
    assert (well.clock_event_reasons, well.xids) == ({}, ())
    assert (narrow.values["pcie_width"], narrow.values["pcie_max_width"]) == (4, 16)
    assert hot.clock_event_reasons == {"hw_thermal_slowdown": 1.0}
    assert hot.values["temperature_max_c"] == 91
    # Two uncorrected errors are older than the run; each further look counts one more corrected.
    assert (ecc.values["ecc_corrected"] >= 1, ecc.values["ecc_uncorrected"]) == (True, 0)
    assert (linked.values["nvlink_links"], linked.values["nvlink_active_min"]) == (6, 5)
    assert linked.values["nvlink_replay_errors"] in FIVE_A_LOOK
    assert (linked.values["nvlink_recovery_errors"], linked.values["nvlink_crc_errors"]) == (0, 0)
    assert {gpu.absent for gpu in (well, narrow, ecc, hot, linked)} == {()}


@pytest.mark.skipif(
    not hasattr(pynvml, "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS"),
    reason="the binding is older than Blackwell",
)
@pytest.mark.usefixtures("fake_driver")
def test_the_links_of_a_blackwell_gpu_count_errors_in_their_own_way(sample: Sample) -> None:
    (gpu,) = sample(BLACKWELL_GPU).gpu_summaries
    assert (gpu.values["nvlink_links"], gpu.values["nvlink_active_min"]) == (6, 5)
    assert gpu.values["nvlink_recovery_errors"] in FIVE_A_LOOK
    assert gpu.values["nvlink_effective_errors"] == 0
    assert not {"nvlink_replay_errors", "nvlink_crc_errors"} & set(gpu.values)
    assert gpu.absent == ()


@pytest.mark.usefixtures("fake_driver")
def test_beside_a_run_only_its_own_devices_are_sampled_until_it_ends(calls: Path) -> None:
    gpus = tuple(
        GpuDevice(index=index, name="V100", uuid=uuid) for index, uuid in enumerate((GPU_A, GPU_B))
    )
    began = time.time()
    with sample_run(request(devices=(1,)), replace(environment(), gpus=gpus)) as sampling:
        assert sampling is not None
        assert sampling.sampler is not None
        wait_until(calls.exists, "the device was asked")
        wait_until(lambda: asked(calls, 1)["utilization"] > 2, "some samples were taken")
        window = Window(time_s=time.time() - began, started_at_s=began, busy_s=(1.0,))
        report = sampling.summarize(replace(run(1, 0.1), windows=(window,)))
        assert not is_living(sampling.sampler.pid)
    assert [gpu.uuid for gpu in report.gpu_summaries] == [GPU_B]
    with sample_run(request(devices=()), environment()) as sampling:
        assert sampling is None


@pytest.mark.usefixtures("fake_driver")
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
    report = sample(GPU_A)
    assert (report.gpu_summaries, report.absent) == ((), reason)


def test_a_sampler_that_cannot_run_is_recorded_with_its_last_words(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError('a broken binding')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert sample(GPU_A).absent == (
        "the GPU sampler ended before its first sample: ImportError: a broken binding"
    )


@pytest.mark.usefixtures("fake_driver")
def test_every_line_can_be_read_while_the_sampler_writes(tmp_path: Path) -> None:
    output = tmp_path / "samples.jsonl"
    sampler = Sampler(addresses={GPU_A: None}, output=output, interval_s=0.01)
    try:
        wait_until(lambda: lines_of(output) > 3, "there were some samples")
        header, *ticks = output.read_text().splitlines()[:4]
    finally:
        sampler.stop()
    assert not is_living(sampler.pid)
    sampler.stop()
    assert output.read_text().endswith("}\n")
    assert json.loads(header)["devices"][GPU_A]["name"] == "Fake V100 A"
    readings = [json.loads(line)["readings"][GPU_A] for line in ticks]
    assert all(reading["answers"]["utilization"] == 0.9 for reading in readings)


@pytest.mark.usefixtures("fake_driver")
def test_stop_ends_a_hanging_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML_HANG", "1")
    output = tmp_path / "samples.jsonl"
    sampler = Sampler(addresses={GPU_A: None}, output=output)
    wait_until(lambda: lines_of(output) == 1, "the header was there")
    sampler.stop()
    assert not is_living(sampler.pid)


@pytest.mark.usefixtures("fake_driver")
def test_a_killed_parent_leaves_no_sampler_behind(tmp_path: Path) -> None:
    output = tmp_path / "samples.jsonl"
    program = (
        "import pathlib, sys, time; from gpuscale.measure.run_directory import Sampler\n"
        f"sampler = Sampler(addresses={{{GPU_A!r}: None}}, output=pathlib.Path(sys.argv[1]))\n"
        "print(sampler.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(output)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_until(lambda: lines_of(output) > 1, "the first sample was there")
    assert is_living(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    wait_until(lambda: not is_living(pid), "the sampler had ended after its parent")


@pytest.mark.usefixtures("fake_driver")
def test_a_hanging_sampler_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML_HANG", "1")
    output = tmp_path / "samples.jsonl"
    program = "import sys; from gpuscale.measure.telemetry import sampler; sampler.HANG_S = 1\n"
    program += "sampler.main(sys.argv[1:])"
    command = [sys.executable, "-c", program, "--output", str(output), "--device", GPU_A]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGALRM
    absent = summarize(output, uuids=[GPU_A], intervals=[(0, time.time())]).absent
    assert absent is not None
    assert absent.endswith("no message, as after a hang in the driver")


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
