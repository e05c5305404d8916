"""The real sampling process and the real NVML binding, on a library written in C for it."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest
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

from gpuscale.records import PcieLink
from gpuscale.telemetry import Sampler, TelemetryReport, summarize
from gpuscale.telemetry.sampler import next_tick

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
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"waited 30 s in vain until {what}"
        time.sleep(0.01)


def lines_of(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    """Samples the devices for some ticks and summarises all of them."""

    def sampled(*uuids: str, ticks: int = 5) -> TelemetryReport:
        output = tmp_path / "samples.jsonl"
        began = time.time()
        sampler = Sampler.start(uuids=uuids, output=output, interval_s=0.01)
        try:
            wait_until(
                lambda: lines_of(output) > ticks or not is_running(sampler.pid),
                f"the sampler had taken {ticks} samples or had ended",
            )
        finally:
            sampler.stop()
        return summarize(output, uuids=uuids, intervals=[(began, time.time())])

    return sampled


@pytest.mark.usefixtures("fake_driver")
def test_what_the_driver_sampled_itself_goes_before_readings(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_SAMPLES", "0")
    (gpu,) = sample(GPU_A).gpu_summaries
    assert gpu.utilization_mean == pytest.approx(0.45)
    assert gpu.windows[0].utilization_mean == pytest.approx(0.45)
    # This driver offers the power of the moment, which is not smoothed.
    assert gpu.power_mean_w == pytest.approx(250.0)
    assert gpu.absent == ()


def test_an_older_driver_gives_power_from_its_buffer(
    build: Build, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build("-DOLD_DRIVER")))
    monkeypatch.setenv("FAKE_NVML_SAMPLES", "0")
    (gpu,) = sample(GPU_A).gpu_summaries
    assert gpu.power_mean_w == pytest.approx(125.0)


@pytest.mark.usefixtures("fake_driver")
def test_samples_of_another_clock_than_ours_are_left_alone(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_SAMPLES", "86400")
    (gpu,) = sample(GPU_A).gpu_summaries
    assert gpu.utilization_mean == pytest.approx(0.9)
    assert gpu.absent == ()


@pytest.mark.usefixtures("fake_driver")
def test_each_gpu_is_read_with_its_own_values(sample: Sample) -> None:
    report = sample(GPU_A, GPU_B)
    one, two = report.gpu_summaries
    assert (report.absent, report.driver_version) == (None, "575.57.08")
    assert one.samples == two.samples >= 5
    assert (one.uuid, one.name, one.absent) == (GPU_A, "Fake V100 A", ())
    assert one.utilization_mean == pytest.approx(0.9)
    assert one.memory_used_peak_bytes == 4096 * MIB
    assert one.power_mean_w == pytest.approx(250.0)
    assert one.sm_clock_mean_mhz == pytest.approx(1380.0)
    assert (two.uuid, two.name, two.absent) == (GPU_B, "Fake V100 B", ())
    assert two.power_mean_w == pytest.approx(150.5)


@pytest.mark.usefixtures("fake_driver")
def test_a_uuid_with_the_prefix_of_nvml_is_found_as_well(sample: Sample) -> None:
    (gpu,) = sample(f"GPU-{GPU_A}").gpu_summaries
    assert (gpu.uuid, gpu.name) == (f"GPU-{GPU_A}", "Fake V100 A")


@pytest.mark.usefixtures("fake_driver")
def test_only_the_devices_of_the_run_are_asked_whatever_cuda_calls_them(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("FAKE_NVML_CALLS", str(calls))
    # Device 0 of the job is then NVML's device 1.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    (gpu,) = sample(GPU_B).gpu_summaries
    assert gpu.name == "Fake V100 B"
    assert {line.split()[0] for line in calls.read_text().splitlines()} == {"1"}


@pytest.mark.usefixtures("fake_driver")
def test_an_unsupported_field_is_absent_with_the_reason_and_asked_once(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("FAKE_NVML_CALLS", str(calls))
    (gpu,) = sample(GPU_WITHOUT_POWER).gpu_summaries
    assert gpu.power_mean_w is None
    assert "power: Not Supported" in gpu.absent
    assert gpu.utilization_mean == 0.0
    asked = Counter(line.split()[1] for line in calls.read_text().splitlines())
    assert asked["power"] == 1
    assert asked["utilization"] >= 5


@pytest.mark.usefixtures("fake_driver")
def test_a_lost_gpu_is_absent_from_then_on_and_the_others_go_on(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("FAKE_NVML_CALLS", str(calls))
    # The utilisation of a third tick is the last that is answered.
    monkeypatch.setenv("FAKE_NVML_FAIL", f"0:utilization:3:0:{GPU_IS_LOST}")
    lost, other = sample(GPU_A, GPU_B, ticks=6).gpu_summaries
    n = lost.samples
    assert n == other.samples >= 6
    assert other.absent == ()
    assert lost.utilization_mean == pytest.approx(0.9)
    assert lost.absent[:4] == (
        f"utilization: GPU is lost (in {n - 3} of {n} samples)",
        f"memory: GPU is lost (in {n - 2} of {n} samples)",
        f"power: GPU is lost (in {n - 2} of {n} samples)",
        f"energy: GPU is lost (in {n - 2} of {n} samples)",
    )
    asked = Counter(line.split()[1] for line in calls.read_text().splitlines() if line[0] == "0")
    assert (asked["utilization"], asked["energy"], asked["clock"]) == (3, 3, 2)


@pytest.mark.usefixtures("fake_driver")
def test_after_a_passing_error_the_device_is_read_again(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_FAIL", f"1:utilization:2:4:{UNKNOWN}")
    (gpu,) = sample(GPU_B, ticks=6).gpu_summaries
    assert gpu.utilization_mean == pytest.approx(0.5)
    once = f"Unknown Error (in 1 of {gpu.samples} samples)"
    assert gpu.absent == tuple(f"{of}: {once}" for of in ("memory", "power", "energy", "SM clock"))


@pytest.mark.usefixtures("fake_driver")
def test_a_mig_device_has_its_own_memory_and_never_the_power_of_the_whole_gpu(
    sample: Sample,
) -> None:
    (gpu,) = sample(MIG_DEVICE).gpu_summaries
    assert gpu.name == "Fake A100 MIG 1g.5gb"
    assert gpu.memory_used_peak_bytes == 512 * MIB
    assert gpu.sm_clock_mean_mhz == pytest.approx(1410.0)
    assert (gpu.utilization_mean, gpu.power_mean_w) == (None, None)
    assert (gpu.energy_j, gpu.power_limit_w, gpu.ecc_uncorrected, gpu.xids) == (None,) * 4
    assert gpu.absent[:2] == (
        "utilization: Not Supported",
        "power: measured only for the whole GPU, which other MIG devices share",
    )


@pytest.mark.usefixtures("fake_driver")
def test_the_sums_of_a_whole_gpu_in_mig_mode_are_not_taken_for_a_device_of_it(
    sample: Sample,
) -> None:
    (gpu,) = sample(GPU_IN_MIG_MODE).gpu_summaries
    assert (gpu.memory_used_peak_bytes, gpu.power_mean_w) == (None, None)
    assert gpu.sm_clock_mean_mhz == pytest.approx(1410.0)


def test_a_driver_without_the_newer_calls_is_asked_by_the_older(
    sample: Sample, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("FAKE_NVML_CALLS", str(calls))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build("-DOLD_DRIVER")))
    gpu, hot, linked = sample(GPU_A, HOT_GPU, GPU_WITH_INACTIVE_LINK).gpu_summaries
    # The older call counts the 256 MiB that the driver keeps for itself.
    assert gpu.memory_used_peak_bytes == (4096 + 256) * MIB
    # The older call smooths over a second, here to a tenth less.
    assert gpu.power_mean_w == pytest.approx(225.0)
    assert gpu.absent == hot.absent == linked.absent == ()
    assert hot.temperature_max_c == 91
    assert hot.clock_event_reasons == {"hw_thermal_slowdown": 1.0}
    assert linked.nvlink_errors is not None
    assert linked.nvlink_errors["replay"] in FIVE_A_LOOK
    asked = Counter(line.split()[1] for line in calls.read_text().splitlines() if line[0] == "0")
    # Once for the power and once for each newer form of the errors of NVLink, never again.
    assert asked["fields"] == 3


@pytest.mark.usefixtures("fake_driver")
def test_power_is_read_unsmoothed_and_other_questions_by_their_newer_names(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("FAKE_NVML_CALLS", str(calls))
    sample(GPU_A)
    asked = {line.split()[1] for line in calls.read_text().splitlines()}
    assert {"fields", "event_reasons", "memory_v2"} <= asked
    assert not asked & {"power", "throttle_reasons", "memory", "nvlink_counter"}
    # The oldest binding that gpuscale takes does not have the newer call.
    newer = "temperature_v" if hasattr(pynvml, "nvmlDeviceGetTemperatureV") else "temperature"
    assert asked & {"temperature", "temperature_v"} == {newer}


@pytest.mark.usefixtures("fake_driver")
def test_energy_is_the_counters_difference_and_so_is_each_windows(tmp_path: Path) -> None:
    output = tmp_path / "samples.jsonl"
    sampler = Sampler.start(uuids=[GPU_A, GPU_WITHOUT_POWER], output=output, interval_s=0.02)
    try:
        wait_until(lambda: lines_of(output) > 1, "the first sample was there")
        began = time.time()
        wait_until(lambda: lines_of(output) > 20, "the windows had passed")
    finally:
        # Its last sample closes the second window.
        ended = time.time()
        sampler.stop()
    middle = (began + ended) / 2
    report = summarize(
        output,
        uuids=[GPU_A, GPU_WITHOUT_POWER],
        intervals=[(began, middle), (middle, ended), (ended + 60, ended + 61)],
    )
    gpu, without = report.gpu_summaries
    first, second, later = gpu.windows
    assert (first.energy_j or 0) / (middle - began) == pytest.approx(250, rel=0.1)
    assert (second.energy_j or 0) / (ended - middle) == pytest.approx(250, rel=0.1)
    assert first.samples + second.samples == gpu.samples
    assert (later.samples, later.energy_j, later.utilization_mean) == (0, None, None)
    assert gpu.energy_j is None
    assert without.energy_j is None
    assert [window.energy_j for window in without.windows] == [None] * 3
    assert without.windows[0].sm_clock_mean_mhz == 300


@pytest.mark.usefixtures("fake_driver")
def test_links_errors_and_slowdowns_of_each_gpu_are_its_own(sample: Sample) -> None:
    uuids = (GPU_A, GPU_ON_FOUR_LANES, GPU_WITH_ECC_ERRORS, HOT_GPU, GPU_WITH_INACTIVE_LINK)
    well, narrow, ecc, hot, linked = sample(*uuids).gpu_summaries
    assert well.pcie == PcieLink(generation=3, width=16, max_generation=3, max_width=16)
    assert narrow.pcie == PcieLink(generation=3, width=4, max_generation=3, max_width=16)
    assert (well.clock_event_reasons, well.temperature_max_c) == ({}, 45)
    assert (hot.clock_event_reasons, hot.temperature_max_c) == ({"hw_thermal_slowdown": 1.0}, 91)
    assert (well.ecc_corrected, well.ecc_uncorrected) == (0, 0)
    # Two uncorrected errors are older than the run; each further look counts one more corrected.
    assert ecc.ecc_corrected is not None
    assert (ecc.ecc_corrected >= 1, ecc.ecc_uncorrected) == (True, 0)
    assert (well.nvlink_links, well.nvlink_active_min) == (6, 6)
    assert (linked.nvlink_links, linked.nvlink_active_min) == (6, 5)
    assert well.nvlink_errors == {"replay": 0, "recovery": 0, "crc": 0}
    assert linked.nvlink_errors is not None
    assert linked.nvlink_errors["replay"] in FIVE_A_LOOK
    assert (linked.nvlink_errors["recovery"], linked.nvlink_errors["crc"]) == (0, 0)
    assert (well.power_limit_w, well.memory_clock_mean_mhz, well.xids) == (300, 877, ())
    assert {gpu.absent for gpu in (well, narrow, ecc, hot, linked)} == {()}


@pytest.mark.skipif(
    not hasattr(pynvml, "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS"),
    reason="the binding is older than Blackwell",
)
@pytest.mark.usefixtures("fake_driver")
def test_the_links_of_a_blackwell_gpu_count_errors_in_their_own_way(sample: Sample) -> None:
    (gpu,) = sample(BLACKWELL_GPU).gpu_summaries
    assert (gpu.nvlink_links, gpu.nvlink_active_min) == (6, 5)
    assert gpu.nvlink_errors is not None
    assert set(gpu.nvlink_errors) == {"recovery", "effective"}
    assert gpu.nvlink_errors["recovery"] in FIVE_A_LOOK
    assert gpu.nvlink_errors["effective"] == 0
    assert gpu.absent == ()


@pytest.mark.usefixtures("fake_driver")
def test_a_device_without_links_and_ecc_counts_no_errors_of_them(sample: Sample) -> None:
    (gpu,) = sample(GPU_WITHOUT_POWER).gpu_summaries
    counted = (gpu.nvlink_links, gpu.nvlink_active_min, gpu.nvlink_errors)
    assert counted == (None, None, None)
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.xids) == (None, None, None)
    assert gpu.absent == tuple(
        f"{of}: Not Supported"
        for of in (
            "power",
            "energy",
            "power limit",
            "NVLink",
            "NVLink errors",
            "ECC errors",
            "XID events",
        )
    )


@pytest.mark.usefixtures("fake_driver")
def test_an_error_event_is_put_down_to_its_gpu_even_when_that_is_lost(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_XID", "1:79")
    monkeypatch.setenv("FAKE_NVML_FAIL", f"1:utilization:3:0:{GPU_IS_LOST}")
    well, lost = sample(GPU_A, GPU_B).gpu_summaries
    assert (well.xids, lost.xids) == ((), (79,))


@pytest.mark.usefixtures("fake_driver")
def test_an_event_is_kept_when_the_look_for_the_next_one_fails(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_XID", f"1:79:{GPU_IS_LOST}")
    (lost,) = sample(GPU_B).gpu_summaries
    assert lost.xids == (79,)


@pytest.mark.usefixtures("fake_driver")
def test_links_and_error_counters_are_read_once_a_second_and_at_the_end(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("FAKE_NVML_CALLS", str(calls))
    (gpu,) = sample(GPU_A, ticks=20).gpu_summaries
    asked = Counter(line.split()[1] for line in calls.read_text().splitlines())
    assert asked["pcie_width"] < asked["utilization"] / 2
    assert asked["pcie_width"] >= 2
    assert gpu.samples >= 20


@pytest.mark.usefixtures("fake_driver")
def test_an_unknown_device_is_named_and_the_others_are_sampled(sample: Sample) -> None:
    unknown, known = sample(UNKNOWN_UUID, GPU_A).gpu_summaries
    assert unknown.absent == (f"device: NVML knows no device with UUID {UNKNOWN_UUID}",)
    assert known.utilization_mean == pytest.approx(0.9)


@pytest.mark.usefixtures("fake_driver")
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (DRIVER_NOT_LOADED, "no NVIDIA driver: its kernel module is not loaded"),
        (
            VERSION_MISMATCH,
            "NVML does not start: RM has detected an NVML/RM version mismatch.",
        ),
    ],
)
def test_a_driver_that_does_not_start_is_recorded_as_absent(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    monkeypatch.setenv("FAKE_NVML_INIT", str(code))
    report = sample(GPU_A)
    assert (report.gpu_summaries, report.absent) == ((), reason)


def test_a_machine_without_a_driver_is_recorded_as_such(sample: Sample) -> None:
    with suppress(OSError):
        ctypes.CDLL("libnvidia-ml.so.1")
        pytest.skip("this machine has an NVIDIA driver")
    assert sample(GPU_A).absent == "no NVIDIA driver: libnvidia-ml.so.1 not found"


def test_a_sampler_that_cannot_run_is_recorded_with_its_last_words(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError('a broken binding')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert sample(GPU_A).absent == (
        "the GPU sampler ended before its first sample: ImportError: a broken binding"
    )


@pytest.mark.usefixtures("fake_driver")
def test_stop_ends_the_process_and_may_be_called_again(tmp_path: Path) -> None:
    output = tmp_path / "samples.jsonl"
    sampler = Sampler.start(uuids=[GPU_A], output=output)
    wait_until(lambda: lines_of(output) > 1, "the first sample was there")
    sampler.stop()
    assert not is_running(sampler.pid)
    assert output.read_text().endswith("}\n")
    sampler.stop()


@pytest.mark.usefixtures("fake_driver")
def test_stop_ends_a_process_that_hangs_in_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_HANG", "1")
    output = tmp_path / "samples.jsonl"
    sampler = Sampler.start(uuids=[GPU_A], output=output)
    wait_until(lambda: lines_of(output) == 1, "the header was there")
    sampler.stop()
    assert not is_running(sampler.pid)


@pytest.mark.usefixtures("fake_driver")
def test_a_killed_parent_leaves_no_sampler_behind(tmp_path: Path) -> None:
    output = tmp_path / "samples.jsonl"
    program = (
        "import pathlib, sys, time; from gpuscale.telemetry import Sampler\n"
        f"sampler = Sampler.start(uuids=[{GPU_A!r}], output=pathlib.Path(sys.argv[1]))\n"
        "print(sampler.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(output)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_until(lambda: lines_of(output) > 1, "the first sample was there")
    assert is_running(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    wait_until(lambda: not is_running(pid), "the sampler had ended after its parent")


@pytest.mark.usefixtures("fake_driver")
def test_a_sampler_that_hangs_in_the_driver_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_HANG", "1")
    output = tmp_path / "samples.jsonl"
    program = "import sys; from gpuscale.telemetry import sampler; sampler.HANG_S = 1\n"
    program += "sampler.main(sys.argv[1:])"
    command = [sys.executable, "-c", program, "--output", str(output), "--uuid", GPU_A]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGALRM
    absent = summarize(output, uuids=[GPU_A], intervals=[(0, time.time())]).absent
    assert absent is not None
    assert absent.endswith("no message, as after a hang in the driver")


@pytest.mark.usefixtures("fake_driver")
def test_every_line_can_be_read_while_the_sampler_still_writes(tmp_path: Path) -> None:
    output = tmp_path / "samples.jsonl"
    sampler = Sampler.start(uuids=[GPU_A], output=output, interval_s=0.01)
    try:
        wait_until(lambda: lines_of(output) > 3, "there were some samples")
        header, *ticks = output.read_text().splitlines()[:4]
    finally:
        sampler.stop()
    assert json.loads(header)["devices"][GPU_A]["name"] == "Fake V100 A"
    assert all(json.loads(line)["readings"][GPU_A]["utilization"] == 0.9 for line in ticks)


def test_the_sampling_process_loads_neither_torch_nor_numpy_nor_pytest() -> None:
    program = (
        "import sys, gpuscale.telemetry.sampler\n"
        "print(sorted({'torch', 'numpy', 'scipy', 'pytest'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"


def test_starting_a_sampler_does_not_load_the_binding() -> None:
    program = "import sys, gpuscale.telemetry; print('pynvml' in sys.modules)"
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "often"])
def test_an_interval_that_is_no_time_is_refused(tmp_path: Path, interval: str) -> None:
    output = tmp_path / "samples.jsonl"
    command = [sys.executable, "-m", "gpuscale.telemetry.sampler", "--uuid", GPU_A]
    command += ["--output", str(output), f"--interval-s={interval}"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert "--interval-s" in result.stderr
    assert not output.exists()


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
