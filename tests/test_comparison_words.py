"""No text of a comparison says more, or something else, than the numbers beside it bear."""

import json
import math
import random
import re
from pathlib import Path

import pytest
from builders import (
    baseline,
    environment,
    measured,
    phased_run,
    phases,
    quiet_now,
    quiet_then,
    results,
    results_text,
    row_on,
)
from builders.comparisons import advice, comparison, noisy, viewed
from builders.nights import Fault, Night, baseline_of, results_of_night
from changing import replace
from command_line import gpuscale
from statements import codes_in, facts_of, known

from gpuscale.base.text import format_distinct, rough_percent
from gpuscale.judge.baseline import baseline_from_results
from gpuscale.judge.compare import compare
from gpuscale.judge.diagnose.causes import diagnose
from gpuscale.judge.sides import sides_of
from gpuscale.records import (
    Baseline,
    Comparison,
    EntryVerdict,
    Estimate,
    QuantityName,
    Results,
    Run,
    Verdict,
)
from gpuscale.records.configuration import Choice
from gpuscale.reports.comparison.formats import COMPARISON_FORMATS
from gpuscale.reports.comparison.text_markdown_junit import text
from gpuscale.reports.phrases import change_text, found_change_text
from gpuscale.reports.reason_words import reason_text
from gpuscale.reports.show.step_parts import budget_findings

NIGHTS = [f"n{i}" for i in range(6)]
THEN = [0.1, 0.1002, 0.0999, 0.16, 0.1001, 0.0998]
"""One run a night, one of which is left out of the judgement."""
QUIET = [0.1 * f for f in (0.999, 1.001, 1.0, 1.002, 0.998, 1.0)]


def said(compared: Comparison, *now: Results) -> dict[str, str]:
    return dict(viewed(compared, *now).headline)


def test_a_night_that_is_left_out_of_the_judgement_is_left_out_of_the_shown_baseline() -> None:
    before = baseline({1: THEN, 2: [1.1 * t for t in QUIET]}, allocations=NIGHTS)
    for row in compare(before, [measured({1: [0.1003, 0.1001], 2: [0.1103, 0.11]})]).entries:
        sides = (row.baseline, row.current)
        before_s, now_s = (known(side.step_time_s).value for side in sides)
        before_rate, now_rate = (known(side.samples_per_s).value for side in sides)
        assert row.verdict is Verdict.OK
        assert before_s / now_s == pytest.approx(1, abs=0.005)
        assert before_rate / now_rate == pytest.approx(1, abs=0.005)
        if row.key.gpus > 1:
            efficiency = known(row.baseline.efficiency).value
            assert known(row.change).value == pytest.approx(now_rate / before_rate - 1)
            assert known(row.baseline.speedup).value == pytest.approx(2 * efficiency)


@pytest.mark.parametrize("gpus", [[2], None])
def test_a_choice_of_rows_is_corrected_for_these_alone(gpus: list[int] | None) -> None:
    before, now = quiet_then(n1=0.1, n2=0.11), quiet_now(n1=0.1, n2=0.11, n4=0.12)
    view = viewed(compare(before, [now], Choice(gpus=gpus)), now)
    for name in ("text", "markdown", "json"):
        shown = " ".join(COMPARISON_FORMATS[name].render(view).split())
        said = "only chosen rows are judged, and verdicts are corrected for these"
        assert (said in shown) is (gpus is not None)


@pytest.mark.parametrize(
    ("on_1", "on_2", "what"), [(0.1, 0.1105, "throughput"), (0.0982, 0.11, "E")]
)
def test_rows_show_the_loss_that_a_headline_rules_out(on_1: float, on_2: float, what: str) -> None:
    before, now = quiet_then(n1=0.1, n2=0.11), quiet_now(n1=on_1, n2=on_2)
    shown = text(viewed(compare(before, [now]), now))
    bound = shown.partition("no loss of ")[2].partition(" or more")[0]
    (line,) = (line for line in shown.splitlines() if f"[−{bound}, " in line)
    assert f"{what} −" in line


