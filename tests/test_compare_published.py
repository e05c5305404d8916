"""Verdicts against published figures: mostly on the speedup, and only for losses."""

import math
import statistics

import pytest
from builders import CNN, figure, measured, published, results, run
from changing import replace
from statements import known

from gpuscale.analysis.probabilities import t_quantile
from gpuscale.judge.compare import compare
from gpuscale.records import Baseline, EntryVerdict, Results, Statement, Verdict
from gpuscale.records.configuration import Choice
from gpuscale.reports.reason_words import reason_text

# ARC4: 145 s on 1 GPU and 84.5 s on 2, so a speedup of 1.716.
ARC4 = published(figure(1, time_s=145.0), figure(2, time_s=84.5))
SHARP = (0.9995, 1.0005, 1.0)


def _now(speedup: float, gpus: int = 2, *, spread: tuple[float, ...] = SHARP) -> Results:
    time_s = 0.1 * gpus / speedup
    return measured({1: [0.1 * f for f in spread], gpus: [time_s * f for f in spread]})


def _last(baseline: Baseline, now: Results) -> EntryVerdict:
    return compare(baseline, [now]).entries[-1]


def test_a_figure_of_ddp_counts_for_what_wraps_it_and_asks_nobody_to_measure_that() -> None:
    of_ddp = _now(1.70)
    slower = _now(1.4)
    other = replace(slower.runs[0].configuration, strategy="lightning")
    wrapped = [replace(each, configuration=other) for each in slower.runs]
    both = compare(ARC4, [replace(of_ddp, runs=(*of_ddp.runs, *wrapped))])
    assert {entry.label: entry.verdict for entry in both.entries} == {
        "mnist_cnn/ddp on 1 GPU": Verdict.CONSISTENT,
        "mnist_cnn/ddp on 2 GPUs": Verdict.CONSISTENT,
        "mnist_cnn/lightning on 1 GPU": Verdict.CONSISTENT,
        "mnist_cnn/lightning on 2 GPUs": Verdict.INCONSISTENT,
    }
    assert len(compare(ARC4, [of_ddp]).entries) == 2


MET, MISSED, OPEN, NO, GAP = "consistent", "inconsistent", "inconclusive", "incomparable", "missing"
WIDE, ONCE = (0.97, 1.03, 1.0), (1.0,)
SAME, ONE = measured({n: [0.1] * 3 for n in (1, 2)}), measured({1: [0.1, 0.1]})
EVEN, ALONE = published(figure(1, 100), figure(2, 50)), published(figure(1, 145))
NO_T1 = published(figure(2, 84.5))
WITHIN, ACROSS = (published(figure(1, 100), figure(4, 25, nodes=nodes)) for nodes in (1, 2))
RATES = (figure(4, samples_per_s=5120, nodes=nodes) for nodes in (1, 2))
RATE_WITHIN, RATE_ACROSS = (published(figure(1, samples_per_s=1280), each) for each in RATES)
SMOKE = measured({1: [0.1], 2: [0.11]}, configuration=replace(CNN, size="smoke"))
OTHER_BATCH = published(figure(1, 160, batch_per_gpu=256), figure(16, 12, nodes=4))
ON_16 = results(run(1, 0.1), run(16, 0.11))
# Published figures and results; the verdicts, the reason of the last row, and the exit code.
CASES: dict[str, tuple[Baseline, Results, list[str], str, int]] = {
    "just reached": (EVEN, SAME, [MET, MET], "published_met", 0),
    "exceeded, which is no improvement": (ARC4, _now(1.99), [MET, MET], "published_met", 0),
    "missed": (ARC4, _now(1.4), [MET, MISSED], "published_missed", 1),
    # A single run is held against the figure by its value.
    "met once": (ARC4, _now(1.7, spread=ONCE), [MET, MET], "published_met", 0),
    "missed once": (ARC4, _now(1.4, spread=ONCE), [MET, MISSED], "published_missed", 1),
    "uncertain": (ARC4, _now(1.6, spread=WIDE), [MET, OPEN], "published_uncertain", 3),
    "missed within a node": (WITHIN, _now(3.4, 4), [MET, MISSED], "published_missed", 1),
    "met across nodes": (ACROSS, _now(3.4, 4), [MET, MET], "published_met", 0),
    "rate missed within a node": (RATE_WITHIN, _now(3.4, 4), [MET, MISSED], "published_missed", 1),
    "rate met across nodes": (RATE_ACROSS, _now(3.4, 4), [MET, MET], "published_met", 0),
    "the reference alone": (ALONE, ONE, [OPEN], "only_speedup_reference", 3),
    "only the reference measured": (ARC4, ONE, [OPEN, GAP], "not_measured", 3),
    "no T(1)": (ARC4, measured({2: [0.1, 0.1]}), [GAP, NO], "not_on_1_gpu", 4),
    "no published T(1)": (NO_T1, _now(1.8), [GAP, NO], "no_published_reference", 4),
    "another size": (ARC4, SMOKE, [NO, NO], "other_measurement", 4),
    "another batch": (OTHER_BATCH, ON_16, [NO, NO], "other_batch_on_1_gpu", 4),
}


