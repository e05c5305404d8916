"""The limits of judgement: defaults, a site's overrides, and which of them wins."""

import json
from typing import Any

import pytest
from builders import figure, published, quiet_now, quiet_then, row_on
from changing import replace

from gpuscale.base.errors import DecodeError
from gpuscale.judge.compare import compare
from gpuscale.records import Baseline, EntryKey, Tolerances, Verdict
from gpuscale.records.baseline import ToleranceOverride
from gpuscale.records.metrics import METRICS_BY_NAME
from gpuscale.reports.reason_words import statement_text
from gpuscale.store.file_formats import decode_baseline, encode_baseline

FOUR = EntryKey("mnist_cnn", "ddp", 4)


def _then(*overrides: ToleranceOverride) -> Baseline:
    return replace(quiet_then(n1=0.1, n4=0.11), tolerances=Tolerances(overrides=overrides))


def _margin(*overrides: ToleranceOverride) -> float:
    return Tolerances(overrides=overrides).limits(FOUR, "speedup").margin


def test_of_overrides_that_name_equally_many_the_case_goes_before_the_rest() -> None:
    in_order = [
        ToleranceOverride(case="mnist_cnn", margin=0.1),
        ToleranceOverride(strategy="ddp", margin=0.2),
        ToleranceOverride(gpus=4, margin=0.3),
        ToleranceOverride(metric="speedup", margin=0.4),
    ]
    while in_order:
        assert _margin(*reversed(in_order)) == in_order[0].margin
        del in_order[0]


def test_each_limit_comes_from_the_most_specific_override_that_gives_it() -> None:
    wide = ToleranceOverride(case="mnist_cnn", margin=0.1, ok_bound=0.3)
    narrow = ToleranceOverride(strategy="ddp", gpus=4, margin=0.2)
    for overrides in ((wide, narrow), (narrow, wide)):
        limits = Tolerances(overrides=overrides).limits(FOUR, "throughput")
        assert (limits.margin, limits.ok_bound, limits.allocation_deviation) == (0.2, 0.3, 0.01)


def test_an_override_without_a_metric_is_of_throughput_and_speedup_only() -> None:
    tolerances = Tolerances(overrides=(ToleranceOverride(gpus=4, margin=0.2),))
    assert tolerances.limits(FOUR, "throughput").margin == 0.2
    of_memory = METRICS_BY_NAME["peak_memory_bytes"].limits
    assert tolerances.limits(FOUR, "peak_memory_bytes") == of_memory


@pytest.mark.parametrize(
    "elsewhere", [{"case": "resnet50"}, {"strategy": "dp"}, {"gpus": 2}, {"metric": "throughput"}]
)
def test_an_override_for_other_rows_or_metrics_changes_nothing(elsewhere: Any) -> None:
    assert _margin(ToleranceOverride(margin=0.2, **elsewhere)) == 0.02


def test_the_margin_of_a_row_is_its_tolerance_against_a_published_figure() -> None:
    before = published(figure(1, time_s=100.0), figure(4, time_s=25.0))
    lost = [quiet_now(n1=0.1, n4=0.12)]
    assert compare(before, lost).entries[1].verdict is Verdict.INCONSISTENT
    wide = Tolerances(overrides=(ToleranceOverride(gpus=4, margin=0.25),))
    assert compare(replace(before, tolerances=wide), lost).entries[1].verdict is Verdict.CONSISTENT


TWICE = "the same rows as an earlier one; put their limits into one"


def _document(*overrides: dict[str, object]) -> str:
    document = json.loads(encode_baseline(_then()))
    document["tolerances"]["overrides"] = list(overrides)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("overrides", "place", "problem"),
    [
        ([{"margin": 0.1}], "[0]", "it applies to every row"),
        ([{"gpus": 4}], "[0]", "it sets no limit"),
        ([{"gpus": 4, "margin": 0.1}, {"gpus": 4, "ok_bound": 0.2}], "[1]", TWICE),
        ([{"metric": "memory", "margin": 0.1}], "[0].metric", "peak_memory_bytes"),
        ([{"gpus": 4, "margin": 5}], "[0].margin", "0.99"),
        ([{"gpus": 4, "margn": 0.1}], "[0].margn", "unknown field"),
    ],
)
def test_bad_edits_are_placed(overrides: list[dict[str, object]], place: str, problem: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_baseline(_document(*overrides))
    assert caught.value.place == f"tolerances.overrides{place}"
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("significance", "verdict"), [(0.01, Verdict.REGRESSED), (0.001, Verdict.INCONCLUSIVE)]
)
def test_a_site_chooses_how_sure_a_finding_must_be(significance: float, verdict: Verdict) -> None:
    before = replace(_then(), tolerances=Tolerances(significance=significance))
    row = row_on(1, compare(before, [quiet_now(n1=0.104)]))
    assert row.verdict is verdict


def test_an_override_for_a_case_or_strategy_that_no_row_has_is_noted() -> None:
    typed = [ToleranceOverride(**name, margin=0.1) for name in ({"case": "mnist"}, {"gpus": 2})]
    typed += [ToleranceOverride(strategy="dpp", gpus=4, margin=0.1)]
    notes = compare(_then(*typed), [quiet_now(n1=0.1, n4=0.11)]).notes
    assert [statement_text(note) for note in notes if note.code == "unused_override"] == [
        "tolerances.overrides[0] matches no row (case 'mnist'; there is mnist_cnn)",
        "tolerances.overrides[2] matches no row (strategy 'dpp'; there is ddp)",
    ]
