"""The real sampling process and the real NVML binding, on a library written in C for it."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gpuscale.telemetry import Sampler, TelemetryReport, summarize
from gpuscale.telemetry.sampler import next_tick

SOURCE = Path(__file__).parent / "nvml" / "fake_nvml.c"
MIB = 1024 * 1024
# As CUDA gives them, without NVML's prefix.
GPU_A = "00000000-aaaa-4000-8000-000000000000"
GPU_B = "11111111-bbbb-4000-8000-000000000001"
GPU_WITHOUT_POWER = "22222222-cccc-4000-8000-000000000002"
GPU_IN_MIG_MODE = "33333333-dddd-4000-8000-000000000003"
MIG_DEVICE = "44444444-eeee-4000-8000-000000000004"
UNKNOWN_UUID = "99999999-9999-4000-8000-000000000009"
GPU_IS_LOST, DRIVER_NOT_LOADED, VERSION_MISMATCH, UNKNOWN = 15, 9, 18, 999

Build = Callable[..., Path]
Sample = Callable[..., TelemetryReport]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles the library with some flags; gives the folder that it lies in."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the NVML library of the test with")

    def compiled(*flags: str) -> Path:
        folder = tmp_path_factory.mktemp("nvml")
        library = folder / "libnvidia-ml.so.1"
        command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", str(library)]
        subprocess.run([*command, str(SOURCE)], check=True)
        return folder

    return compiled


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
    assert gpu.absent == ("power: Not Supported",)
    assert gpu.utilization_mean == pytest.approx(0.7)
    asked = Counter(line.split()[1] for line in calls.read_text().splitlines())
    assert asked["power"] == 1
    assert asked["utilization"] >= 5


@pytest.mark.usefixtures("fake_driver")
def test_a_lost_gpu_is_absent_from_then_on_and_the_others_go_on(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("FAKE_NVML_CALLS", str(calls))
    # Two ticks of four queries are answered, and the utilisation of a third.
    monkeypatch.setenv("FAKE_NVML_FAIL", f"0:9:0:{GPU_IS_LOST}")
    lost, other = sample(GPU_A, GPU_B, ticks=6).gpu_summaries
    n = lost.samples
    assert n == other.samples >= 6
    assert other.absent == ()
    assert lost.utilization_mean == pytest.approx(0.9)
    assert lost.absent == (
        f"utilization: GPU is lost (in {n - 3} of {n} samples)",
        f"memory: GPU is lost (in {n - 2} of {n} samples)",
        f"power: GPU is lost (in {n - 2} of {n} samples)",
        f"SM clock: GPU is lost (in {n - 2} of {n} samples)",
    )
    asked = Counter(line.split()[0] for line in calls.read_text().splitlines())
    assert asked["0"] == 10


@pytest.mark.usefixtures("fake_driver")
def test_after_a_passing_error_the_device_is_read_again(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_FAIL", f"1:4:4:{UNKNOWN}")
    (gpu,) = sample(GPU_B, ticks=6).gpu_summaries
    assert gpu.utilization_mean == pytest.approx(0.5)
    assert gpu.absent[0] == f"utilization: Unknown Error (in 1 of {gpu.samples} samples)"
    assert len(gpu.absent) == 4


@pytest.mark.usefixtures("fake_driver")
def test_a_mig_device_has_its_own_memory_and_never_the_power_of_the_whole_gpu(
    sample: Sample,
) -> None:
    (gpu,) = sample(MIG_DEVICE).gpu_summaries
    assert gpu.name == "Fake A100 MIG 1g.5gb"
    assert gpu.memory_used_peak_bytes == 512 * MIB
    assert gpu.sm_clock_mean_mhz == pytest.approx(1410.0)
    assert (gpu.utilization_mean, gpu.power_mean_w) == (None, None)
    assert gpu.absent == (
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


def test_a_driver_without_the_newer_memory_call_is_asked_by_the_older(
    sample: Sample, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build("-DDRIVER_BEFORE_R510")))
    (gpu,) = sample(GPU_A).gpu_summaries
    # The older call counts the 256 MiB that the driver keeps for itself.
    assert gpu.memory_used_peak_bytes == (4096 + 256) * MIB
    assert gpu.absent == ()


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
