"""Verdicts against measured runs: each word, each finding, each exit code."""

import pytest
from changing import replace
from scaling_records import CNN, baseline, measured, results, run

from gpuscale.compare import compare
from gpuscale.errors import ExitCode
from gpuscale.records import (
    Baseline,
    Comparison,
    EntryVerdict,
    Finding,
    Results,
    Tolerances,
    Verdict,
)

# Six runs, then three, with a spread of about 0.3%.
THEN = (0.997, 1.003, 1.000, 1.004, 0.998, 0.999)
NOW = (0.998, 1.003, 1.000)


def _then(**step_times_s: float) -> Baseline:
    return baseline({int(n[1:]): [t * f for f in THEN] for n, t in step_times_s.items()})


def _now(**step_times_s: float) -> Results:
    return measured({int(n[1:]): [t * f for f in NOW] for n, t in step_times_s.items()})


def _row(comparison: Comparison, gpus: int) -> EntryVerdict:
    (entry,) = [entry for entry in comparison.entries if entry.key.gpus == gpus]
    return entry


def test_the_same_again_is_ok_and_says_how_sure() -> None:
    comparison = compare(_then(n1=0.1, n2=0.11), [_now(n1=0.1, n2=0.11)])
    assert [entry.verdict for entry in comparison.entries] == [Verdict.OK, Verdict.OK]
    assert comparison.exit_code is ExitCode.OK
    assert "95 % confidence" in _row(comparison, 2).reason
    assert _row(comparison, 2).changed_quantity == "E(n)"
    assert _row(comparison, 1).changed_quantity == "throughput(1)"


def test_scaling_loss_is_a_regression_of_the_row_that_scales_worse() -> None:
    comparison = compare(_then(n1=0.1, n2=0.11), [_now(n1=0.1, n2=0.12)])
    one, two = _row(comparison, 1), _row(comparison, 2)
    assert one.verdict is Verdict.OK
    assert two.verdict is Verdict.REGRESSED
    assert two.finding is Finding.SCALING_LOSS
    assert two.changed_quantity == "E(n)"
    assert two.change is not None
    assert two.change.value == pytest.approx(0.11 / 0.12 - 1, abs=2e-3)
    assert two.change.low is not None
    assert two.change.high is not None
    assert two.change.low < two.change.value < two.change.high < 0
    assert comparison.exit_code is ExitCode.REGRESSED


def test_a_slower_gpu_is_named_on_every_row_that_it_slows() -> None:
    comparison = compare(_then(n1=0.1, n2=0.11), [_now(n1=0.107, n2=0.1177)])
    for gpus in (1, 2):
        row = _row(comparison, gpus)
        assert row.verdict is Verdict.REGRESSED
        assert row.finding is Finding.SINGLE_GPU_SLOWDOWN
    assert _row(comparison, 2).changed_quantity == "throughput(n)"


def test_only_a_faster_reference_is_no_regression() -> None:
    # LUMI once lost 6 points of E(16) while its throughput on 16 GPUs rose.
    comparison = compare(_then(n1=0.100, n16=0.110), [_now(n1=0.092, n16=0.1085)])
    row = _row(comparison, 16)
    assert row.baseline.efficiency is not None
    assert row.current.efficiency is not None
    assert row.current.efficiency.value < row.baseline.efficiency.value - 0.055
    assert row.verdict is Verdict.OK
    assert row.finding is Finding.REFERENCE_FASTER
    assert "only because the throughput on 1 GPU rose by 8.7 %" in row.reason
    assert _row(comparison, 1).verdict is Verdict.IMPROVED
    assert comparison.exit_code is ExitCode.OK


def test_a_faster_reference_and_faster_training_are_an_improvement() -> None:
    comparison = compare(_then(n1=0.100, n16=0.110), [_now(n1=0.080, n16=0.100)])
    row = _row(comparison, 16)
    assert row.verdict is Verdict.IMPROVED
    assert row.finding is Finding.REFERENCE_FASTER


def test_a_lost_speedup_of_unclear_origin_is_inconclusive() -> None:
    # Half of the loss is at either end, and neither end alone is sure.
    comparison = compare(_then(n1=0.1000, n2=0.1100), [_now(n1=0.0985, n2=0.1117)])
    row = _row(comparison, 2)
    assert row.verdict is Verdict.INCONCLUSIVE
    assert "whether 1 GPU got faster or more GPUs slower" in row.reason
    assert comparison.exit_code is ExitCode.INCONCLUSIVE


