"""Metrics that programs print or other tools record, judged in place of the step time."""

import random
from collections.abc import Mapping, Sequence

import builders
import pytest
from builders.comparisons import viewed
from statements import known

from gpuscale.analysis.history import history_of
from gpuscale.analysis.scaling import scaling_points
from gpuscale.base.errors import DecodeError, FieldError
from gpuscale.judge.compare import compare_sides
from gpuscale.judge.diagnose.causes import diagnose
from gpuscale.judge.sides import baseline_of_results, sides_of
from gpuscale.records import Comparison, Configuration, Results, Run, Verdict
from gpuscale.records.configuration import ALL_ROWS
from gpuscale.records.metrics import OpenMetric
from gpuscale.reports.comparison.text_markdown_junit import text as render
from gpuscale.reports.history_text import render as render_history
from gpuscale.reports.screen import Screen
from gpuscale.store.file_formats import decode_results

IMAGES = OpenMetric(name="images_per_s", unit="img/s", more_is_better=True, scaling="rate")
BANDWIDTH = OpenMetric(name="busbw_gb_s", unit="GB/s", more_is_better=True)
LATENCY = OpenMetric(name="latency_us", unit="us", more_is_better=False)
EPOCH = OpenMetric(name="epoch_s", unit="s", more_is_better=False, scaling="strong")
WEAK = OpenMetric(name="step_s", unit="s", more_is_better=False, scaling="weak")


def configuration_of(metric: OpenMetric) -> Configuration:
    return Configuration(case="site", strategy=metric.name, device="cuda", metric=metric)


def results_with(
    metric: OpenMetric, values: Mapping[int, Sequence[float]], *, job_id: str = "now"
) -> Results:
    configuration = configuration_of(metric)
    runs = (
        Run(configuration=configuration, gpus=gpus, index=index, measured={metric.name: value})
        for gpus, of_gpus in values.items()
        for index, value in enumerate(of_gpus, start=1)
    )
    return builders.results(*runs, where=builders.environment(job_id=job_id))


def compared(before: Results, after: Results) -> Comparison:
    sides = sides_of(baseline_of_results([before], name="before"), [after])
    return diagnose(sides, compare_sides(sides, ALL_ROWS))


@pytest.mark.parametrize(
    ("metric", "on_1", "on_4", "speedup"),
    [
        (IMAGES, 400.0, 1520.0, 3.8),
        (EPOCH, 100.0, 26.3158, 3.8),
        (WEAK, 1.0, 1.0526316, 3.8),
        (BANDWIDTH, 180.0, 45.0, None),
        (LATENCY, 3.0, 12.0, None),
    ],
)
def test_rates_and_times_of_known_work_have_a_speedup_and_others_have_none(
    metric: OpenMetric, on_1: float, on_4: float, speedup: float | None
) -> None:
    one, four = scaling_points(results_with(metric, {1: [on_1], 4: [on_4]}).runs)
    assert (known(one.value).value, known(four.value).value) == pytest.approx((on_1, on_4))
    assert four.step_time_s is None
    assert four.samples_per_s is None
    found = None if four.speedup is None else four.speedup.value
    assert found == (None if speedup is None else pytest.approx(speedup, rel=1e-5))


@pytest.mark.parametrize("metric", [IMAGES, BANDWIDTH, LATENCY, EPOCH, WEAK])
def test_a_metric_that_got_worse_regresses_and_a_better_one_improves(metric: OpenMetric) -> None:
    before = results_with(metric, {4: [10.0, 10.01, 9.99, 10.0, 10.02, 9.98]}, job_id="then")
    worse, better = (9.0, 11.0) if metric.more_is_better else (11.0, 9.0)
    verdicts = {worse: Verdict.REGRESSED, better: Verdict.IMPROVED, 10.0: Verdict.OK}
    for value, verdict in verdicts.items():
        after = results_with(metric, {4: [value * factor for factor in (1, 1.001, 0.999)]})
        (entry,) = compared(before, after).entries
        assert entry.verdict is verdict


def test_a_metric_that_neither_side_has_on_1_gpu_is_judged_alone() -> None:
    on_4, on_1 = {4: [10.0, 10.01, 9.99]}, {1: [4.0, 4.01, 3.99]}
    for then, now, is_lacking in ((on_4, on_4, False), (on_4, on_1 | on_4, True)):
        before, after = (results_with(IMAGES, values) for values in (then, now))
        row = builders.row_on(4, compared(before, after))
        assert (row.reason.code == "speedup_unknown") is is_lacking
    steps = builders.measured({4: [0.1, 0.1003, 0.0998]})
    assert builders.row_on(4, compared(steps, steps)).reason.code == "speedup_unknown"


def test_a_metric_is_judged_exactly_as_a_step_time_of_the_same_runs_is() -> None:
    rng, verdicts = random.Random(1), set()
    for loss in [0.0, 0.03, 0.06] * 10:
        values = [180 * rng.gauss(1, 0.005) for _ in range(6)]
        values += [180 * rng.gauss(1, 0.005) * (1 - loss) for _ in range(3)]
        sides = {"then": values[:6], "now": values[6:]}
        metrics = (results_with(BANDWIDTH, {8: side}, job_id=job) for job, side in sides.items())
        of_metric = compared(*metrics)
        inverse = {job: [1 / value for value in side] for job, side in sides.items()}
        times = (builders.measured({8: side}, job_id=job) for job, side in inverse.items())
        of_times = compared(*times)
        (found,), (expected,) = of_metric.entries, of_times.entries
        assert (found.verdict, found.change) == (expected.verdict, expected.change)
        verdicts.add(found.verdict)
    assert verdicts == {Verdict.OK, Verdict.INCONCLUSIVE, Verdict.REGRESSED}


def test_a_unit_that_changes_is_another_measurement() -> None:
    other = OpenMetric(name="busbw_gb_s", unit="Gbit/s", more_is_better=True)
    then, now = (results_with(metric, {4: [45.0, 45.1]}) for metric in (BANDWIDTH, other))
    comparison = compared(then, now)
    assert comparison.entries[0].verdict is Verdict.INCOMPARABLE


def test_values_of_zero_and_below_and_unnamed_metrics_are_refused() -> None:
    for measured in ({"busbw_gb_s": 0.0}, {"busbw_gb_s": -1.0}, {"other": 1.0}):
        with pytest.raises(FieldError):
            Run(configuration=configuration_of(BANDWIDTH), gpus=1, measured=measured)
    with pytest.raises(FieldError, match="more of a rate is better"):
        OpenMetric(name="latency_us", more_is_better=False, scaling="rate")


def test_runs_with_metrics_are_read_back_and_a_run_without_its_metric_is_refused() -> None:
    results = results_with(LATENCY, {1: [3.0], 4: [12.0]})
    text = builders.results_text(results)
    assert decode_results(text) == results
    with pytest.raises(DecodeError, match="latency_us"):
        decode_results(text.replace('"measured":{"latency_us":12.0}', '"measured":{}'))


def test_a_comparison_and_a_history_show_values_with_their_units() -> None:
    nights = [
        results_with(LATENCY, {2: [value, value * 1.002]}, job_id=f"night{number}")
        for number, value in enumerate((6.4, 6.41, 6.39, 6.4, 6.42, 6.38, 6.4))
    ]
    text = render(viewed(compared(nights[0], results_with(LATENCY, {2: [7.0, 7.01]}))))
    assert "6.41 → 7.00 us" in text
    assert "step time" not in text
    assert "6.41 us" in render_history(history_of(nights), Screen())