def test_no_interval_of_an_ok_row_reaches_below_a_loss_that_is_ruled_out_below_the_limit() -> None:
    rng, compared = random.Random(1), 0
    for _ in range(60):
        times = ([f * math.exp(rng.gauss(0, 0.008)) for _ in range(6)] for f in (0.1, 0.11) * 2)
        then, then2, now, now2 = times
        found = compare(baseline({1: then, 2: then2}), [measured({1: now, 2: now2})])
        if {row.verdict for row in found.entries} == {Verdict.OK}:
            (ruled_out,) = re.findall(r"no loss of ([\d.]+) % or more", said(found)["ok"])
            lows = [known(known(row.change).low) for row in found.entries]
            # By the limit itself a row passes one-sidedly; the interval is two-sided.
            compared += (is_below := float(ruled_out) < 5)
            assert not is_below or min(lows) >= -float(ruled_out) / 100 - 5e-4
            assert float(ruled_out) <= 5
    assert compared > 20


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ((-0.091, -0.102, -0.08), "−9.1 % [−10.2 %, −8.0 %]"),
        ((-0.001, -0.0013, -0.0007), "−0.10 % [−0.13 %, −0.07 %]"),
        ((0.02, 0.02, 0.02), "+2.0 % [+2.0 %, +2.0 %]"),
        ((999.0, 968.0, 1031.0), "×1000 [×969, ×1032]"),
        ((0.766, 0.387, 1.248), "+76.6 % [+38.7 %, +124.8 %]"),
        ((-0.1, -0.904, 9.314), "uncertain by more than a factor of two"),
        ((0.1, None, None), "+10.0 %"),
        ((-0.045, -0.092, -0.00028), "−4.5 % [−9.2 %, −0.03 %]"),
    ],
)
def test_an_interval_is_shown_if_it_can_be_read(
    change: tuple[float, float | None, float | None], text: str
) -> None:
    value, low, high = change
    assert change_text(Estimate(value=value, low=low, high=high)) == text


def test_a_change_that_was_found_has_its_number_however_uncertain_it_is() -> None:
    found = found_change_text(Estimate(value=-0.368, low=-0.7, high=0.3))
    assert found == "−36.8 %, uncertain by more than a factor of two"
    known = Estimate(value=-0.091, low=-0.102, high=-0.08)
    assert found_change_text(known) == change_text(known)


def test_rounding_hides_no_difference_and_makes_no_part_the_whole() -> None:
    assert format_distinct(rough_percent, 0.0301, 0.0304) == ["3.01 %", "3.04 %"]
    assert format_distinct(rough_percent, 0.03, 0.05) == ["3.0 %", "5.0 %"]
    parts = [rough_percent(part) for part in (0.997, 1.0, 11.0)]
    assert parts == ["99.7 %", "100 %", "over 1000 %"]


def test_a_row_is_uncertain_for_what_differs_and_not_for_another_rows_runs() -> None:
    # A single run on either side tells no spread; the rows beside it are noisy.
    noisy_beside = {1: [0.0411], 2: [1.08, 1.65, 1.3]}, {1: [0.0412], 2: [1.08, 1.5, 1.2]}
    for (then, now), code in (
        (noisy_beside, "other_rows_differ"),
        (({1: [0.1, 0.14, 0.09, 0.12]}, {1: [0.1] * 3}), "both_sides_differ"),
        (({1: QUIET}, {1: [0.07, 0.1, 0.14, 0.16]}), "runs_differ"),
    ):
        row = compare(baseline(then), [measured(now)]).entries[0]
        assert row.verdict is Verdict.INCONCLUSIVE
        assert code in codes_in(row.reason)


