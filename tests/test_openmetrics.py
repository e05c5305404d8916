"""The metrics of a comparison, read by Prometheus' own readers."""

import shutil
import subprocess

import pytest
from builders import CNN, baseline, environment, results, run
from builders.comparisons import comparison, entry, of_each_verdict, view
from changing import replace

from gpuscale.judge.compare import compare
from gpuscale.records import Verdict
from gpuscale.reports.comparison import View, view_of
from gpuscale.reports.comparison.formats import openmetrics

BF16 = replace(CNN, precision="bf16")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def of_several_configurations() -> View:
    """One case and strategy in two precisions and, in one of them, with two batches."""
    made = (
        run(gpus, 0.1 * scale, configuration=configuration, batch_per_gpu=batch, index=index)
        for configuration, batch, scale in ((CNN, 128, 1), (BF16, 128, 0.5), (BF16, 256, 0.9))
        for gpus in (1, 2)
        for index in (1, 2, 3)
    )
    now = results(*made, where=replace(environment(), driver_version='5\\90 "beta"\nx'))
    then = baseline({1: [0.1] * 6, 2: [0.1] * 6})
    return view_of(compare(then, [now]), [now])


def read(text: str) -> Samples:
    """Every sample, once by OpenMetrics and once by Prometheus' own format, which agree."""
    as_openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")
    as_prometheus = pytest.importorskip("prometheus_client.parser")
    found: list[Samples] = []
    for parser in (as_openmetrics, as_prometheus):
        families = list(parser.text_string_to_metric_families(text))
        samples = [sample for family in families for sample in family.samples]
        assert all(family.type == "gauge" and family.documentation for family in families)
        assert all(sample.timestamp is None for sample in samples)
        values = {(each.name, frozenset(each.labels.items())): each.value for each in samples}
        assert len(values) == len(samples), "two samples of one name and labels"
        found.append(values)
    assert found[0] == found[1]
    return found[0]


def value(samples: Samples, name: str, **labels: str) -> float:
    """Value of the only sample of a metric with these labels."""
    wanted = set(labels.items())
    (found,) = [its for (one, has), its in samples.items() if one == name and wanted <= has]
    return found


def test_both_formats_read_every_row_with_labels_of_its_own() -> None:
    samples = read(f"{openmetrics(of_several_configurations())}\n")
    found = {"cluster": "ARC4", "case": "mnist_cnn", "strategy": "ddp", "gpus": "2"}
    bf16 = {**found, "precision": "bf16"}
    times = [
        value(samples, "gpuscale_step_time_seconds", **bf16, batch_per_gpu=batch)
        for batch in ("128", "256")
    ]
    assert times == pytest.approx([0.05, 0.09])
    fp32 = {**found, "precision": "fp32"}
    assert value(samples, "gpuscale_speedup_ratio", **fp32) == pytest.approx(2)
    assert value(samples, "gpuscale_baseline_speedup_ratio", **fp32) == pytest.approx(2)
    assert value(samples, "gpuscale_throughput_samples_per_second", **fp32) == pytest.approx(2560)
    assert value(samples, "gpuscale_measured_timestamp_seconds", cluster="ARC4") == 1795230000
    assert value(samples, "gpuscale_comparison_info", driver='5\\90 "beta"\nx') == 1


def test_faults_on_purpose_never_go_into_the_series_of_the_cluster() -> None:
    samples = read(f"{openmetrics(view(of_each_verdict(), 'data=5ms'))}\n")
    assert all(("injections", "data=5ms") in labels for _, labels in samples)


@pytest.mark.parametrize("verdict", Verdict)
def test_a_row_has_one_verdict_and_the_whole_its_exit_code(verdict: Verdict) -> None:
    shown = comparison(entry(verdict, case='a"b\\c\n{d}'))
    samples = read(f"{openmetrics(view(shown))}\n")
    of_verdicts = {
        dict(labels)["verdict"]: its
        for (name, labels), its in samples.items()
        if name == "gpuscale_verdict"
    }
    assert of_verdicts == {each.value: float(each is verdict) for each in Verdict}
    assert value(samples, "gpuscale_exit_code", cluster="ARC4") == shown.exit_code


@pytest.mark.parametrize("shown", [of_several_configurations(), view(of_each_verdict())])
def test_promtool_finds_nothing_to_complain_about(shown: View) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not on PATH (Debian: prometheus)")
    text = f"{openmetrics(shown)}\n"
    checked = subprocess.run(
        [program, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
