"""How a row is judged at its limits, with few runs, and with runs that failed."""

import math
from operator import neg
from statistics import NormalDist

import pytest
from builders import QUIET_THEN, baseline, figure, measured, published, results, row_on, run
from changing import replace
from statements import codes_in, known

from gpuscale.analysis.estimates import Term, difference
from gpuscale.judge.baseline import baseline_from_results
from gpuscale.judge.compare import compare
from gpuscale.judge.compare.matching import MatchedRow
from gpuscale.judge.compare.runs_needed import required_runs
from gpuscale.judge.compare.verdict import ErrorRates, Quantities, Quantity, decide
from gpuscale.judge.stopping import DecidedVerdict, SequentialPlan
from gpuscale.records import EntryKey, Failure, Finding, Limits, Statement, Tolerances, Verdict
from gpuscale.records.baseline import ToleranceOverride

NOISY = [0.098, 0.102, 0.1015, 0.099, 0.102, 0.098]
QUIET = [0.1 * f for f in QUIET_THEN]


@pytest.mark.parametrize(
    ("needed", "made", "advised"),
    [
        (1, 3, (1, Statement.of("further_runs", needed=1))),
        (7, 3, (8, Statement.of("further_runs", needed=8))),
        (12, 4, (12, Statement.of("further_runs", needed=12))),
        (10, 3, (None, Statement.of("unknown_further_runs", too_few=3, in_all=6))),
        (10, 2, (None, Statement.of("unknown_further_runs", too_few=2, in_all=6))),
        (5, 1, (None, Statement.of("unknown_further_runs", too_few=1, in_all=2))),
        (50, 17, (50, Statement.of("further_runs", needed=50))),
        # From six runs on, what keeps the row open is said instead.
        (50, 16, (None, None)),
        (51, 50, (None, None)),
    ],
)
def test_only_a_credible_number_is_advised(
    needed: int, made: int, advised: tuple[int | None, Statement | None]
) -> None:
    row = MatchedRow(key=EntryKey("mnist_cnn", "ddp", 1))
    assert required_runs(row, lambda runs: runs >= needed, made, 6) == advised


@pytest.mark.parametrize("slower", [1.1, 1.25, 1.3, 1.4])
def test_a_session_finds_the_change_that_a_comparison_of_its_files_finds(slower: float) -> None:
    levels = [(0.1, 0.11), (0.106, 0.1078), (0.094, 0.1122)]
    levels += [(0.103, 0.1111), (0.097, 0.1089), (0.1, 0.11)]
    of_nights = ({n: [s * f for f in QUIET_THEN[:3]] for n, s in enumerate(of, 1)} for of in levels)
    nights = [measured(times, job_id=name) for times, name in zip(of_nights, "abcdef", strict=True)]
    before = baseline_from_results(nights, name="b", cluster="c")
    times = {1: 0.1, 2: 0.11 * slower}
    now = measured({n: [of * f for f in QUIET_THEN[:4]] for n, of in times.items()})
    plan = SequentialPlan(fewest_runs=3, most_runs=8)
    of_session = DecidedVerdict(baseline=before, plan=plan).verdict_after(now).comparison.entries[1]
    compared = compare(before, [now]).entries[1]
    assert of_session.verdict is compared.verdict
    if compared.verdict is Verdict.REGRESSED:
        assert of_session.finding is compared.finding
        assert (of_session.change, of_session.reason) == (compared.change, compared.reason)
    # And both advise as many further runs.
    before, now = baseline({1: NOISY}), measured({1: [0.096, 0.105, 0.102]})
    (looked,) = DecidedVerdict(baseline=before, plan=plan).verdict_after(now).entries
    (compared,) = compare(before, [now]).entries
    assert compared.verdict is looked.entry.verdict is Verdict.INCONCLUSIVE
    assert compared.further_runs == looked.entry.further_runs


def test_a_loss_that_chance_may_explain_says_so_and_at_which_level() -> None:
    row = row_on(1, compare(baseline({1: QUIET}), [measured({1: [0.13, 0.155, 0.115]})]))
    assert row.verdict is Verdict.INCONCLUSIVE
    assert known(known(row.change).high) < 0
    assert row.reason.code == "not_beyond_chance"
    assert row.reason.facts["significance"] == 0.01