def test_faster_training_is_an_improvement() -> None:
    comparison = compare(_then(n1=0.1, n2=0.12), [_now(n1=0.1, n2=0.11)])
    row = _row(comparison, 2)
    assert row.verdict is Verdict.IMPROVED
    assert row.finding is Finding.FASTER
    assert row.change is not None
    assert row.change.value > 0
    assert comparison.exit_code is ExitCode.OK


def test_a_slower_reference_does_not_make_the_other_rows_improve() -> None:
    comparison = compare(_then(n1=0.1, n2=0.11), [_now(n1=0.11, n2=0.11)])
    assert _row(comparison, 1).verdict is Verdict.REGRESSED
    assert _row(comparison, 2).verdict is Verdict.OK


def test_a_sure_loss_within_the_margin_is_ok() -> None:
    tight = Tolerances(allocation_deviation_time=1e-4, allocation_deviation_speedup=1e-4)
    before = replace(_then(n1=0.1), tolerances=tight)
    comparison = compare(before, [_now(n1=0.1012)])
    row = _row(comparison, 1)
    assert row.change is not None
    assert row.change.high is not None
    assert row.change.high < 0
    assert row.verdict is Verdict.OK


def test_the_margin_is_the_sites_own() -> None:
    strict = Tolerances(
        margin=0.005, allocation_deviation_time=1e-4, allocation_deviation_speedup=1e-4
    )
    comparison = compare(replace(_then(n1=0.1), tolerances=strict), [_now(n1=0.1012)])
    assert _row(comparison, 1).verdict is Verdict.REGRESSED


def test_noise_is_inconclusive_and_says_how_many_runs_would_settle_it() -> None:
    noisy = (0.98, 1.02, 1.015, 0.99, 1.02, 0.98)
    before = baseline({1: [0.1 * f for f in noisy]})
    row = _row(compare(before, [measured({1: [0.096, 0.105, 0.102]})]), 1)
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.further_runs is not None
    assert f"about {row.further_runs} further runs would settle it" in row.reason


def test_further_runs_are_none_where_the_allocation_is_what_is_unsure() -> None:
    wild = Tolerances(allocation_deviation_time=0.1)
    before = replace(_then(n1=0.1), tolerances=wild)
    row = _row(compare(before, [_now(n1=0.103)]), 1)
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.further_runs is None
    assert row.reason.endswith(
        "further runs of tonight cannot settle it, since nights differ by 10.5 %: "
        "runs of more nights in the baseline may"
    )


def test_further_runs_are_none_where_tonights_runs_are_too_noisy_and_the_reason_says_so() -> None:
    now = measured({1: [0.06, 0.11, 0.19]})
    row = _row(compare(_then(n1=0.1), [now]), 1)
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.further_runs is None
    assert "further runs cannot settle it, since these differ by " in row.reason
    assert row.reason.endswith(" from one to the next: find what disturbs them")


def test_further_runs_are_none_where_the_baselines_runs_are_too_noisy() -> None:
    before = baseline({1: [0.06, 0.11, 0.19]})
    row = _row(compare(before, [_now(n1=0.1)]), 1)
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.further_runs is None
    assert "since the baseline's differ by " in row.reason


def test_every_judged_row_states_what_it_could_have_detected() -> None:
    comparison = compare(_then(n1=0.1, n2=0.11), [_now(n1=0.1, n2=0.11)])
    for entry in comparison.entries:
        assert entry.minimum_detectable_loss is not None
        assert 0.02 < entry.minimum_detectable_loss < 0.1


def test_single_runs_on_both_sides_have_no_interval_and_no_pass() -> None:
    comparison = compare(baseline({1: [0.1]}), [measured({1: [0.1]})])
    row = _row(comparison, 1)
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.change is not None
    assert not row.change.has_interval
    assert row.minimum_detectable_loss is None
    assert "single run" in row.reason
    assert comparison.exit_code is ExitCode.INCONCLUSIVE


def test_a_single_current_run_is_judged_by_the_deviation_of_the_others() -> None:
    comparison = compare(_then(n1=0.1, n2=0.11), [measured({1: [0.1], 2: [0.13]})])
    assert _row(comparison, 2).verdict is Verdict.REGRESSED


