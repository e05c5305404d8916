import json
import math
from typing import Any

import pytest
from builders import gpu_summary
from statements import known

from gpuscale.base.errors import DecodeError
from gpuscale.base.gpu_counters import NUMBERS, clock_events, values_problem
from gpuscale.records import GpuSummary
from gpuscale.records.record import from_json, to_json

FULL = GpuSummary(
    uuid="GPU-0",
    name="Tesla V100-SXM2-16GB",
    samples=10,
    absent=("power: Not Supported",),
    values={name: min(field.quantity.high, 2**40) for name, field in NUMBERS.items()},
    clock_event_reasons={"hw_slowdown": 0.25, "sw_power_cap": 1.0},
)
BOUNDS = {
    "utilization_mean": (0, 1),
    "memory_used_peak_bytes": (0, 2**60),
    "power_mean_w": (0, 1e6),
    "energy_j": (0, 1e15),
    "sm_clock_mean_mhz": (0, 1e6),
    "temperature_max_c": (-273.15, 1000),
    "pcie_width": (0, 10**9),
    "ecc_corrected": (0, 2**64),
}


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


@pytest.mark.parametrize(("name", "bounds"), BOUNDS.items())
def test_a_counter_is_refused_beyond_its_bounds(name: str, bounds: tuple[float, float]) -> None:
    low, high = bounds
    assert values_problem({name: low}) is None
    assert values_problem({name: high}) is None
    for value in (low - 1, high * 1.001, math.nan):
        problem = known(values_problem({name: value}))
        assert problem.startswith(f"values.{name}: expected {NUMBERS[name].quantity.what}")


def test_clock_events_are_named_by_their_bits_and_new_ones_by_number() -> None:
    assert clock_events(0) == ()
    assert clock_events(0b1100_0000_0001) == ("gpu_idle", "reliability", "reason_0x800")