def test_what_lasts_of_a_speedups_spread_is_told_by_the_speedup() -> None:
    wide = Tolerances(allocation_deviation_time=0.001, allocation_deviation_speedup=0.06)
    before = replace(baseline({1: QUIET, 4: [1.1 * t for t in QUIET]}), tolerances=wide)
    now = measured({1: QUIET[:3], 4: [1.1 * t for t in QUIET[:3]]})
    row = compare(before, [now]).entries[1]
    assert (row.verdict, row.changed_quantity) == (Verdict.INCONCLUSIVE, "E(n)")
    assert row.further_runs is None
    remedy = known(row.reason.facts["remedy"])
    assert remedy.code == "nights_assumed"
    assert remedy.facts["deviation"] == pytest.approx(0.062, abs=1e-3)


def test_noise_of_the_runs_on_1_gpu_is_what_lasts_of_a_speedups_spread() -> None:
    loud = [0.1 * f for f in (0.9, 1.1, 0.95, 1.12, 0.88, 1.04)]
    for then, now in ((loud, QUIET), (QUIET, loud[:3])):
        row = compare(baseline({1: then, 4: QUIET}), [measured({1: now, 4: QUIET})]).entries[1]
        assert (row.verdict, row.changed_quantity) == (Verdict.INCONCLUSIVE, "E(n)")
        assert ("baseline_runs_differ" in codes_in(row.reason)) is (then is loud)


def test_the_limits_of_the_row_on_1_gpu_hold_for_it_as_the_reference() -> None:
    then, faster = baseline({1: QUIET, 4: QUIET}), measured({1: [0.09] * 3, 4: QUIET[:3]})
    usual = compare(then, [faster]).entries[1]
    assert usual.finding is Finding.REFERENCE_FASTER
    # By a margin of 20 %, T(1) has not moved, so that nothing explains the lost speedup.
    wide = Tolerances(overrides=(ToleranceOverride(gpus=1, margin=0.2),))
    row = compare(replace(then, tolerances=wide), [faster]).entries[1]
    assert (row.verdict, row.finding) == (Verdict.INCONCLUSIVE, None)


def quantity(gain: float, *, p: float = 0.001, margin: float = 0.25) -> Quantity:
    """A quantity in points without any spread, so that its loss is exactly the negative gain."""
    return Quantity(
        name="E(n)",
        gain=difference(gain, [Term(variance=0.0, df=math.inf)]),
        assumed_deviation=None,
        p_worse=p,
        p_better=p,
        limits=Limits(margin=margin, ok_bound=0.5, allocation_deviation=0.0),
        rates=ErrorRates(significance=0.01, confidence=0.95),
        loss_of=neg,
    )


@pytest.mark.parametrize(("loss", "is_beyond"), [(0.25, False), (0.2501, True), (0.2, False)])
def test_a_change_of_the_margin_itself_is_within_it(loss: float, is_beyond: bool) -> None:
    lost, won = quantity(-loss), quantity(loss)
    assert (lost.is_worse, lost.is_better, lost.moved_worse(0.05)) == (is_beyond, False, is_beyond)
    assert (won.is_better, won.is_worse, won.moved_better(0.05)) == (is_beyond, False, is_beyond)
    assert not lost.moved_better(0.05)
    assert not won.moved_worse(0.05)
    assert lost.excess_loss == pytest.approx(loss - 0.25)


@pytest.mark.parametrize(("p", "counts"), [(0.01, False), (0.0099, True)])
def test_a_p_of_the_significance_itself_does_not_count(p: float, counts: bool) -> None:
    assert quantity(-0.3, p=p).is_worse is counts
    assert quantity(0.3, p=p).is_better is counts


def test_a_loss_that_may_be_the_bound_of_ok_is_not_ok() -> None:
    assert not quantity(-0.5).is_ok
    assert quantity(-0.4999).is_ok
    # A margin beyond the bound takes its place.
    assert quantity(-0.55, margin=0.6).is_ok
    assert not quantity(-0.6, margin=0.6).is_ok


