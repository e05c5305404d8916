"""Figures that commands print, measured by `gpuscale run` and by cases in files."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from command_line import refusal
from commands import gpuscale, measured, request_for
from hosts import processes_in, within_limit
from measuring import run_gpuscale, run_pytest
from statements import known

from gpuscale.analysis.scaling import scaling_points
from gpuscale.cli import main
from gpuscale.measure.launch.collect import command_figures
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.records import Results
from gpuscale.store.results import read_results
from gpuscale.workload.printed_figures import metrics_of, new_parser

IMAGES = r"Images/sec: (?P<images_per_s>[\d.]+)"


def run_command(
    folder: Path, command: str, *options: str, figure: str = IMAGES, results: str = "r.jsonl"
) -> tuple[int, str]:
    target = () if "--resume" in options else ("--results", results)
    asked = ("--device", "cpu", "--oversubscribe", "--name", "site", "--figure", figure)
    done = run_gpuscale(folder, "run", *asked, *target, *options, "--", "sh", "-c", command)
    return done.exit_code, done.output


def values(results: Results) -> list[tuple[object, ...]]:
    return [(run.key.name, run.gpus, run.index, *run.measured.values()) for run in results.runs]


def test_a_rate_on_several_numbers_of_gpus_gives_a_speedup(tmp_path: Path) -> None:
    command = "echo Images/sec: 1; echo Images/sec: $(({gpus} * 100 - {gpus} * 5 + 5)).0"
    code, output = run_command(tmp_path, command, "--gpus", "1,2", "--runs", "2")
    assert code == 0, output
    results = read_results(tmp_path / "r.jsonl")
    name = "site/images_per_s"
    found = {1: 100.0, 2: 195.0}
    assert values(results) == [(name, n, i, found[n]) for i in (1, 2) for n in (1, 2)]
    _, two = scaling_points(results.runs)
    assert known(two.speedup).value == pytest.approx(1.95)
    for run in results.runs:
        unknown = (run.warmup_steps, run.batch_per_gpu, run.steps_per_window, run.windows)
        assert unknown == (None, None, None, ())
    assert "195 images/s" in output
    assert "steadiness" in output


def test_each_group_is_a_metric_and_a_time_scales_if_its_work_is_known(tmp_path: Path) -> None:
    figure = r"took (?P<epoch_s>[\d.]+) s|bus (?P<busbw_gb_s>\S+)|score (?P<score>\S+)"
    command = "echo took $((60 / {gpus})) s; echo bus 12.5; echo score 7e1"
    options = ("--gpus", "1,2", "--runs", "1", "--scaling", "strong", "--better", "score=more")
    code, output = run_command(tmp_path, command, *options, figure=figure)
    assert code == 0, output
    points = scaling_points(read_results(tmp_path / "r.jsonl").runs)
    speedups = {point.key.strategy: point.speedup for point in points if point.gpus == 2}
    assert known(speedups.pop("epoch_s")).value == pytest.approx(2.0)
    assert speedups == {"busbw_gb_s": None, "score": None}


def test_after_an_interrupt_only_what_is_missing_is_measured(tmp_path: Path) -> None:
    command = "test -e go -o ! -e seen || sleep 200; touch seen; echo a 3 b 4"
    figure = r"a (?P<a_s>\d+) b (?P<b_s>\d+)"
    asked = ("--device", "cpu", "--name", "site", "--figure", figure, "--gpus", "1", "--runs", "3")
    process = gpuscale(tmp_path, "run", *asked, "--results", "r.jsonl", "--", "sh", "-c", command)
    results = tmp_path / "r.jsonl"

    def recorded() -> int:
        # The file exists for a moment before its header is in it.
        return results.read_text().count("\n") - 1 if results.exists() else 0

    assert within_limit(lambda: process.poll() is not None or recorded() == 2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 2, output
    assert "--resume r.jsonl" in output
    assert processes_in(tmp_path) == []
    (tmp_path / "go").touch()
    options = ("--gpus", "1", "--runs", "3", "--resume", "r.jsonl")
    code, output = run_command(tmp_path, command, *options, figure=figure)
    assert code == 0, output
    assert "1 skipped: measured before" in output
    figures = (("site/a_s", 3.0), ("site/b_s", 4.0))
    made = [(name, 1, index, value) for index in (1, 2, 3) for name, value in figures]
    assert values(read_results(results)) == made


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        ("print('Images/sec: 5'); sys.exit(3)", "raised", "exit code 3"),
        ("print('no number here')", "unread", "images_per_s"),
        ("print('Images/sec: 0.0')", "invalid", "'0.0'"),
        ("print('Images/sec: 1.2.3')", "invalid", "'1.2.3'"),
        ("print('Images/sec: 5', flush=True); time.sleep(99)", "timeout", "--timeout"),
    ],
)
def test_a_start_without_a_figure_fails(tmp_path: Path, script: str, kind: str, said: str) -> None:
    attributes: dict[str, Any] = {"batch": None, "figure": IMAGES}
    if kind == "timeout":
        attributes["timeout_s"] = 5
    failure = known(measured(tmp_path, script, **attributes).failure)
    assert failure.kind == kind
    assert said in failure.message
    printed = script.split("'")[1]
    assert printed in failure.detail


def test_of_several_processes_the_one_that_prints_the_figure_counts(tmp_path: Path) -> None:
    script = """
