"""Reducing a samples file to a run's windows, for files with known truth, and its fields."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import gpu_summary, run, window
from changing import replace
from statements import known

from gpuscale.base.errors import DecodeError
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.measure.telemetry.sampler import SampledDevice, Tick, line_of
from gpuscale.measure.telemetry.summary import summarize, with_telemetry
from gpuscale.records import GpuSummary, with_measured
from gpuscale.records.gpu_and_port_counters import NUMBERS, Reading, clock_events, values_problem
from gpuscale.records.record import from_json, to_json

ENDED = "the GPU sampler ended before its first sample, as after a hang in the driver"
OUTSIDE = "no sample fell into the run's windows"
A, B = "aaaa", "bbbb"


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    return tmp_path / "samples.jsonl"


def header(**devices: SampledDevice) -> str:
    return line_of(devices or {A: SampledDevice(name="Fake V100")})


def tick(time_s: float, **readings: Reading) -> str:
    return line_of(Tick(time_s=time_s, readings=readings))


def look(time_s: float, **answers: object) -> str:
    """Return a tick with further answers, such as those that are asked for only once a second."""
    return tick(time_s, aaaa=Reading(answers={**busy(0.5).answers, **answers}))


def one(samples: Path, *ticks: str, intervals: Sequence[tuple[float, float]]) -> GpuSummary:
    samples.write_text(header() + "".join(ticks))
    (gpu,) = summarize(samples, intervals).gpu_summaries
    return gpu


def busy(utilization: float, *, memory: int = 100, power: float = 200.0) -> Reading:
    values = {"memory_used_bytes": memory, "power_w": power, "sm_clock_mhz": 1300.0}
    return Reading(answers={"utilization": utilization, **values})


def test_only_samples_inside_the_windows_count(samples: Path) -> None:
    samples.write_text(
        header()
        + tick(9.9, aaaa=busy(0.0, memory=900, power=50))
        + tick(10.0, aaaa=busy(0.8, memory=100, power=200))
        + tick(10.5, aaaa=busy(1.0, memory=300, power=260))
        + tick(11.5, aaaa=busy(0.0, memory=900, power=50))
        + tick(12.0, aaaa=busy(0.9, memory=200, power=230))
    )
    report = summarize(samples, [(10.0, 11.0), (12.0, 13.0)])
    (gpu,) = report.gpu_summaries
    assert report.absent is None
    assert (gpu.uuid, gpu.name, gpu.samples, gpu.absent) == (A, "Fake V100", 3, ())
    means = {"utilization_mean": 0.9, "power_mean_w": 230, "sm_clock_mean_mhz": 1300}
    assert gpu.values == pytest.approx({**means, "memory_used_peak_bytes": 300})


def test_devices_keep_the_order_of_the_run_and_their_own_values(samples: Path) -> None:
    devices = {A: SampledDevice(name="one"), B: SampledDevice(name="two")}
    found = header(**devices, cccc=SampledDevice(absent="unknown UUID"))
    samples.write_text(found + tick(1.0, aaaa=busy(0.2), bbbb=busy(0.7)))
    one, two, lost = summarize(samples, [(0, 2), (2, 4)]).gpu_summaries
    assert [(gpu.name, gpu.samples) for gpu in (two, one)] == [("two", 1), ("one", 1)]
    assert [gpu.values["utilization_mean"] for gpu in (two, one)] == [0.7, 0.2]
    assert (lost.uuid, lost.samples, lost.values) == ("cccc", 0, {})
    assert lost.absent == ("device: unknown UUID",)


def test_a_line_that_is_still_being_written_is_left_out(samples: Path) -> None:
    last = tick(2.0, aaaa=busy(0.1))
    for cut in range(1, len(last), 7):
        samples.write_text(header() + tick(1.0, aaaa=busy(0.5)) + last[:-cut])
        (gpu,) = summarize(samples, [(0, 9)]).gpu_summaries
        # Only the line's end may be missing without making it another text.
        expected = (2, 0.3) if cut == 1 else (1, 0.5)
        assert (gpu.samples, gpu.values["utilization_mean"]) == expected


def test_a_field_that_was_not_read_each_time_carries_the_reason(samples: Path) -> None:
    reading = Reading(answers={"utilization": 0.5}, absent={"power_w": "Not Supported"})
    gpu = one(samples, tick(1.0, aaaa=reading) * 2, intervals=[(0, 9)])
    assert gpu.values == {"utilization_mean": 0.5}
    assert "power: Not Supported" in gpu.absent
    lost = Reading(absent={"utilization": "GPU is lost"})
    gpu = one(samples, tick(1.0, aaaa=busy(0.5)), tick(2, aaaa=lost) * 3, intervals=[(0, 9)])
    assert (gpu.samples, gpu.values["utilization_mean"]) == (4, 0.5)
    assert gpu.absent[0] == "utilization: GPU is lost"


@pytest.mark.parametrize(
    ("text", "windows", "reason"),
    [
        (header(aaaa=SampledDevice(absent="unknown UUID")), [(0, 9)], "unknown UUID"),
        (header() + tick(1.0, aaaa=busy(0.5)) * 4, [(2, 3)], OUTSIDE),
        (header() + tick(1.0, aaaa=busy(0.5)), [], OUTSIDE),
        ("", [(0, 9)], ENDED),
        (header(), [(0, 9)], ENDED),
    ],
)
def test_without_any_sample_the_reason_stands_in_for_the_summaries(
    samples: Path, text: str, windows: list[tuple[float, float]], reason: str
) -> None:
    samples.write_text(text)
    report = summarize(samples, windows)
    assert (report.gpu_summaries, report.absent) == ((), reason)


def test_energy_is_read_off_the_counter_at_the_ends_of_each_window(samples: Path) -> None:
    # 200 W until 12 s, then 400 W, from a counter that did not begin at 0.
    joules = {10.0: 5000.0, 11.0: 5200.0, 12.0: 5400.0, 13.0: 5800.0, 14.0: 6200.0}
    looks = [look(at, energy_j=count) for at, count in joules.items()]
    intervals = [(10.5, 11.5), (11.75, 12.25), (12.5, 13.5)]
    found = [one(samples, *looks, intervals=[each]).values["energy_j"] for each in intervals]
    assert found == pytest.approx([200, 150, 400])
    gpu = one(samples, *looks, intervals=intervals)
    assert gpu.values["energy_j"] == pytest.approx(750)


def test_energy_is_unknown_unless_the_counter_was_read_on_both_sides(samples: Path) -> None:
    joules = {10.0: 100.0, 11.0: 300.0, 12.0: 20.0, 13.0: 220.0}
    looks = [look(at, energy_j=count) for at, count in joules.items()]
    # The counter began anew after 11 s, as it does after a reload of the driver.
    intervals = [(10.0, 11.0), (9.9, 11.0), (12.5, 13.1), (10.5, 12.5)]
    found = [one(samples, *looks, intervals=[each]).values.get("energy_j") for each in intervals]
    assert found == [pytest.approx(200), None, None, None]
    assert "energy_j" not in one(samples, *looks, intervals=intervals).values


def test_clock_event_reasons_have_the_share_of_samples_in_which_they_held(samples: Path) -> None:
    held = [("sw_power_cap",), ("sw_power_cap", "hw_slowdown"), (), ("sw_power_cap",)]
    ticks = [look(float(at), clock_event_reasons=reasons) for at, reasons in enumerate(held)]
    gpu = one(samples, *ticks, intervals=[(0, 1), (2, 3)])
    assert gpu.clock_event_reasons == {"hw_slowdown": 0.25, "sw_power_cap": 0.75}
    # None held, and none that the device offers.
    for reading, shares in ((look(1.0, clock_event_reasons=()), {}), (look(1.0), None)):
        assert one(samples, reading, intervals=[(0, 2)]).clock_event_reasons == shares


def test_the_pcie_link_counts_between_the_windows_ends_and_by_its_worst(samples: Path) -> None:
    def link(time_s: float, generation: int, width: int) -> str:
        pcie = {"pcie_generation": generation, "pcie_width": width, "pcie_max_width": 16}
        return look(time_s, **pcie, power_limit_w=300.0)

    gpu = one(
        samples,
        link(1.0, 1, 16),  # idle before the run
        link(10.5, 4, 8),
        link(11.5, 3, 16),  # between two windows, under load as well
        link(20.0, 1, 4),
        intervals=[(10, 11), (12, 13)],
    )
    assert (gpu.values["pcie_generation"], gpu.values["pcie_width"]) == (3, 8)
    assert (gpu.values["pcie_max_width"], gpu.values["power_limit_w"]) == (16, 300)


def test_a_link_that_was_read_only_outside_the_windows_is_absent_and_says_so(samples: Path) -> None:
    idle = look(1.0, pcie_generation=1, pcie_width=16, power_limit_w=300.0)
    gpu = one(samples, idle, tick(5.0, aaaa=busy(1)), intervals=[(4, 6)])
    assert not {"pcie_generation", "pcie_width", "power_limit_w"} & set(gpu.values)
    unread = "not read between the windows' begin and end"
    assert gpu.absent == (f"PCIe: {unread}", f"power limit: {unread}")


def test_errors_count_from_the_first_look_to_the_last(samples: Path) -> None:
    def errors(time_s: float, ecc: int, crc: int, *, active: int = 2) -> str:
        links = [link < active for link in range(2)]
        counts = {"nvlink_errors": crc, "ecc_corrected": ecc, "ecc_uncorrected": 0}
        return look(time_s, nvlink_active=links, **counts)

    looks = (errors(1.0, 40, 7), errors(5.0, 40, 9, active=1), errors(9.0, 43, 9))
    gpu = one(samples, *looks, intervals=[(4, 6)])
    assert (gpu.values["ecc_corrected"], gpu.values["ecc_uncorrected"]) == (3, 0)
    assert gpu.values["nvlink_errors"] == 2
    assert gpu.values["nvlink_active_min"] == 1


@pytest.mark.parametrize("counts", [(40,), (40, 2)], ids=["read once", "began anew"])
def test_a_counter_without_a_difference_is_left_out(samples: Path, counts: list[int]) -> None:
    looks = [look(1 + 0.1 * at, ecc_corrected=count) for at, count in enumerate(counts)]
    gpu = one(samples, *looks, intervals=[(0, 2)])
    assert "ecc_corrected" not in gpu.values
    assert gpu.absent == ()


def test_a_number_that_no_device_can_have_is_absent_and_the_others_are_kept(samples: Path) -> None:
    gpu = one(samples, tick(1.0, aaaa=busy(0.5, power=4294967.295)), intervals=[(0, 2)])
    assert gpu.values["utilization_mean"] == 0.5
    assert "power_mean_w" not in gpu.values
    (reason,) = gpu.absent
    assert reason.startswith("power: ")
    assert "4294967.295" in reason


def test_runs_on_several_nodes_are_summed_up_from_what_each_of_them_left(tmp_path: Path) -> None:
    directory = RunDirectory(path=tmp_path)
    directory.gpus.write({"node1": {A: None}, "node2": {B: None}, "node3": {"cccc": None}})
    began_s = window(2.0, 1).started_at_s
    for host, uuid in (("node1", A), ("node2", B)):
        device = {uuid: SampledDevice(name="Fake V100")}
        look_of_one = tick(began_s + 1, **{uuid: busy(0.5)})
        directory.samples(host).write_text(header(**device) + look_of_one)
    found = with_telemetry(run(1, 2.0), directory)
    assert [(gpu.uuid, gpu.samples) for gpu in found.gpu_summaries] == [(A, 1), (B, 1)]
    assert found.telemetry_absent == f"node3: {ENDED}"
    directory.gpus.write({"node3": {"cccc": None}})
    alone = with_telemetry(run(1, 2.0), directory)
    assert alone.telemetry_absent == ENDED


def test_energy_of_a_step_is_a_metric_of_valid_runs_alone() -> None:
    summary = GpuSummary(uuid=A, name="V100", samples=9, values={"energy_j": 100.0})
    for made in (run(1, 2.0), run(1, None)):
        found = with_measured(replace(made, gpu_summaries=(summary,)))
        assert ("energy_per_sample_j" in found.measured) is made.is_valid


FULL = GpuSummary(
    uuid="GPU-0",
    name="Tesla V100-SXM2-16GB",
    samples=10,
    absent=("power: Not Supported",),
    values={name: min(field.quantity.high, 2**40) for name, field in NUMBERS.items()},
    clock_event_reasons={"hw_slowdown": 0.25, "sw_power_cap": 1.0},
)
HIGHEST = {"utilization_mean": 1, "temperature_max_c": 1000, "pcie_width": 10**9}
HIGHEST |= {"power_mean_w": 10**6, "energy_j": 10**15, "sm_clock_mean_mhz": 10**6}
HIGHEST |= {"memory_used_peak_bytes": 2**60, "ecc_corrected": 2**64}


def test_what_a_device_does_not_offer_is_left_out_and_never_0() -> None:
    written = json.loads(to_json(gpu_summary(0.9)))
    assert written["values"] == {"utilization_mean": 0.9}
    assert "clock_event_reasons" not in written


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"values": {"energy_j": -1.0}}, "values.energy_j"),
        ({"values": {"nvlink_errors": 1.5}}, "values.nvlink_errors"),
        ({"values": {"speed": 1}}, "values"),
        ({"values": {"\n\x1b" * 999: 1}}, "values"),
        ({"clock_event_reasons": {"sw_power_cap": 1.5}}, "clock_event_reasons[...]"),
    ],
)
def test_an_impossible_value_is_refused_with_its_place(change: dict[str, Any], place: str) -> None:
    text = json.dumps({**json.loads(to_json(FULL)), **change})
    with pytest.raises(DecodeError) as caught:
        from_json(GpuSummary, text)
    assert caught.value.place == place
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(("name", "high"), HIGHEST.items())
def test_a_counter_is_refused_beyond_its_bounds(name: str, high: int) -> None:
    low = -273.15 if name == "temperature_max_c" else 0
    assert values_problem({name: low}) is None
    assert values_problem({name: high}) is None
    for value in (low - 1, high * 1.001, math.nan):
        problem = known(values_problem({name: value}))
        assert problem.startswith(f"values.{name}: expected {NUMBERS[name].quantity.what}")


def test_clock_events_are_named_by_their_bits_and_new_ones_by_number() -> None:
    assert clock_events(0) == ()
    assert clock_events(0b1100_0000_0001) == ("gpu_idle", "reliability", "reason_0x800")