@pytest.mark.parametrize(
    ("p", "verdict", "finding"),
    [(0.049, Verdict.OK, Finding.REFERENCE_FASTER), (0.051, Verdict.INCONCLUSIVE, None)],
)
def test_a_faster_reference_explains(p: float, verdict: Verdict, finding: Finding | None) -> None:
    deviation = 0.3 / NormalDist().inv_cdf(1 - p)
    faster = difference(0.3, [Term(variance=deviation**2, df=math.inf)])
    reference = replace(quantity(0.0), gain=faster)
    row = Quantities(time=quantity(0.0, p=0.5), speedup=quantity(-0.3), reference=reference)
    assert decide(row)[:2] == (verdict, finding)


def test_a_lost_speedup_is_a_loss_if_1_gpu_is_eight_times_less_likely_to_have_made_it() -> None:
    def moved(gain: float, errors: float | None) -> Quantity:
        """A change by so many standard errors, or by an unknown number."""
        spread = None if errors is None else Term(variance=(gain / errors) ** 2, df=math.inf)
        return replace(quantity(0.0), gain=difference(gain, [spread]))

    lost = (Verdict.REGRESSED, Finding.SCALING_LOSS)
    # The squares differ by more than twice the logarithm of 8, which is 4.16.
    for errors, is_loss in ((0.4, True), (-0.4, True), (0.6, False), (-0.6, False), (None, False)):
        reference = moved(math.copysign(0.1, errors or 1.0), errors)
        row = Quantities(time=moved(-0.3, -2.1), speedup=quantity(-0.3), reference=reference)
        assert decide(row)[:2] == (lost if is_loss else (Verdict.INCONCLUSIVE, None))


@pytest.mark.parametrize("loss", [0.0, 0.6])
def test_of_a_time_and_a_speedup_that_are_as_good_or_as_doubtful_the_speedup_is_named(
    loss: float,
) -> None:
    row = Quantities(time=quantity(-loss, p=0.5), speedup=quantity(-loss, p=0.5))
    assert decide(row).quantity is row.speedup


SPREAD = (1, 1.005, 0.995, 1.002, 0.998, 1)
THEN = {1: [0.1 * f for f in SPREAD], 4: [0.11 * f for f in SPREAD]}
ONE = [0.1, 0.1001, 0.1002]


def test_what_happened_to_the_others_is_told_by_kind() -> None:
    unsteady = replace(run(4, None), failure=Failure(kind="unsteady", message="it alternates"))
    others = (run(4, None, index=2), *(replace(unsteady, index=index) for index in (3, 4)))
    silent = replace(run(4, 0.11), windows=(), measured={})
    now = results(*(run(1, time_s) for time_s in ONE), run(4, 0.11), *others, silent)
    reason = row_on(4, compare(baseline(THEN), [now])).reason
    assert reason.facts["failures"] == {"killed": 1, "unsteady": 2, "": 1}


def test_a_failure_is_said_by_its_first_line_cut_to_160_characters_or_by_its_kind() -> None:
    long, longer = "x" * 160, "x" * 161
    said = {long: long, longer: f"{'x' * 159}…", "\n first\nsecond": "first", " ": "raised"}
    for message, shown in said.items():
        failed = replace(run(1, None), failure=Failure(kind="raised", message=message))
        (row,) = compare(baseline({1: QUIET}), [results(failed)]).entries
        assert row.reason.facts["failure"] == shown


@pytest.mark.parametrize(
    ("four", "verdict"),
    [
        ([0.11, 0.1101, None], Verdict.OK),
        ([0.11, 0.1101, None, None], Verdict.OK),
        ([0.11, 0.1101, None, None, None], Verdict.INCONCLUSIVE),
        ([0.11, None], Verdict.INCONCLUSIVE),
        ([0.11], Verdict.OK),
    ],
)
def test_a_pass_needs_two_numbers(four: list[float | None], verdict: Verdict) -> None:
    comparison = compare(baseline(THEN), [measured({1: ONE, 4: four})])
    assert row_on(4, comparison).verdict is verdict


def test_a_published_figure_is_not_met_by_too_few_valid_runs() -> None:
    before = published(figure(1, time_s=100.0), figure(4, time_s=27.0))
    now = measured({1: [0.1] * 3, 4: [0.1, None, None]})
    row = row_on(4, compare(before, [now]))
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.reason.facts["failures"] == {"killed": 2}
