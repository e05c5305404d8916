"""A baseline's runs, judged like any others: what it keeps comes back unchanged."""

import random
from dataclasses import replace

import pytest
from phase_records import phased_run, phases
from scaling_records import CNN, V100, baseline, environment, gpu_summary, results, run

from gpuscale.compare import compare
from gpuscale.evidence import evidence_of
from gpuscale.recording import baseline_from_results, results_of
from gpuscale.records import Baseline, GpuDevice, Hardware, Run, Verdict


def recorded(*runs: Run) -> Baseline:
    return baseline_from_results([results(*runs)], name="n", cluster="c", minimum_runs=1)


def test_step_times_allocations_and_configurations_come_back() -> None:
    then = baseline({1: [1.0, 1.1, 1.2], 4: [1.3, 1.4]}, allocations=("17", "18"))
    again = baseline_from_results(results_of(then), name="n", cluster="c", minimum_runs=1)
    assert [(e.configuration, e.gpus, e.batch_per_gpu) for e in again.measured] == [
        (CNN, 1, 128),
        (CNN, 4, 128),
    ]
    for before, after in zip(then.measured, again.measured, strict=True):
        assert {(r.allocation, r.step_time_s) for r in before.runs} == {
            (r.allocation, r.step_time_s) for r in after.runs
        }


def test_evidence_comes_back() -> None:
    plain = phased_run(
        [phases(forward_s=0.2, backward_s=0.3), phases(forward_s=0.25, backward_s=0.3)],
        communication_s=0.05,
    )
    measured = replace(
        plain,
        ranks=tuple(replace(r, peak_memory_bytes=1000 + r.rank) for r in plain.ranks),
        gpu_summaries=tuple(replace(gpu_summary(0.9), uuid=u, energy_j=90.0) for u in "ab"),
        steps_per_window=1,
    )
    before = evidence_of(measured)
    assert before.energy_per_sample_j == pytest.approx(180 / (2 * 128))
    (again,) = results_of(recorded(measured))
    after = evidence_of(again.runs[0])
    assert after.exposed_communication_s == pytest.approx(before.exposed_communication_s)
    assert after.peak_memory_bytes == before.peak_memory_bytes == 1001
    assert after.energy_per_sample_j == pytest.approx(before.energy_per_sample_j)
    assert after.ranks == before.ranks


def test_an_incomplete_energy_counter_stays_unknown() -> None:
    counted = replace(gpu_summary(0.9), energy_j=90.0)
    one = replace(run(1, 1.0), gpu_summaries=(counted, replace(counted, energy_j=None)))
    (again,) = results_of(recorded(one))
    assert evidence_of(again.runs[0]).energy_per_sample_j is None


def test_environments_come_back_and_what_is_not_known_is_the_hardware() -> None:
    there = environment(job_id="17")
    kept = baseline_from_results(
        [results(run(1, 1.0), where=there)], name="n", cluster="c", minimum_runs=1
    )
    assert results_of(kept)[0].environment == there
    (bare,) = results_of(baseline({1: [1.0]}, allocations=("18",)))
    assert bare.allocation == "18"
    assert [gpu.name for gpu in bare.environment.gpus] == ["V100"] * 4
    nameless = replace(baseline({1: [1.0]}), hardware=Hardware(device="cuda"))
    assert results_of(nameless)[0].environment.gpus == ()
    assert GpuDevice(index=0, name="V100") in bare.environment.gpus


def test_a_slower_baseline_is_judged_slower_than_its_older_self() -> None:
    rng = random.Random(7)

    def times(mean_s: float) -> list[float]:
        return [mean_s * rng.gauss(1, 0.003) for _ in range(6)]

    then = baseline({1: times(1.0), 4: times(1.1)}, allocations=("then",))
    slower = baseline({1: times(1.0), 4: times(1.3)}, allocations=("now",))
    verdicts = {e.key.gpus: e.verdict for e in compare(then, results_of(slower)).entries}
    assert verdicts == {1: Verdict.OK, 4: Verdict.REGRESSED}
    other = replace(slower, hardware=replace(V100, gpu_name="A100"))
    assert {e.verdict for e in compare(then, results_of(other)).entries} == {Verdict.INCOMPARABLE}