def test_runs_that_differ_are_named_by_their_own_row() -> None:
    before = baseline({1: [0.3, 0.33, 0.28, 0.31], 2: [0.474, 0.476, 0.48, 0.477]})
    now = [measured({1: [0.3, 0.3, 0.3, 0.301], 2: [0.474, 0.476, 0.48, 0.478]})]
    one, two = viewed(compare(before, now), *now).rows
    said_of_two = reason_text(two.entry)
    assert "the earlier runs on 1 GPU, the reference of E, deviate by 7.1 %" in said_of_two
    assert two.moved.line.startswith("E ")
    assert "reference of E" not in reason_text(one.entry)
    # Those of tonight are named beside those of the baseline where they differ more.
    quiet = [0.1, 0.1003, 0.0997]
    before, later = baseline({1: quiet, 2: [0.11, 0.118, 0.104]}), {1: quiet, 2: [0.1, 0.13, 0.11]}
    _, two = viewed(compare(before, [measured(later)]), measured(later)).rows
    assert "deviate by 6.5 % and these by 14 %" in reason_text(two.entry)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("baseline", "gpuscale baseline update --add"),
        ("results", "gpuscale baseline record night.jsonl night-more-*.jsonl"),
        ("nights", "after more nights"),
    ],
)
def test_more_runs_before_are_asked_for_where_such_a_side_gets_them(kind: str, words: str) -> None:
    facts = {"deviation": 0.1, "quantity": QuantityName.EFFICIENCY, "of_both_sessions": 12}
    for remedy, runs in (("baseline_runs_differ", 40), ("nights_assumed", 0)):
        row = noisy(remedy, of_both=runs, **facts)
        row = replace(row, change=Estimate(value=-0.01, low=-0.06, high=0.04))
        steps = advice(replace(comparison(row), baseline_kind=kind))
        is_in_sessions = kind == "results" and not runs
        assert ("further sessions, best hours apart (" if is_in_sessions else words) in steps
        assert ("gpuscale baseline update" in steps) == (kind == "baseline")
    taken = noisy("nights_assumed", as_runs=0.5, sessions=1, **facts)
    said = "4 sessions, their deviation is assumed: 10 % in E(4), half that of runs here"
    assert said in reason_text(taken)
    steps = advice(replace(comparison(taken), baseline_kind=kind))
    assert (", if you can, at 3 other times, best hours apart (" in steps) is (kind != "nights")
    made = "baseline record night.jsonl night-more-*.jsonl --cluster before -o before.json\n"
    assert (made in steps) is ("compare before.json night.jsonl" in steps) is (kind == "results")
    # No number of nights before tells what is special about this one.
    doubt = replace(comparison(noisy("nights_differ", sessions=4, **facts)), baseline_kind=kind)
    of_several = "run gpuscale compare night.jsonl night.jsonl night-more-*.jsonl\n"
    assert (of_several in advice(doubt)) is (kind != "nights")
    assert ("next measure about 11 further sessions, best" in advice(doubt)) is (kind != "nights")
    # Both sides have one name here, and what is judged is not to become the baseline.
    lacks = "then measure about 8 for the baseline (as it was then), into night-more-again-*.jsonl"
    assert (lacks in advice(doubt)) is (kind == "baseline")
    # As many as in these sessions, since the runs of all nights before are no session's.
    doubt = replace(doubt, before=replace(doubt.before, most_runs=180))
    assert ("--runs 6 --results night-more-$(" in advice(doubt)) is (kind != "nights")


def test_a_loss_never_asks_for_a_baseline_that_would_hold_it() -> None:
    before = baseline_of(Night(job="1", runs=6, phases=False, gpus=(1, 2)))
    slow = results_of_night(Night(job="2", day=30, fault=Fault(computing=1.1), gpus=(1, 2)))
    compared = diagnose(sides_of(before, [slow]), compare(before, [slow]))
    shown = " ".join(text(viewed(compared, slow)).split())
    assert "lack phases, paces or exposed communication" in shown
    assert "baseline record" not in shown
    assert "baseline again" not in shown


@pytest.mark.parametrize(
    ("factor", "is_named"),
    [(1e9, True), (0.001, True), (0.45, True), (0.55, False), (8.0, False), (12.0, True)],
)
def test_a_change_that_no_machine_can_make_is_named(factor: float, is_named: bool) -> None:
    now = measured({1: [factor * t for t in QUIET]})
    lines = said(compare(baseline({1: QUIET}), [now]), now)
    assert ("times the baseline's throughput" in lines.get("beware", "")) == is_named
    assert ("counted alike" in lines.get("next", "")) == is_named


@pytest.mark.parametrize(("factor", "code"), [(0.8, 0), (1.2, 1)])
def test_a_change_between_few_sessions_is_doubted_and_one_over_many_is_not(
    factor: float, code: int
) -> None:
    moved = measured({1: [factor * t for t in QUIET]})
    sides = (baseline({1: QUIET}, allocations=names) for names in (["then"], NIGHTS))
    one, many = (compare(before, [moved]) for before in sides)
    assert (one.exit_code, many.exit_code) == (code, code)
    known = "" if code == 0 else "; if by over "
    doubt = f"it is unknown how much sessions differ: 1.0 % in throughput is assumed{known}"
    assert doubt in said(one)["beware"]
    assert ("up_to" in facts_of(one.notes, "few_sessions")) is bool(known)
    assert "beware" not in said(many)
    assert "beware" not in said(compare(baseline({1: QUIET}), [measured({1: QUIET})]))


