"""Verdicts against published figures: mostly on the speedup, and only for losses."""

import pytest
from builders import CNN, figure, measured, published, results, run
from changing import replace
from statements import known

from gpuscale.judge.compare import compare
from gpuscale.records import Baseline, EntryVerdict, Results, Statement, Verdict
from gpuscale.records.configuration import Choice

# ARC4: 145 s on 1 GPU and 84.5 s on 2, so a speedup of 1.716.
ARC4 = published(figure(1, time_s=145.0), figure(2, time_s=84.5))
SHARP = (0.9995, 1.0005, 1.0)


def _now(speedup: float, gpus: int = 2, *, spread: tuple[float, ...] = SHARP) -> Results:
    return measured(
        {1: [0.1 * f for f in spread], gpus: [0.1 * gpus / speedup * f for f in spread]}
    )


def _last(baseline: Baseline, now: Results) -> EntryVerdict:
    return compare(baseline, [now]).entries[-1]


def test_a_figure_of_ddp_counts_for_what_wraps_it_and_asks_nobody_to_measure_that() -> None:
    of_ddp = _now(1.70)
    wrapped = [
        replace(each, configuration=replace(each.configuration, strategy="lightning"))
        for each in _now(1.4).runs
    ]
    both = compare(ARC4, [replace(of_ddp, runs=(*of_ddp.runs, *wrapped))])
    assert {entry.label: entry.verdict for entry in both.entries} == {
        "mnist_cnn/ddp on 1 GPU": Verdict.CONSISTENT,
        "mnist_cnn/ddp on 2 GPUs": Verdict.CONSISTENT,
        "mnist_cnn/lightning on 1 GPU": Verdict.CONSISTENT,
        "mnist_cnn/lightning on 2 GPUs": Verdict.INCONSISTENT,
    }
    assert len(compare(ARC4, [of_ddp]).entries) == 2


def test_a_figure_that_is_just_reached_is_not_said_to_be_missed() -> None:
    now = measured({1: [0.1] * 3, 2: [0.1] * 3})
    row = _last(published(figure(1, time_s=100), figure(2, time_s=50)), now)
    assert known(row.change).value == 0
    assert row.reason.code == "published_exceeded"


@pytest.mark.parametrize(
    ("speedup", "spread", "verdict", "code"),
    [
        (1.99, SHARP, Verdict.CONSISTENT, "published_exceeded"),
        (1.4, SHARP, Verdict.INCONSISTENT, "published_missed"),
        # A single run is held against the figure by its value.
        (1.7, (1.0,), Verdict.CONSISTENT, "published_met"),
        (1.4, (1.0,), Verdict.INCONSISTENT, "published_missed"),
    ],
)
def test_only_a_speedup_below_the_tolerance_is_inconsistent_and_a_better_one_no_improvement(
    speedup: float, spread: tuple[float, ...], verdict: Verdict, code: str
) -> None:
    comparison = compare(ARC4, [_now(speedup, spread=spread)])
    assert (comparison.entries[-1].verdict, comparison.entries[-1].reason.code) == (verdict, code)
    assert comparison.exit_code == (1 if verdict is Verdict.INCONSISTENT else 0)


def test_an_interval_that_straddles_the_tolerance_is_inconclusive() -> None:
    comparison = compare(ARC4, [_now(1.6, spread=(0.97, 1.03, 1.0))])
    row = comparison.entries[1]
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.reason.code == "published_uncertain"
    assert comparison.exit_code == 3
    # One run more would settle it, and is not there.
    nearly = _last(ARC4, _now(1.64, spread=(0.97, 1.03, 1.0)))
    assert (nearly.verdict, nearly.further_runs) == (Verdict.INCONCLUSIVE, 1)
    assert nearly.reason.facts["remedy"] == Statement.of("further_runs", needed=1)
    # A tenth below the figure no number of runs tells.
    never = _last(ARC4, _now(0.9 * 145 / 84.5, spread=(0.97, 1.03, 1.0)))
    assert (never.verdict, never.further_runs) == (Verdict.INCONCLUSIVE, None)
    assert never.reason.facts["remedy"] == Statement.of("more_runs")


def test_across_nodes_the_tolerance_is_wider() -> None:
    within = published(figure(1, time_s=100.0), figure(4, time_s=25, nodes=1))
    across = published(figure(1, time_s=100.0), figure(4, time_s=25, nodes=2))
    assert _last(within, _now(3.4, 4)).verdict is Verdict.INCONSISTENT
    assert _last(across, _now(3.4, 4)).verdict is Verdict.CONSISTENT


def test_the_reference_alone_is_no_pass() -> None:
    only_one = published(figure(1, time_s=145.0))
    comparison = compare(only_one, [measured({1: [0.1, 0.1]})])
    assert [entry.verdict for entry in comparison.entries] == [Verdict.INCONCLUSIVE]
    assert comparison.exit_code == 3
    with_gap = compare(ARC4, [measured({1: [0.1, 0.1]})])
    assert [entry.verdict for entry in with_gap.entries] == [Verdict.INCONCLUSIVE, Verdict.MISSING]
    chosen = compare(ARC4, [_now(1.7)], Choice(gpus=[1]))
    assert chosen.exit_code == 3