if os.environ["RANK"] == "1":
    print("Images/sec: 50")
else:
    print("nothing to say")
"""
    asked = {"batch": None, "figure": IMAGES, "launch": "per-rank"}
    run = measured(tmp_path, script, gpus=2, **asked)  # type: ignore[arg-type]
    assert run.failure is None
    figures = command_figures(
        request_for(tmp_path, script, gpus=2, **asked),  # type: ignore[arg-type]
        RunDirectory(path=tmp_path / "run"),
    )
    assert known(figures).values == (("images_per_s", 50.0),)


def test_a_case_in_a_file_has_figures_too(tmp_path: Path) -> None:
    (tmp_path / "test_site.py").write_text(
        """
import pytest
from gpuscale import CommandCase

class Site(CommandCase):
    command = "sh -c 'echo score {gpus}1; echo took 2 s'"
    figure = r"score (?P<score>\\d+)|took (?P<took_s>\\d+)"
    better = {"score": "more"}

@pytest.mark.gpuscale(case=Site)
def test_site(scaling):
    assert scaling().measured == {"score": 11.0}
"""
    )
    # Of a job, which has cases of both kinds.
    of_all = ("--size", "smoke", "--results", "r.jsonl")
    run_pytest(tmp_path, "--gpus", "1", "--runs", "1", "--device", "cpu", *of_all).ended()
    names = [run.key.name for run in read_results(tmp_path / "r.jsonl").runs]
    assert names == ["site/score", "site/took_s"]


NCCL = """
# Collective test starting: all_reduce_perf
           8        2  float  sum  -1   25.10   0.00   0.00   0    24.96   0.00   0.00   0
    33554432  8388608  float  sum  -1  1043.2  32.17  {large}   0   1038.9  32.30  60.56   0
# Avg bus bandwidth    : 40.6
# Collective test starting: all_gather_perf
     1048576   262144  float  none -1    65.2  16.08  {small}   0     64.9  16.16  14.14   0
