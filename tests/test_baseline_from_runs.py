"""Baselines from measured runs, and how they change: what goes in, and what is refused."""

import math
import random
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from builders import measured
from changing import replace
from format_page import example
from statements import known

from gpuscale.base.errors import UsageError
from gpuscale.cli.baseline_update import accepted, additions, night_sizes, smallest_losses
from gpuscale.judge.baseline import baseline_from_results, entries_of, proposals, revised
from gpuscale.judge.compare import compare
from gpuscale.records import Baseline, GpuDevice, Results, Run
from gpuscale.store.file_formats import decode_baseline, decode_results, encode_baseline

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
    found = [(e.configuration.size, e.gpus, len(runs)) for e, runs in entries.items()]
    assert found == [("smoke", 2, 6), ("full", 2, 6)]
    first = baseline.runs[:6]
    assert [run.allocation for run in first] == ["17"] * 4 + ["18"] * 2
    assert first[0].step_time_s == valid().step_time_s
    assert (first[0].windows, first[0].ranks) == ((), valid().ranks)
    assert (first[0].batch_per_gpu, first[0].sample_shape) == (32, (1, 28, 28))
    assert baseline.recorded_at == "2026-11-22T03:30:15+00:00"
    assert decode_baseline(encode_baseline(baseline)) == baseline


def test_allocations_are_jobs_also_in_a_file_of_several_and_else_invocations() -> None:
    resumed = night(*[valid(allocation="17")] * 3, *[valid(allocation="18")] * 3, job_id="17")
    baseline = baseline_from_results([resumed], name="n", cluster="c")
    assert [run.allocation for run in baseline.runs] == ["17"] * 3 + ["18"] * 3
    jobs = {job: its.job_id for job, its in baseline.environments.items()}
    assert jobs == {"17": "17", "18": "18"}
    # Without a scheduler.
    moments = ("2026-11-21T03:30:15+00:00", "2026-11-22T03:30:15Z")
    nights = [night(*[valid()] * 3, created_at=moment) for moment in moments]
    baseline = baseline_from_results(nights, name="n", cluster="c")
    assert {run.allocation for run in baseline.runs} == {f"node017 {each}" for each in moments}


def test_every_entry_that_is_short_is_named() -> None:
    runs = [*[valid()] * 5, *[of_size("full")] * 2, *[valid(gpus=4)] * 6]
    only_failed = replace(FAILED, gpus=8)
    message = refusal(night(*runs, only_failed))
    assert "needs 6 of each: mnist_cnn/ddp on 2 CPU ranks (size smoke) has 5; " in message
    assert "mnist_cnn/ddp on 2 CPU ranks (size full) has 2; " in message
    assert "mnist_cnn/ddp on 8 CPU ranks has 0; give the results of all nights together" in message
    assert "with '--runs 3 --resume FILE', which makes the runs that FILE lacks" in message
    assert "on 4 GPUs" not in message


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        ({}, {"cpu_model": "POWER9"}, "AMD EPYC 7402, POWER9"),
        ({}, {"device": "cuda"}, "cpu, cuda"),
        (on_gpu("A100"), on_gpu("V100"), "A100, V100"),
    ],
)
def test_other_hardware_is_refused(one: dict[str, Any], other: dict[str, Any], named: str) -> None:
    message = refusal(night(*[valid()] * 6, **one), night(*[valid()] * 6, **other))
    assert f"different hardware ({named}); make one baseline for each" in message


THEN = {1: [1.0] * 6, 2: [1.1] * 6}
AT = "2026-12-01T09:00:00+00:00"


def recorded(*nights: Results) -> Baseline:
    baseline = baseline_from_results(nights, name="n", cluster="c")
    return replace(baseline, recorded_by="alice")


def revise(baseline: Baseline, *nights: Results, accept: Sequence[str] = ("all",)) -> Baseline:
    chosen = accepted(proposals(baseline, nights), accept)
    return revised(baseline, chosen, nights, reason="new NCCL", at=AT, by="bob")


def test_fewer_runs_or_allocations_than_before_are_warned_of() -> None:
    before = recorded(measured(THEN, job_id="17"), measured(THEN, job_id="18"))
    found = proposals(before, [measured({1: [1.0] * 12, 2: [1.2] * 5}, job_id="19")])
    assert ["allocations 2 → 1" in each.remark for each in found] == [True, True]
    assert ["runs" in each.remark for each in found] == [False, True]
    alike = proposals(recorded(measured(THEN, job_id="1")), [measured(THEN, job_id="2")])
    assert not any(each.remark for each in alike)