def test_without_a_reference_the_step_time_alone_is_judged() -> None:
    comparison = compare(_then(n2=0.11), [_now(n1=0.1, n2=0.13)])
    row = _row(comparison, 2)
    assert row.verdict is Verdict.REGRESSED
    assert row.finding is Finding.SLOWER_TRAINING
    assert row.baseline.speedup is None
    assert row.current.speedup is not None
    assert "the baseline has no runs on 1 GPU" in row.reason


def test_a_reference_with_another_batch_is_not_used() -> None:
    now = results(
        *(run(1, 0.2 * f, batch_per_gpu=256) for f in NOW), *(run(2, 0.11 * f) for f in NOW)
    )
    comparison = compare(_then(n1=0.1, n2=0.11), [now])
    assert _row(comparison, 1).verdict is Verdict.INCOMPARABLE
    assert "batch_per_gpu: 128 → 256" in _row(comparison, 1).reason
    assert _row(comparison, 2).verdict is Verdict.OK
    assert _row(comparison, 2).changed_quantity == "throughput(n)"
    assert "the batch on 1 GPU differs" in _row(comparison, 2).reason
    assert comparison.exit_code is ExitCode.INCONCLUSIVE


def test_speedups_of_both_sides_stand_beside_each_other_with_intervals() -> None:
    row = _row(compare(_then(n1=0.1, n2=0.125), [_now(n1=0.1, n2=0.11)]), 2)
    assert row.baseline.speedup is not None
    assert row.baseline.speedup.value == pytest.approx(1.6)
    assert row.baseline.speedup.has_interval
    assert row.current.efficiency is not None
    assert row.current.efficiency.value == pytest.approx(0.1 / 0.11, rel=1e-3)


NIGHTS = ("a", "b", "c", "d", "e", "f")


def test_several_nights_tell_their_own_spread() -> None:
    nightly = baseline({1: [0.1 * f for f in THEN]}, allocations=NIGHTS)
    comparison = compare(nightly, [_now(n1=0.1025)])
    row = _row(comparison, 1)
    # A declared deviation of 1% could not tell this; the six quiet nights can.
    assert row.verdict is Verdict.REGRESSED
    assert any("estimated from the baseline's 6 allocations" in n for n in comparison.notes)
    assert _row(compare(_then(n1=0.1), [_now(n1=0.1025)]), 1).verdict is not Verdict.REGRESSED


def test_nights_that_differ_widen_the_interval() -> None:
    wild = [0.1 * f for f in (0.93, 1.05, 1.04, 0.96, 1.06, 0.97)]
    row = _row(compare(baseline({1: wild}, allocations=NIGHTS), [_now(n1=0.106)]), 1)
    assert row.verdict is Verdict.INCONCLUSIVE


def test_speedups_over_several_nights_are_taken_night_by_night() -> None:
    nights = [0.93, 1.05, 1.04, 0.96, 1.06, 0.97]
    times = {
        1: [0.10 * night * f for night, f in zip(nights, THEN, strict=True)],
        2: [0.11 * night * f for night, f in zip(nights, reversed(THEN), strict=True)],
    }
    row = _row(compare(baseline(times, allocations=NIGHTS), [_now(n1=0.1, n2=0.12)]), 2)
    # The nights differ by 5%, which both ends share: the lost speedup is certain, and only
    # which end moved is not.
    assert row.changed_quantity == "E(n)"
    assert row.change is not None
    assert row.change.high is not None
    assert row.change.high < -0.06
    assert row.verdict is Verdict.INCONCLUSIVE


def test_two_ends_from_different_allocations_are_less_sure() -> None:
    together = compare(_then(n1=0.1, n2=0.11), [_now(n1=0.1, n2=0.11)])
    apart = compare(
        _then(n1=0.1, n2=0.11),
        [
            measured({1: [0.1 * f for f in NOW]}, job_id="monday"),
            measured({2: [0.11 * f for f in NOW]}, job_id="tuesday"),
        ],
    )
    one, other = (_row(comparison, 2).change for comparison in (together, apart))
    assert one is not None
    assert one.low is not None
    assert other is not None
    assert other.low is not None
    assert other.low < one.low


def test_a_baseline_of_one_allocation_says_so() -> None:
    notes = compare(_then(n1=0.1), [_now(n1=0.1)]).notes
    assert any("comes from one allocation" in note and "1.0 % of T" in note for note in notes)


