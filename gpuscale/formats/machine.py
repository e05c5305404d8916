"""The bounds of what both results and baselines hold of a machine and its devices."""

from collections.abc import Mapping
from typing import Any

from gpuscale.errors import DecodeError
from gpuscale.formats import checks
from gpuscale.formats.checks import each, within
from gpuscale.formats.decode import Check, inside
from gpuscale.formats.text import shown
from gpuscale.records import (
    Environment,
    GpuDevice,
    GpuSummary,
    GpuWindow,
    Node,
    PcieLink,
    Phases,
)


def each_value(check_value: Check) -> Check:
    """A check of every value of an object."""

    def check(values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            try:
                check_value(value)
            except DecodeError as error:
                raise inside(f"[{shown(key).removeprefix('text ')}]", error) from None

    return check


_error_count = within(0, 2**64, "a count")
MACHINE_FIELDS: Mapping[type, Mapping[str, Check]] = {
    Environment: {"host": checks.name, "cpu_count": checks.positive_count},
    Node: {"host": checks.name, "cpu_count": checks.positive_count},
    GpuDevice: {
        "index": checks.number_of_device,
        "name": checks.name,
        "memory_bytes": checks.size_bytes,
    },
    Phases: {
        "data_s": checks.duration,
        "h2d_s": checks.duration,
        "forward_s": checks.duration,
        "backward_s": checks.duration,
        "optimizer_s": checks.duration,
    },
    GpuSummary: {
        "uuid": checks.name,
        "samples": checks.count,
        "utilization_mean": within(0, 1, "a share of time"),
        "memory_used_peak_bytes": checks.size_bytes,
        "power_mean_w": within(0, 1e6, "a power in watts"),
        "sm_clock_mean_mhz": within(0, 1e6, "a clock in MHz"),
        "memory_clock_mean_mhz": within(0, 1e6, "a clock in MHz"),
        "temperature_max_c": within(-273.15, 1000, "a temperature in °C"),
        "energy_j": within(0, 1e15, "an energy in joules"),
        "power_limit_w": within(0, 1e6, "a power in watts"),
        "clock_event_reasons": each_value(within(0, 1, "a share of samples")),
        "nvlink_links": checks.count,
        "nvlink_active_min": checks.count,
        "nvlink_errors": each_value(_error_count),
        "ecc_corrected": _error_count,
        "ecc_uncorrected": _error_count,
        "xids": each(checks.count),
    },
    GpuWindow: {
        "samples": checks.count,
        "utilization_mean": within(0, 1, "a share of time"),
        "memory_used_peak_bytes": checks.size_bytes,
        "power_mean_w": within(0, 1e6, "a power in watts"),
        "sm_clock_mean_mhz": within(0, 1e6, "a clock in MHz"),
        "temperature_max_c": within(-273.15, 1000, "a temperature in °C"),
        "energy_j": within(0, 1e15, "an energy in joules"),
        "clock_event_reasons": each_value(within(0, 1, "a share of samples")),
    },
    PcieLink: {
        "generation": checks.count,
        "width": checks.count,
        "max_generation": checks.count,
        "max_width": checks.count,
    },
}
"""Checks of single fields, for `Rules.fields`."""