@pytest.mark.parametrize(
    ("selectors", "rows"),
    [
        (["mnist_cnn/ddp@2"], [2]),
        (["mnist_cnn"], [1, 2]),
        (["mnist_cnn@2", "all"], [1, 2]),
        ([], []),
    ],
)
def test_a_selector_names_one_row_or_a_whole_case(selectors: list[str], rows: list[int]) -> None:
    found = proposals(recorded(measured(THEN, job_id="17")), [measured(THEN, job_id="18")])
    assert [proposal.entry.gpus for proposal in accepted(found, selectors)] == rows


def test_history_keeps_the_old_value_and_the_reason() -> None:
    before = recorded(measured(THEN, job_id="17"))
    slower = measured({1: [1.0] * 6, 2: [1.2] * 6}, job_id="18")
    after = revise(before, slower, accept=["mnist_cnn@2"])
    assert after.runs[:6] == before.runs[:6]
    assert {each.step_time_s for each in after.runs[6:]} == {1.2}
    assert {each.allocation for each in after.runs[6:]} == {"18"}
    (change,) = after.history
    assert (change.at, change.reason, change.by) == (AT, "new NCCL", "bob")
    assert [(r.step_time_s, r.allocation) for r in change.replaced] == [(1.1, "17")] * 6
    assert all(each.ranks == () for each in change.replaced)
    assert (after.recorded_by, after.recorded_at) == ("alice", before.recorded_at)
    assert decode_baseline(encode_baseline(after)) == after


def test_environments_go_with_the_last_of_their_runs() -> None:
    before = recorded(measured(THEN, job_id="17"))
    half = revise(before, measured(THEN, job_id="18"), accept=["mnist_cnn@2"])
    assert set(half.environments) == {"17", "18"}
    whole = revise(half, measured(THEN, job_id="19"))
    assert set(whole.environments) == {"19"}
    assert whole.history[0] == half.history[0]


def drawn_night(
    draw: random.Random, name: str, runs: int, spread: tuple[float, float], loss: float = 1.0
) -> Results:
    """Draw a night on 1 and 2 GPUs, of which those lose twice as much.

    `spread` is the deviation between nights and that between runs.
    """
    level = draw.gauss(0, spread[0])
    logs = {n: [level + draw.gauss(0, spread[1]) for _ in range(runs)] for n in (1, 2)}
    times = {n: [loss**n * math.exp(log) for log in of_row] for n, of_row in logs.items()}
    return measured(times, job_id=name)


def test_a_loss_is_kept_out_of_a_growing_baseline_and_good_nights_are_not() -> None:
    # Nights deviate by 1%, runs by 0.3%; in 800 such baselines 2% of the good nights were refused.
    noise, refused, nights = random.Random(7), {1.0: 0, 1.05: 0}, 20 * 5
    for _ in range(20):
        baseline = recorded(drawn_night(noise, "1", 3, (0.01, 0.003)))
        for job in range(2, 7):
            for loss in (1.05, 1.0):
                now = drawn_night(noise, str(job), 3, (0.01, 0.003), loss)
                found = proposals(baseline, [now], add=True)
                chosen, why = additions(baseline, found, (), [now])
                refused[loss] += not chosen
            if chosen:
                baseline = revised(baseline, chosen, [now], reason=why, at=AT)
    assert refused[1.0] <= 0.06 * nights
    assert refused[1.05] >= 0.95 * nights


@pytest.mark.parametrize(("nights", "runs"), [(1, 6), (3, 3), (6, 3), (6, 1)])
def test_the_promise_of_a_baseline_is_what_one_more_night_finds(nights: int, runs: int) -> None:
    apart = []
    for seed in range(40):
        draw = random.Random(seed)
        spread = draw.choice((0.003, 0.02, 0.05)), draw.choice((0.003, 0.02))
        made = [drawn_night(draw, f"n{number}", runs, spread) for number in range(nights + 1)]
        baseline = baseline_from_results(made[:-1], name="b", cluster="c")
        promised = {
            each.label: each.loss for each in smallest_losses(baseline, night_sizes(baseline))
        }
        for entry in compare(baseline, made[-1:]).entries:
            found = known(entry.minimum_detectable_loss)
            apart.append(abs(math.log(promised[entry.label] / found)))
    assert statistics.median(apart) < 0.2