def test_a_baseline_of_few_runs_says_so() -> None:
    comparison = compare(baseline({1: [0.1, 0.1003], 2: [0.11, 0.1103]}), [_now(n1=0.1, n2=0.11)])
    assert any(
        "fewer than 6 runs in the baseline: mnist_cnn/ddp on 1 GPU (2) and 1 more" in note
        for note in comparison.notes
    )


def test_results_of_the_baselines_own_allocation_are_pointed_out() -> None:
    own = baseline({1: [0.1 * f for f in THEN]}, allocations=("now",))
    notes = compare(own, [_now(n1=0.1)]).notes
    assert any("allocation that the baseline was recorded in (now)" in note for note in notes)


def test_an_efficiency_above_1_1_is_pointed_out() -> None:
    notes = compare(_then(n1=0.1, n2=0.11), [_now(n1=0.1, n2=0.05)]).notes
    assert any(note.startswith("results: mnist_cnn/ddp on 2 GPUs") for note in notes)


def test_a_pool_of_nights_that_differ_is_pointed_out_with_the_farthest() -> None:
    nights = [
        *(measured({1: [0.1 * f for f in NOW]}, job_id=f"n{i}") for i in range(6)),
        measured({1: [0.111 * f for f in NOW]}, job_id="n7"),
    ]
    notes = compare(_then(n1=0.1), nights).notes
    assert any("on mnist_cnn/ddp on 1 GPU T of n7 is +11.0 % beside the others" in n for n in notes)
    alike = compare(_then(n1=0.1), nights[:6]).notes
    assert not any("several allocations" in note for note in alike)


def test_a_loss_within_a_wide_margin_is_ok_though_the_bound_of_ok_is_narrower() -> None:
    wide = Tolerances(
        margin=0.1, allocation_deviation_time=0.002, allocation_deviation_speedup=0.001
    )
    before = replace(_then(n1=0.1), tolerances=wide)
    assert _row(compare(before, [_now(n1=0.107)]), 1).verdict is Verdict.OK
    assert _row(compare(before, [_now(n1=0.12)]), 1).verdict is Verdict.REGRESSED


def test_noise_of_tonight_is_not_put_down_to_the_baselines_many_nights() -> None:
    nights = [f"n{i}" for i in range(6)]
    before = baseline({1: [0.1 * f for f in THEN]}, allocations=nights)
    row = _row(compare(before, [measured({1: [0.06, 0.11, 0.19]})]), 1)
    assert "since these differ by " in row.reason


def test_each_gpu_is_only_called_slower_where_the_scaling_is_shown_to_be_ok() -> None:
    before = baseline({1: [0.1, 0.104, 0.096, 0.102, 0.098, 0.1], 4: [0.11 * f for f in THEN]})
    now = measured({1: [0.109, 0.1065, 0.1035], 4: [0.1222] * 3})
    row = _row(compare(before, [now]), 4)
    assert row.verdict is Verdict.REGRESSED
    assert row.finding is Finding.SLOWER_TRAINING
    assert "not the scaling" not in row.reason


def test_failed_runs_beside_valid_ones_are_pointed_out() -> None:
    now = measured({1: [0.1, None, 0.1001]})
    comparison = compare(_then(n1=0.1), [now])
    assert _row(comparison, 1).verdict is Verdict.OK
    assert (
        "mnist_cnn/ddp on 1 GPU: 1 of 3 runs failed (rank 1 died of signal 9)" in comparison.notes
    )


def test_the_run_of_the_baselines_configuration_is_taken_among_several() -> None:
    other = replace(CNN, precision="bf16")
    now = results(
        *(run(1, 0.05 * f, configuration=other) for f in NOW), *(run(1, 0.1 * f) for f in NOW)
    )
    comparison = compare(_then(n1=0.1), [now])
    assert [entry.verdict for entry in comparison.entries] == [Verdict.OK, Verdict.MISSING]
    assert comparison.entries[0].current.speedup is not None


def test_a_baseline_may_hold_several_configurations_of_one_row() -> None:
    other = replace(CNN, precision="bf16")
    first = _then(n1=0.1)
    second = baseline({1: [0.05 * f for f in THEN]}, configuration=other)
    both = replace(first, runs=(*first.runs, *second.runs))
    comparison = compare(both, [_now(n1=0.1)])
    assert [entry.verdict for entry in comparison.entries] == [Verdict.OK, Verdict.MISSING]