@pytest.mark.parametrize(("apart_s", "is_doubted"), [(60.0, True), (3600.0, False)])
def test_sessions_within_an_hour_on_one_host_are_doubted(apart_s: float, is_doubted: bool) -> None:
    many = baseline_of(*(Night(job=str(at), runs=1, gpus=(1,)) for at in range(6)))
    begun = (replace(run, started_at_s=apart_s * at) for at, run in enumerate(many.runs))
    tonight = results_of_night(Night(job="9", day=30, gpus=(1,)))
    lines = said(compare(replace(many, runs=tuple(begun)), [tonight]), tonight)
    doubt = "all sessions of the baseline began within 5 minutes: hours apart, they may differ by "
    assert lines.get("beware", "").startswith(doubt) is is_doubted


@pytest.mark.parametrize("factor", [1.08, 1.2])
def test_the_deviation_between_sessions_up_to_which_a_loss_holds_is_named(factor: float) -> None:
    before, lost = baseline({1: QUIET}), measured({1: [factor * t for t in QUIET]})
    comparison = compare(before, [lost])
    up_to = facts_of(comparison.notes, "few_sessions")["up_to"]
    assert (
        f"if by over {rough_percent(up_to)}, the loss may be chance" in said(comparison)["beware"]
    )
    for deviation, code in ((0.99 * up_to, 1), (1.01 * up_to, 3)):
        declared = replace(before.tolerances, allocation_deviation_time=deviation)
        assert compare(replace(before, tolerances=declared), [lost]).exit_code == code


def two_ranks(*factors: tuple[float, float]) -> Results:
    """Runs on 1 GPU, and on 2 GPUs whose ranks compute longer by these factors."""
    own = phases(data_s=0.002, forward_s=0.03, backward_s=0.06)
    runs = [
        phased_run([own.scaled(one), own.scaled(other)], communication_s=0.008, index=index)
        for index, (one, other) in enumerate(factors, start=1)
    ]
    alone = (phased_run([own], index=index) for index in (1, 2, 3))
    return results(*alone, *runs)


def begun_later(results: Results) -> Results:
    return replace(results, runs=tuple(replace(r, started_at_s=2e9) for r in results.runs))


def well_and_later(before: Results, now: Results) -> tuple[Baseline, Results]:
    well = baseline_from_results([before], name="well", cluster="Here")
    return well, replace(begun_later(now), environment=environment(job_id="later"))


def test_a_run_that_is_left_out_of_the_baseline_tells_nothing_of_the_causes_either(
    tmp_path: Path,
) -> None:
    usual = ((1.0, 1.02), (1.0, 1.021), (1.0, 1.019), (1.0, 1.022), (1.0, 1.018), (1.0, 1.02))
    steady, one_lagged = two_ranks(*usual), two_ranks(*usual, (1.0, 2.5))
    slow = begun_later(two_ranks(*((1.0, 1.3),) * 4))
    causes = []
    for before in (steady, one_lagged):
        paths = [tmp_path / name for name in ("then.jsonl", "now.jsonl")]
        for path, made in zip(paths, (before, slow), strict=True):
            path.write_text(results_text(made))
        ran = gpuscale("compare", *paths, "--format", "json", cwd=tmp_path)
        assert ran.stdout, ran.stderr
        answer = json.loads(ran.stdout)
        named = [note for note in answer["notes"] if "left out of the baseline" in note]
        assert bool(named) is (before is one_lagged)
        causes.append(next(row["causes"] for row in answer["entries"] if row["gpus"] == 2))
    assert causes[0] == causes[1]


def test_a_rank_that_lags_is_named_beside_a_cause_that_names_none() -> None:
    then, tonight = ((1.0, 1.0), (1.0, 1.01), (1.01, 1.0), (1.0, 1.0)), ((1.15, 1.2),) * 4
    well, later = well_and_later(two_ranks(*then), two_ranks(*tonight))
    row = row_on(2, diagnose(sides_of(well, [later]), compare(well, [later])))
    assert [(cause.code, cause.ranks) for cause in row.causes][:2] == [
        ("computing", ()),
        ("stragglers", (1,)),
    ]