# Avg bus bandwidth    : 20.5
"""


def test_bandwidths_are_judged_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--gpus", "1", "--runs")
    Path("log").write_text(NCCL.format(large="60.$(date +%N | cut -c8)1", small="14.07"))
    Path("print.sh").write_text('eval "echo \\"$(cat log)\\""\n')
    command, of_nccl = "sh print.sh", {"figure": "nccl-tests"}
    assert run_command(tmp_path, command, *options, "6", **of_nccl)[0] == 0
    recorded = [run.key.name for run in read_results(tmp_path / "r.jsonl").runs]
    sizes = ("all_reduce_32MiB", "all_gather_1MiB")
    printed = [f"site/{size}{place}_gb_s" for size in sizes for place in ("", "_in_place")]
    assert recorded == ["site/busbw_gb_s", *printed] * 6
    assert main(["baseline", "record", "r.jsonl", "-o", "b.json", "--cluster", "here"]) == 0
    # One size is slower, and the average as printed is not.
    Path("log").write_text(NCCL.format(large="48.$(date +%N | cut -c8)1", small="14.07"))
    judged = (*options, "3:6", "--baseline", "b.json")
    code, output = run_command(tmp_path, command, *judged, results="s.jsonl", **of_nccl)
    assert code == 1, output
    assert re.search(r"all_reduce_32MiB_gb_s.*\n?.*REGRESSED", output), output
    assert "1 regressed, 4 ok" in output, output
    assert main(["compare", "b.json", "s.jsonl"]) == 1
    # A size that is not measured any more is no pass.
    Path("log").write_text(NCCL.format(large="0", small="14.07").replace("33554432", "3355443"))
    code, output = run_command(tmp_path, command, *judged, results="t.jsonl", **of_nccl)
    assert code == 4, output
    assert "no line matches --figure for all_reduce_32MiB_gb_s" in output
    resumed = (*options, "6", "--resume", "r.jsonl")
    code, output = run_command(tmp_path, command, *resumed, **of_nccl)
    assert "6 skipped: measured before" in output


MLPERF = """
:::MLLOG {{"time_ms": 1684449087549, "key": "run_start", "value": null, "metadata": {{}}}}
:::MLLOG {{"time_ms": 1684450087549, "key": "run_stop", "value": null, "metadata": {{{status}}}}}
"""


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        ('"status": "success"', 0, "PASSED 1000 s"),
        ('"status": "aborted"', 1, "no line matches --figure for time_to_train_s"),
    ],
)
def test_an_mlperf_time_is_of_a_success(tmp_path: Path, status: str, code: int, said: str) -> None:
    (tmp_path / "log").write_text(MLPERF.format(status=status))
    options = ("--gpus", "1", "--runs", "1")
    found, output = run_command(tmp_path, "cat log", *options, figure="mlperf")
    assert found == code, output
    assert said in output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--figure", "x"], "group"),
        (["--figure", "(?P<a_s>"], "unterminated"),
        (["--figure", "(?P<foo>x)"], "--better foo=more|less"),
        (["--figure", "(?P<step_time_s>x)"], "choose another"),
        (["--figure", "(?P<a_s>x)", "--better", "b=more"], "no group b"),
        (["--figure", "(?P<a_s>x)", "--better", "a_s"], "latency=less"),
        (["--figure", "(?P<a_gb_s>x)", "--scaling", "weak"], "--scaling"),
        (["--figure", "(?P<a_s>x)", "--batch", "3"], "--batch"),
        (["--figure", "(?P<a_s>x)", "--samples-per-step", "3"], "--samples-per-step"),
        (["--figure", "(?P<a_s>x)", "--step-regex", "(.)"], "--step-regex"),
        (["--figure", "(?P<a_s>x)", "--log-format", "tqdm"], "--log-format"),
        (["--scaling", "weak"], "--figure"),
    ],
)
def test_contradicting_options_start_nothing(options: list[str], said: str, tmp_path: Path) -> None:
    asked = [*options, "--gpus", "1", "--device", "cpu", "--name", "site"]
    assert said in refusal("run", *asked, "--", "touch", "started", cwd=tmp_path)
    assert not (tmp_path / "started").exists()


# Lines in the form of the sources of OSU's benchmarks, STREAM, IOR, HPL and nccl-tests.
PRINTED = {
    "8                       1.54": ("latency_us", 1.54),
    "4194304              2892.82": ("bandwidth_mb_s", 2892.82),
    "Triad:          12345.6     0.001234     0.001200     0.001300": ("triad_mb_s", 12345.6),
    "Max Write: 1234.56 MiB/sec (1294.53 MB/sec)": ("write_mib_s", 1234.56),
    "Max Read:  2345.67 MiB/sec (2459.61 MB/sec)": ("read_mib_s", 2345.67),
    "WR11C2R4    29184   192     2     2         115.29         1.4370e+02": ("rate_gflops", 143.7),
    "# Avg bus bandwidth    : 260.778 ": ("busbw_gb_s", 260.778),
}
PAGE = Path(__file__).parent.parent / "docs" / "commands.md"


@pytest.mark.parametrize("line", PRINTED)
def test_figures_of_the_docs_read_what_benchmarks_print(line: str) -> None:
    shown = [*re.findall(r"--figure '([^']+)'", PAGE.read_text()), "nccl-tests"]
    found: dict[str, float] = {}
    for figure in shown:
        assert metrics_of(figure, {}, None), figure
        found |= {name: float(text) for name, text in new_parser(figure)(line).items()}
    assert found == dict([PRINTED[line]])
