"""Baselines from measured runs: what goes in, and what is refused."""

from typing import Any

import pytest
from changing import replace
from format_page import example

from gpuscale.base.errors import UsageError
from gpuscale.judge.recording import baseline_from_results, entries_of
from gpuscale.records import GpuDevice, Results, Run
from gpuscale.store.codec import decode_baseline, decode_results, encode_baseline

EXAMPLE = decode_results(example("results"))
FAILED = EXAMPLE.runs[1]


def night(*runs: Run, created_at: str = "2026-11-21T03:30:15+00:00", **environment: Any) -> Results:
    where = replace(EXAMPLE.environment, **environment)
    return replace(EXAMPLE, created_at=created_at, runs=runs, environment=where)


def valid(**changes: Any) -> Run:
    return replace(EXAMPLE.runs[0], **changes)


def of_size(size: str) -> Run:
    return valid(configuration=replace(valid().configuration, size=size))


def on_gpu(name: str) -> dict[str, Any]:
    return {"device": "cuda", "gpus": (GpuDevice(index=0, name=name),)}


def refusal(*nights: Results, minimum_runs: int = 6) -> str:
    with pytest.raises(UsageError) as caught:
        baseline_from_results(nights, name="n", cluster="c", minimum_runs=minimum_runs)
    message = str(caught.value)
    assert message.isprintable()
    return message


def test_valid_runs_are_put_together_by_configuration_and_gpus() -> None:
    nights = [
        night(*[valid()] * 4, FAILED, *[of_size("full")] * 6, job_id="17"),
        night(*[valid()] * 2, job_id="18", created_at="2026-11-22T03:30:15+00:00"),
    ]
    baseline = baseline_from_results(nights, name="autumn", cluster="ARC4")
    entries = entries_of(baseline.runs)
    assert [(e.configuration.size, e.gpus, len(runs)) for e, runs in entries.items()] == [
        ("smoke", 2, 6),
        ("full", 2, 6),
    ]
    first = baseline.runs[:6]
    assert [run.allocation for run in first] == ["17"] * 4 + ["18"] * 2
    assert first[0].step_time_s == valid().step_time_s
    assert (first[0].windows, first[0].ranks) == ((), valid().ranks)
    assert (first[0].batch_per_gpu, first[0].sample_shape) == (32, (1, 28, 28))
    assert baseline.recorded_at == "2026-11-22T03:30:15+00:00"
    assert decode_baseline(encode_baseline(baseline)) == baseline


def test_without_a_scheduler_each_invocation_is_an_allocation() -> None:
    nights = [night(*[valid()] * 3), night(*[valid()] * 3, created_at="2026-11-22T03:30:15Z")]
    baseline = baseline_from_results(nights, name="n", cluster="c")
    assert {run.allocation for run in baseline.runs} == {
        "node017 2026-11-21T03:30:15+00:00",
        "node017 2026-11-22T03:30:15Z",
    }


def test_runs_that_another_job_added_to_a_file_are_an_allocation_of_their_own() -> None:
    resumed = night(*[valid(allocation="17")] * 3, *[valid(allocation="18")] * 3, job_id="17")
    baseline = baseline_from_results([resumed], name="n", cluster="c")
    assert [run.allocation for run in baseline.runs] == ["17"] * 3 + ["18"] * 3
    assert {job: its.job_id for job, its in baseline.environments.items()} == {
        "17": "17",
        "18": "18",
    }


def test_every_entry_that_is_short_is_named() -> None:
    runs = [*[valid()] * 5, *[of_size("full")] * 2, *[valid(gpus=4)] * 6]
    only_failed = replace(FAILED, gpus=8)
    message = refusal(night(*runs, only_failed))
    assert "needs 6 of each: mnist_cnn/ddp on 2 GPUs (size smoke) has 5; " in message
    assert "mnist_cnn/ddp on 2 GPUs (size full) has 2; " in message
    assert "mnist_cnn/ddp on 8 GPUs has 0; give the results of all nights together" in message
    assert "with '--runs 6 --resume FILE', which makes what FILE lacks" in message
    assert "on 4 GPUs" not in message


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        ({}, {"cpu_model": "POWER9"}, "AMD EPYC 7402, POWER9"),
        ({}, {"device": "cuda"}, "cpu, cuda"),
        (
            *(
                {"device": "cuda", "gpus": (GpuDevice(index=0, name=name),)}
                for name in ("A100", "V100")
            ),
            "A100, V100",
        ),
    ],
)
def test_other_hardware_is_refused(one: dict[str, Any], other: dict[str, Any], named: str) -> None:
    message = refusal(night(*[valid()] * 6, **one), night(*[valid()] * 6, **other))
    assert f"different hardware ({named}); make one baseline for each" in message
