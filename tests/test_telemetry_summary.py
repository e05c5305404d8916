"""Reducing a samples file to a run's windows, for files with known truth."""

from pathlib import Path

import pytest

from gpuscale.telemetry import summarize
from gpuscale.telemetry.probe import Reading
from gpuscale.telemetry.samples import (
    Header,
    SampledDevice,
    Tick,
    header_line,
    stderr_path,
    tick_line,
)

A, B = "aaaa", "bbbb"


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    return tmp_path / "samples.jsonl"


def header(**devices: SampledDevice) -> str:
    found = devices or {A: SampledDevice(name="Fake V100")}
    return header_line(Header(interval_s=0.1, driver_version="575.57.08", devices=found))


def tick(time_s: float, **readings: Reading) -> str:
    return tick_line(Tick(time_s=time_s, readings=readings))


def busy(utilization: float, *, memory: int = 100, power: float = 200.0) -> Reading:
    return Reading(
        utilization=utilization, memory_used_bytes=memory, power_w=power, sm_clock_mhz=1300.0
    )


def test_only_samples_inside_the_windows_count(samples: Path) -> None:
    samples.write_text(
        header()
        + tick(9.9, aaaa=busy(0.0, memory=900, power=50))
        + tick(10.0, aaaa=busy(0.8, memory=100, power=200))
        + tick(10.5, aaaa=busy(1.0, memory=300, power=260))
        + tick(11.5, aaaa=busy(0.0, memory=900, power=50))
        + tick(12.0, aaaa=busy(0.9, memory=200, power=230))
    )
    report = summarize(samples, uuids=[A], intervals=[(10.0, 11.0), (12.0, 13.0)])
    (gpu,) = report.gpu_summaries
    assert report.absent is None
    assert report.driver_version == "575.57.08"
    assert (gpu.uuid, gpu.name, gpu.samples, gpu.absent) == (A, "Fake V100", 3, ())
    assert gpu.utilization_mean == pytest.approx(0.9)
    assert gpu.memory_used_peak_bytes == 300
    assert gpu.power_mean_w == pytest.approx(230)
    assert gpu.sm_clock_mean_mhz == pytest.approx(1300)


def test_devices_keep_the_order_of_the_run_and_their_own_values(samples: Path) -> None:
    found = header(aaaa=SampledDevice(name="one"), bbbb=SampledDevice(name="two"))
    samples.write_text(found + tick(1.0, aaaa=busy(0.2), bbbb=busy(0.7)))
    report = summarize(samples, uuids=[B, A], intervals=[(0, 2)])
    assert [gpu.name for gpu in report.gpu_summaries] == ["two", "one"]
    assert [gpu.utilization_mean for gpu in report.gpu_summaries] == [0.7, 0.2]


@pytest.mark.parametrize("cut", range(1, len(tick(2.0, aaaa=busy(0.1))), 7))
def test_a_line_that_is_still_being_written_is_left_out(samples: Path, cut: int) -> None:
    samples.write_text(header() + tick(1.0, aaaa=busy(0.5)) + tick(2.0, aaaa=busy(0.1))[:-cut])
    (gpu,) = summarize(samples, uuids=[A], intervals=[(0, 9)]).gpu_summaries
    # Only the line's end may be missing without making it another text.
    assert (gpu.samples, gpu.utilization_mean) == ((2, 0.3) if cut == 1 else (1, 0.5))


def test_a_field_that_was_never_read_is_none_and_carries_the_reason(samples: Path) -> None:
    reading = Reading(utilization=0.5, absent={"power_w": "Not Supported"})
    samples.write_text(header() + tick(1.0, aaaa=reading) + tick(2.0, aaaa=reading))
    (gpu,) = summarize(samples, uuids=[A], intervals=[(0, 9)]).gpu_summaries
    assert gpu.power_mean_w is None
    assert "power: Not Supported" in gpu.absent


def test_a_field_that_failed_midway_says_in_how_many_samples(samples: Path) -> None:
    lost = Reading(absent={"utilization": "GPU is lost"})
    samples.write_text(header() + tick(1.0, aaaa=busy(0.5)) + tick(2, aaaa=lost) * 3)
    (gpu,) = summarize(samples, uuids=[A], intervals=[(0, 9)]).gpu_summaries
    assert (gpu.samples, gpu.utilization_mean) == (4, 0.5)
    assert gpu.absent == ("utilization: GPU is lost (in 3 of 4 samples)",)


def test_a_device_that_was_not_found_is_named_beside_those_that_were(samples: Path) -> None:
    found = header(aaaa=SampledDevice(name="one"), bbbb=SampledDevice(absent="unknown UUID"))
    samples.write_text(found + tick(1.0, aaaa=busy(0.5)))
    one, two = summarize(samples, uuids=[A, B], intervals=[(0, 9)]).gpu_summaries
    assert one.samples == 1
    assert (two.uuid, two.samples, two.utilization_mean) == (B, 0, None)
    assert two.absent == ("device: unknown UUID",)


def test_without_any_device_the_reason_stands_in_for_the_summaries(samples: Path) -> None:
    samples.write_text(header(aaaa=SampledDevice(absent="unknown UUID")))
    report = summarize(samples, uuids=[A], intervals=[(0, 9)])
    assert (report.gpu_summaries, report.absent) == ((), "unknown UUID")
    assert report.driver_version == "575.57.08"


def test_no_driver_is_the_reason_that_is_recorded(samples: Path) -> None:
    samples.write_text(header_line(Header(interval_s=0.1, absent="no NVIDIA driver", devices={})))
    assert summarize(samples, uuids=[A], intervals=[(0, 9)]).absent == "no NVIDIA driver"


def test_samples_outside_all_windows_are_not_taken_for_the_run(samples: Path) -> None:
    samples.write_text(header() + tick(1.0, aaaa=busy(0.5)) * 4)
    report = summarize(samples, uuids=[A], intervals=[(2, 3)])
    assert report.gpu_summaries == ()
    assert report.absent == "none of the sampler's 4 samples fell into the run's windows"


def test_a_run_without_windows_says_so(samples: Path) -> None:
    samples.write_text(header() + tick(1.0, aaaa=busy(0.5)))
    assert summarize(samples, uuids=[A], intervals=[]).absent == "the run has no timed windows"


def test_a_sampler_that_died_at_once_is_quoted(samples: Path) -> None:
    stderr_path(samples).write_text("Traceback (most recent call last):\n  …\nOSError: disk full\n")
    absent = summarize(samples, uuids=[A], intervals=[(0, 9)]).absent
    assert absent == "the GPU sampler ended before its first sample: OSError: disk full"


def test_a_run_without_gpus_needs_no_samples(samples: Path) -> None:
    samples.write_text(header())
    assert summarize(samples, uuids=[], intervals=[(0, 9)]).absent == "the run used no GPU"