@pytest.mark.parametrize(("before", "now", "rows", "code", "ended"), CASES.values(), ids=CASES)
def test_a_figure_is_met_or_missed_or_cannot_be_judged(
    before: Baseline, now: Results, rows: list[str], code: str, ended: int
) -> None:
    comparison = compare(before, [now])
    assert [entry.verdict.value for entry in comparison.entries] == rows
    assert (comparison.entries[-1].reason.code, comparison.exit_code) == (code, ended)


def test_an_uncertain_row_asks_for_more_runs() -> None:
    row = _last(ARC4, _now(1.64, spread=WIDE))
    assert (row.verdict, row.further_runs) == (Verdict.INCONCLUSIVE, None)
    assert "more runs may settle it" in reason_text(row)


def test_what_is_missing_beside_a_figure_is_named_and_no_pass() -> None:
    assert compare(ARC4, [_now(1.7)], Choice(gpus=[1])).exit_code == 3
    assert _last(NO_T1, _now(1.8)).baseline.speedup is None
    assert _last(ARC4, SMOKE).reason.facts["differences"] == (("size", "full", "smoke"),)
    assert _last(OTHER_BATCH, ON_16).reason.facts == {"before": 256, "now": 128}


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
    plain = (figure(n, samples_per_s=it, nodes=max(1, n // 4)) for n, it in throughputs.items())
    before = published(*(replace(each, precision=precision) for each in plain))
    slow = {n: [128 * n / (0.45 * it) * f for f in SHARP] for n, it in throughputs.items()}
    first, *rows = compare(before, [measured(slow)]).entries
    assert first.changed_quantity == "throughput(1)"
    assert {(row.verdict, row.changed_quantity) for row in rows} == {(verdict, quantity)}
    fast = {n: [time_s * 0.4 for time_s in times] for n, times in slow.items()}
    assert compare(before, [measured(fast)]).exit_code == 0


def test_a_published_throughput_is_judged_without_runs_on_one_gpu_too() -> None:
    before = published(figure(1, samples_per_s=2000), figure(2, samples_per_s=3600))
    results_at = (measured({2: [256 / rate * f for f in SHARP]}) for rate in (1600, 3500))
    missed, met = (_last(before, now) for now in results_at)
    assert (missed.verdict, met.verdict) == (Verdict.INCONSISTENT, Verdict.CONSISTENT)
    assert met.reason.facts["why"] == Statement.of("not_on_1_gpu", names=["results"])


def test_a_row_that_misses_is_judged_by_what_misses_most() -> None:
    before = published(figure(1, samples_per_s=1280), figure(2, samples_per_s=2400))
    judged = {(0.104, 0.111): "consistent, E(n)", (0.08, 0.15): "inconsistent, E(n)"}
    for times, said in (judged | {(0.14, 0.2): "inconsistent, throughput(n)"}).items():
        now = measured({gpus: [s * f for f in SHARP] for gpus, s in enumerate(times, start=1)})
        row = _last(before, now)
        assert f"{row.verdict}, {row.changed_quantity}" == said


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
    # A single run has no spread of its own: one more night is added to the mean of four.
    logs = [math.log(1280 * f) for f in (0.85, 1.15, 0.9, 1.1)]
    half = math.sqrt(statistics.variance(logs) * (1 + 1 / 4)) * t_quantile(0.975, 3)
    change = known(_last(noisy, once).change)
    assert math.log1p(known(change.high)) - math.log1p(change.value) == pytest.approx(half)
    # Three nights do not tell their spread.
    assert _last(baseline(0.85, 1.15, 1.0), slow).verdict is Verdict.INCONSISTENT


def test_published_nights_that_slowed_all_gpus_alike_leave_the_speedup_narrow() -> None:
    rates, factors = {1: 1280, 2: 2400}, (0.85, 1.15, 0.9, 1.1)
    nights = {n: {f"night {f}": rate * f for f in factors} for n, rate in rates.items()}
    figures = (replace(figure(n, samples_per_s=rates[n]), nights=nights[n]) for n in rates)
    slow = measured({1: [0.1 * f for f in SHARP], 2: [0.1067 / 0.85 * f for f in SHARP]})
    row = _last(published(*figures), slow)
    assert (row.verdict, row.changed_quantity) == (Verdict.INCONSISTENT, "E(n)")


@pytest.mark.parametrize(
    ("name", "plain", "other"),
    [
        ("precision", "fp32", "bf16"),
        ("channels_last", False, True),
        ("compiled", False, True),
        ("data", "real", "synthetic"),
    ],
)
def test_the_plainest_of_several_configurations_is_held_against_a_publication(
    name: str, plain: object, other: object
) -> None:
    usual, optimised = (replace(CNN, **{name: value}) for value in (plain, other))
    others = (run(1, 0.05, configuration=optimised), run(2, 0.06, configuration=optimised))
    now = results(*others, *(replace(run, configuration=usual) for run in _now(1.7).runs))
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