def test_an_unmeasured_reference_leaves_nothing_to_compare() -> None:
    comparison = compare(ARC4, [measured({2: [0.1, 0.1]})])
    assert [entry.verdict for entry in comparison.entries] == [
        Verdict.MISSING,
        Verdict.INCOMPARABLE,
    ]
    assert comparison.entries[1].reason.code == "no_measured_reference"
    assert comparison.exit_code == 4


@pytest.mark.parametrize(
    ("precision", "verdict", "quantity"),
    [
        (None, Verdict.INCONSISTENT, "throughput(n)"),
        ("fp32", Verdict.INCONSISTENT, "throughput(n)"),
        # The throughput of another precision is another one; what is left is the shape.
        ("fp16", Verdict.CONSISTENT, "E(n)"),
    ],
)
def test_a_slow_machine_misses_it(precision: str | None, verdict: Verdict, quantity: str) -> None:
    throughputs = {1: 2000.0, 2: 3600.0, 4: 7000.0, 8: 13500.0}
    before = published(
        *(
            replace(figure(n, samples_per_s=it, nodes=max(1, n // 4)), precision=precision)
            for n, it in throughputs.items()
        )
    )
    slow = {n: [128 * n / (0.45 * it) * f for f in SHARP] for n, it in throughputs.items()}
    first, *rows = compare(before, [measured(slow)]).entries
    assert first.changed_quantity == "throughput(1)"
    assert {(row.verdict, row.changed_quantity) for row in rows} == {(verdict, quantity)}
    fast = {n: [time_s * 0.4 for time_s in times] for n, times in slow.items()}
    assert compare(before, [measured(fast)]).exit_code == 0


def test_a_published_throughput_is_judged_without_runs_on_one_gpu_too() -> None:
    before = published(figure(1, samples_per_s=2000), figure(2, samples_per_s=3600))
    missed, met = (
        _last(before, measured({2: [256 / rate * f for f in SHARP]})) for rate in (1600, 3500)
    )
    assert (missed.verdict, met.verdict) == (Verdict.INCONSISTENT, Verdict.CONSISTENT)
    assert met.reason.facts["why"] == Statement.of("no_measured_reference")


def test_published_nights_that_differ_keep_one_slow_night_from_being_inconsistent() -> None:
    def baseline(*factors: float) -> Baseline:
        nights = {f"2026-09-0{day}": 1280 * f for day, f in enumerate(factors, start=1)}
        return published(replace(figure(1, samples_per_s=1280), nights=nights))

    slow = measured({1: [0.1 / 0.85 * f for f in SHARP]})
    once = measured({1: [0.1 / 0.85]})
    quiet, noisy = baseline(0.99, 1.01, 1.0, 1.0), baseline(0.85, 1.15, 0.9, 1.1)
    assert _last(quiet, slow).verdict is _last(quiet, once).verdict is Verdict.INCONSISTENT
    row = _last(noisy, slow)
    assert row.verdict is Verdict.INCONCLUSIVE
    assert known(row.reason.facts["remedy"]).code == "nights_differ"
    # Three nights do not tell their spread.
    assert _last(baseline(0.85, 1.15, 1.0), slow).verdict is Verdict.INCONSISTENT


def test_times_without_a_figure_for_one_gpu_tell_nothing() -> None:
    row = _last(published(figure(2, time_s=84.5)), _now(1.8))
    assert row.verdict is Verdict.INCOMPARABLE
    assert row.reason.code == "no_published_reference"
    assert row.baseline.speedup is None


def test_another_size_than_full_is_incomparable_with_a_publication() -> None:
    smoke = replace(CNN, size="smoke")
    comparison = compare(ARC4, [measured({1: [0.1], 2: [0.11]}, configuration=smoke)])
    assert {entry.verdict for entry in comparison.entries} == {Verdict.INCOMPARABLE}
    assert comparison.entries[1].reason.facts["differences"] == (("size", "full", "smoke"),)
    assert comparison.exit_code == 4


def test_a_speedup_over_another_batch_than_published_is_incomparable() -> None:
    halved = published(figure(1, time_s=160.0, batch_per_gpu=256), figure(16, time_s=12.0, nodes=4))
    now = results(run(1, 0.1), run(16, 0.11))
    row = _last(halved, now)
    assert row.verdict is Verdict.INCOMPARABLE
    assert row.reason.facts == {"before": 256, "now": 128}


def test_the_plainest_of_several_configurations_is_held_against_a_publication() -> None:
    mixed = replace(CNN, precision="bf16")
    now = results(
        run(1, 0.05, configuration=mixed), run(2, 0.06, configuration=mixed), *_now(1.7).runs
    )
    comparison = compare(ARC4, [now])
    assert known(comparison.entries[1].current.speedup).value == pytest.approx(1.7, abs=0.01)


@pytest.mark.parametrize(
    ("precision", "then"), [(None, ["an unnamed precision"]), ("tf32", ["tf32"]), ("fp32", [])]
)
def test_other_precision_is_named(precision: str | None, then: list[str]) -> None:
    figures = [replace(each, precision=precision) for each in ARC4.published]
    comparison = compare(replace(ARC4, published=tuple(figures)), [_now(1.7)])
    named = [note for note in comparison.notes if note.code == "published_in_other_precision"]
    assert [note.facts["then"] for note in named] == then
