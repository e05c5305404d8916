"""What telemetry adds to a run's line in the results file."""

import json
from typing import Any

import pytest
from changing import replace
from scaling_records import environment, gpu_summary, results, run

from gpuscale.errors import DecodeError
from gpuscale.formats import decode_results, encode_header, encode_run
from gpuscale.records import GpuSummary, GpuWindow, PcieLink, Run

FULL = replace(
    gpu_summary(0.9),
    memory_clock_mean_mhz=877.0,
    temperature_max_c=71.0,
    energy_j=1234.5,
    power_limit_w=300.0,
    clock_event_reasons={"hw_slowdown": 0.25, "sw_power_cap": 1.0},
    pcie=PcieLink(generation=3, width=8, max_generation=3, max_width=16),
    nvlink_links=6,
    nvlink_active_min=5,
    nvlink_errors={"crc": 0, "replay": 3},
    ecc_corrected=2**40,
    ecc_uncorrected=0,
    xids=(63, 79),
    windows=(
        GpuWindow(
            samples=9,
            utilization_mean=0.9,
            memory_used_peak_bytes=2**34,
            power_mean_w=250.0,
            sm_clock_mean_mhz=1380.0,
            temperature_max_c=71.0,
            energy_j=1234.5,
            clock_event_reasons={},
        ),
    ),
)


def of_one_gpu(summary: GpuSummary) -> Run:
    return replace(run(1, 0.1), gpu_summaries=(summary,))


def written(summary: GpuSummary) -> str:
    measured = results()
    header = encode_header(
        created_at=measured.created_at,
        gpuscale_version=measured.gpuscale_version,
        environment=environment(),
    )
    return f"{header}\n{encode_run(of_one_gpu(summary))}\n"


@pytest.mark.parametrize(
    "summary",
    [
        FULL,
        gpu_summary(0.9),
        replace(FULL, xids=(), clock_event_reasons={}, windows=(GpuWindow(samples=0),)),
    ],
    ids=["all", "as version 0.1 wrote it", "nothing happened"],
)
def test_a_summary_is_read_back_as_it_was_written(summary: GpuSummary) -> None:
    assert decode_results(written(summary)).runs == (of_one_gpu(summary),)


def test_what_a_device_does_not_offer_is_left_out_and_never_0() -> None:
    (summary,) = json.loads(encode_run(of_one_gpu(gpu_summary(0.9))))["run"]["gpu_summaries"]
    assert not {"energy_j", "ecc_corrected", "xids", "pcie", "windows"} & set(summary)


def test_an_empty_list_of_events_is_written_since_it_says_that_there_were_none() -> None:
    quiet = replace(FULL, xids=(), clock_event_reasons={})
    (summary,) = json.loads(encode_run(of_one_gpu(quiet)))["run"]["gpu_summaries"]
    assert (summary["xids"], summary["clock_event_reasons"]) == ([], {})


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"energy_j": -1.0}, "energy_j"),
        ({"clock_event_reasons": {"sw_power_cap": 1.5}}, "clock_event_reasons['sw_power_cap']"),
        ({"nvlink_errors": {"replay": -1}}, "nvlink_errors['replay']"),
        ({"pcie": {"generation": -3}}, "pcie.generation"),
        ({"windows": [{"samples": 3, "utilization_mean": 90}]}, "windows[0].utilization_mean"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_place(
    change: dict[str, Any], place: str
) -> None:
    header, line = written(FULL).splitlines()
    value = json.loads(line)
    value["run"]["gpu_summaries"][0].update(change)
    with pytest.raises(DecodeError) as caught:
        decode_results(f"{header}\n{json.dumps(value)}\n")
    assert caught.value.line == 2
    assert caught.value.place == f"run.gpu_summaries[0].{place}"