@pytest.mark.parametrize("was_slow", [False, True])
def test_a_rank_that_lags_by_more_than_before_decides_a_row_that_is_open_but_for_it(
    was_slow: bool,
) -> None:
    lags = ((1.0, 1.2), (1.3, 1.6), (0.95, 0.94), (1.2, 1.45), (0.9, 1.1), (1.1, 1.3))
    usual = ((1.0, 1.01), (1.3, 1.25), (0.95, 0.94), (1.2, 1.22), (0.9, 0.92), (1.1, 1.08))
    well, later = well_and_later(two_ranks(*(lags if was_slow else usual)), two_ranks(*lags))
    lines = said(diagnose(sides_of(well, [later]), compare(well, [later])), later)
    assert next(iter(lines)) == ("INCONCLUSIVE" if was_slow else "REGRESSED")
    assert lines.get("cause", "").startswith("rank 1 slow +") is not was_slow
    assert ("again, run 'gpuscale doctor' on node1" in lines.get("then", "")) is not was_slow


def test_a_straggler_is_named_only_if_its_lags_agree_or_exceed_what_runs_differ_by() -> None:
    def findings(*factors: tuple[float, float], device: str) -> list[str]:
        runs: list[Run] = []
        for run in two_ranks(*factors).runs:
            exposed = {"exposed_communication_s": 0.02} if run.gpus > 1 else {}
            where, known = replace(run.configuration, device=device), {**run.measured, **exposed}
            runs += [replace(run, measured=known, configuration=where)]
        return [text for _, text in budget_findings(runs)]

    def named(*factors: tuple[float, float], device: str = "cuda") -> str:
        budget, *who = findings(*factors, device=device)
        assert "− skew" in budget
        assert who
        named = "".join(each for each in who if not re.search("no rank is|do not tell", each))
        return named.removesuffix("; a comparison shows whether that is new")

    always = ((1.0, 1.8),) * 3
    assert named(*always) == (
        "skew: rank 1 (node1, GPU-1): the slowest in 3 of 3 runs, 80.0 % behind the other"
    )
    assert named(*always, *always).endswith("in 6 of 6 runs, 80.0 % behind the other")
    assert named((1.0, 1.8), (1.8, 1.0), *always * 3).endswith(
        "in 10 of 11 runs, 80.0 % behind the other"
    )
    # The runs' paces differ by more than the rank lags in one of them.
    assert "in 3 of 3 runs, 18.4 % to 40.0 % behind" in named((1.0, 1.35), (1.25, 1.48), (1.0, 1.4))
    assert "1540.0 % behind the other" in named(*((1.0, 16.4),) * 3)
    assert "26.7 % to 30.0 % behind the other" in named((1.0, 1.3), (2.0, 2.6), (3.0, 3.8))
    # CPU ranks of a healthy host may differ by as much.
    of_cpu = [named(*((1.0, 1.0 + lag),) * 4, device="cpu") for lag in (0.09, 0.12)]
    assert ["as some CPU rank often is" in each for each in of_cpu] == [True, False]
    assert named(*((1.0, 1.09),) * 4)
    # Chance may do so: the ranks take turns, the lags differ much, or there are two runs.
    assert not named((1.8, 1.0), (1.0, 1.8))
    assert not named((1.0, 1.8), (1.8, 1.0), *always)
    assert not named((1.0, 1.6), (1.0, 1.05), (1.0, 1.7))
    assert not named((1.0, 1.3), (2.0, 2.1), (3.0, 4.5))
    assert not named((1.0, 1.8), (1.0, 1.8))


def test_a_number_of_further_runs_that_is_foretold_settles_most_rows() -> None:
    rng = random.Random(4)
    settled: list[bool] = []
    while len(settled) < 40:
        deviation, loss = rng.choice([0.01, 0.02, 0.03, 0.05]), rng.choice([0.0, 0.03, 0.06, 0.1])
        made, runs = rng.choice([3, 6]), rng.choice([2, 3, 4])
        then = [0.1 * math.exp(rng.gauss(0, deviation)) for _ in range(made)]
        now = [0.1 * math.exp(rng.gauss(loss, deviation)) for _ in range(7 * runs)]
        before = baseline({1: then})

        def after(runs: int, before: Baseline, now: list[float]) -> EntryVerdict:
            return compare(before, [measured({1: now[:runs]})]).entries[0]

        row = after(runs, before, now)
        if row.further_runs is not None:
            looks = range(runs + 1, runs + 1 + 2 * row.further_runs)
            after_more = (after(n, before, now).verdict for n in looks)
            settled.append(any(verdict is not Verdict.INCONCLUSIVE for verdict in after_more))
    # About 5 of 6 rows by twice as many runs (docs/evidence/rates.md).
    assert sum(settled) > 0.55 * len(settled)
