"""Reducing a samples file to a run's windows, for files with known truth."""

from pathlib import Path

import pytest

from gpuscale.records import GpuWindow, PcieLink
from gpuscale.run_directory import stderr_path
from gpuscale.telemetry import summarize
from gpuscale.telemetry.energy import EnergyCounter
from gpuscale.telemetry.probe import Condition, Reading
from gpuscale.telemetry.samples import (
    Header,
    SampledDevice,
    Tick,
    header_line,
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
    conditions = dict.fromkeys(readings, Condition())
    return tick_line(Tick(time_s=time_s, readings=readings, conditions=conditions))


def look(time_s: float, condition: Condition) -> str:
    return tick_line(Tick(time_s=time_s, readings={A: busy(0.5)}, conditions={A: condition}))


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


def test_samples_of_the_driver_count_by_their_own_times_and_only_where_there_are_any(
    samples: Path,
) -> None:
    first = Condition(utilization_samples=((9.5, 0.0), (10.5, 0.6)), power_samples=())
    last = Condition(utilization_samples=((10.8, 0.8), (11.5, 0.0)))
    samples.write_text(header() + look(9.8, first) + look(10.5, Condition()) + look(13.0, last))
    windows = [(10.0, 11.0), (12.0, 14.0)]
    (gpu,) = summarize(samples, uuids=[A], intervals=windows).gpu_summaries
    assert gpu.utilization_mean == pytest.approx(0.7)
    assert gpu.power_mean_w == 200.0
    # Nothing was buffered in the second window: its one reading stands.
    assert [window.utilization_mean for window in gpu.windows] == [pytest.approx(0.7), 0.5]


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


def test_each_window_has_its_own_values_and_an_empty_one_has_none(samples: Path) -> None:
    samples.write_text(
        header()
        + tick(1.0, aaaa=busy(0.25, memory=10, power=100))
        + tick(1.5, aaaa=busy(0.75, memory=30, power=200))
        + tick(3.0, aaaa=busy(0.9, memory=20, power=300))
    )
    intervals = [(1.0, 2.0), (2.1, 2.9), (3.0, 4.0)]
    (gpu,) = summarize(samples, uuids=[A], intervals=intervals).gpu_summaries
    first, empty, last = gpu.windows
    assert first == GpuWindow(
        samples=2,
        utilization_mean=0.5,
        memory_used_peak_bytes=30,
        power_mean_w=150,
        sm_clock_mean_mhz=1300,
    )
    assert empty == GpuWindow(samples=0)
    assert (last.samples, last.power_mean_w) == (1, 300)


def test_a_device_that_was_not_found_has_empty_windows_too(samples: Path) -> None:
    found = header(aaaa=SampledDevice(name="one"), bbbb=SampledDevice(absent="unknown UUID"))
    samples.write_text(found + tick(1.0, aaaa=busy(0.5)))
    _, absent = summarize(samples, uuids=[A, B], intervals=[(0, 2), (2, 4)]).gpu_summaries
    assert absent.windows == (GpuWindow(samples=0), GpuWindow(samples=0))


def test_energy_is_read_off_the_counter_at_the_ends_of_each_window(samples: Path) -> None:
    # 200 W until 12 s, then 400 W, from a counter that did not begin at 0.
    joules = {10.0: 5000.0, 11.0: 5200.0, 12.0: 5400.0, 13.0: 5800.0, 14.0: 6200.0}
    samples.write_text(
        header() + "".join(tick(at, aaaa=Reading(energy_j=count)) for at, count in joules.items())
    )
    intervals = [(10.5, 11.5), (11.75, 12.25), (12.5, 13.5)]
    (gpu,) = summarize(samples, uuids=[A], intervals=intervals).gpu_summaries
    assert [window.energy_j for window in gpu.windows] == pytest.approx([200, 150, 400])
    assert gpu.energy_j == pytest.approx(750)


def test_energy_is_unknown_unless_the_counter_was_read_on_both_sides() -> None:
    counter = EnergyCounter([(10.0, 100.0), (11.0, 300.0), (12.0, 20.0), (13.0, 220.0)])
    assert counter.between(10.0, 11.0) == pytest.approx(200)
    assert counter.between(9.9, 11.0) is None
    assert counter.between(12.5, 13.1) is None
    # The counter began anew, as after a reload of the driver.
    assert counter.between(10.5, 12.5) is None
    assert EnergyCounter([]).between(1.0, 2.0) is None


def test_clock_event_reasons_have_the_share_of_samples_in_which_they_held(samples: Path) -> None:
    held = [("sw_power_cap",), ("sw_power_cap", "hw_slowdown"), (), ("sw_power_cap",)]
    readings = [Reading(clock_event_reasons=reasons) for reasons in held]
    samples.write_text(header() + "".join(tick(float(i), aaaa=r) for i, r in enumerate(readings)))
    (gpu,) = summarize(samples, uuids=[A], intervals=[(0, 1), (2, 3)]).gpu_summaries
    assert gpu.clock_event_reasons == {"hw_slowdown": 0.25, "sw_power_cap": 0.75}
    shares = [window.clock_event_reasons for window in gpu.windows]
    assert shares == [{"hw_slowdown": 0.5, "sw_power_cap": 1.0}, {"sw_power_cap": 0.5}]


def test_no_reason_held_is_told_from_reasons_that_are_not_offered(samples: Path) -> None:
    samples.write_text(header() + tick(1.0, aaaa=Reading(clock_event_reasons=())))
    (gpu,) = summarize(samples, uuids=[A], intervals=[(0, 2)]).gpu_summaries
    assert gpu.clock_event_reasons == {}
    samples.write_text(header() + tick(1.0, aaaa=busy(0.5)))
    (gpu,) = summarize(samples, uuids=[A], intervals=[(0, 2)]).gpu_summaries
    assert gpu.clock_event_reasons is None


def test_the_pcie_link_counts_between_the_windows_ends_and_by_its_worst(samples: Path) -> None:
    def link(generation: int, width: int) -> Condition:
        pcie = PcieLink(generation=generation, width=width, max_generation=4, max_width=16)
        return Condition(pcie=pcie, power_limit_w=300.0)

    samples.write_text(
        header()
        + look(1.0, link(1, 16))  # idle before the run
        + look(10.5, link(4, 16))
        + look(11.5, link(4, 8))  # between two windows, under load as well
        + look(20.0, link(1, 4))
    )
    (gpu,) = summarize(samples, uuids=[A], intervals=[(10, 11), (12, 13)]).gpu_summaries
    assert gpu.pcie == PcieLink(generation=4, width=8, max_generation=4, max_width=16)
    assert gpu.power_limit_w == 300
    assert gpu.absent == ()


def test_a_link_that_was_read_only_outside_the_windows_is_absent_and_says_so(
    samples: Path,
) -> None:
    idle = Condition(pcie=PcieLink(generation=1, width=16), power_limit_w=300.0)
    samples.write_text(
        header() + look(1.0, idle) + tick_line(Tick(time_s=5, readings={A: busy(1)}))
    )
    (gpu,) = summarize(samples, uuids=[A], intervals=[(4, 6)]).gpu_summaries
    assert (gpu.pcie, gpu.power_limit_w) == (None, None)
    assert gpu.absent == ("PCIe, power limit: not read between the windows' begin and end",)


def test_errors_count_from_the_first_look_to_the_last(samples: Path) -> None:
    def errors(ecc: int, crc: int, *xids: int, active: int = 2) -> Condition:
        return Condition(
            nvlink_active=tuple(link < active for link in range(2)),
            nvlink_errors={"crc": crc},
            ecc_corrected=ecc,
            ecc_uncorrected=0,
            xids=xids,
        )

    samples.write_text(
        header()
        + look(1.0, errors(40, 7))
        + look(5.0, errors(40, 9, 63, active=1))
        + look(9.0, errors(43, 9, 94, 95))
    )
    (gpu,) = summarize(samples, uuids=[A], intervals=[(4, 6)]).gpu_summaries
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.nvlink_errors) == (3, 0, {"crc": 2})
    assert (gpu.nvlink_links, gpu.nvlink_active_min) == (2, 1)
    assert gpu.xids == (63, 94, 95)


def test_a_counter_that_was_read_once_or_began_anew_has_no_difference(samples: Path) -> None:
    samples.write_text(header() + look(1.0, Condition(ecc_corrected=40, xids=())))
    (gpu,) = summarize(samples, uuids=[A], intervals=[(0, 2)]).gpu_summaries
    assert (gpu.ecc_corrected, gpu.nvlink_errors, gpu.xids) == (None, None, ())
    reset = look(1.0, Condition(ecc_corrected=40)) + look(1.5, Condition(ecc_corrected=2))
    samples.write_text(header() + reset)
    (gpu,) = summarize(samples, uuids=[A], intervals=[(0, 2)]).gpu_summaries
    assert gpu.ecc_corrected is None
