"""`gpuscale import`: what other tools recorded becomes nights that are judged like any others."""

import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command_line import gpuscale
from statements import known

from gpuscale.cli import main
from gpuscale.cli.nights import read_nights
from gpuscale.store.files import read_baseline
from gpuscale.store.imports.sources import SOURCES
from gpuscale.store.results import read_results

CASE = {
    "name": "Img %n=4",
    "system": "site",
    "partition": "gpu",
    "environ": "builtin",
    "result": "pass",
    "num_tasks": 4,
    "job_nodelist": ["n1"],
}


def report(day: int, values: Mapping[str, list[Any]], **changes: object) -> dict[str, Any]:
    """A run report with one test case, as ReFrame 4.10 writes it, without what is not read."""
    at_s = 1.79e9 + day * 86400
    case = {**CASE, "job_completion_time_unix": at_s, "perfvalues": values, **changes}
    info = {"uuid": f"uuid-{day}", "hostname": "login1", "time_start_unix": at_s - 60}
    return {"session_info": info, "runs": [{"run_index": 0, "testcases": [case]}]}


def images(value: float, unit: str = "img/s") -> dict[str, list[Any]]:
    return {"site:gpu:throughput": [value, 380, -0.1, None, unit, "pass"]}


def write(folder: Path, *reports: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(reports):
        (folder / f"r{number}.json").write_text(json.dumps(content))
    return folder


def imported(*arguments: str | Path) -> int:
    return main(["import", "reframe", *map(str, arguments)])


def test_reports_become_nights_in_which_a_loss_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(3)
    days = [images(1500 * rng.gauss(1, 0.003) * (0.94 if day >= 8 else 1)) for day in range(11)]
    reports = write(tmp_path / "reports", *(report(day, each) for day, each in enumerate(days)))
    nights = tmp_path / "nights"
    assert imported(reports, "-o", nights) == 0
    assert "11 new nights with 11 values" in capsys.readouterr().out
    (first, *_) = sorted(nights.glob("*.jsonl"))
    (run,) = read_results(first).runs
    metric = run.configuration.metric
    assert metric is not None
    assert (metric.unit, metric.more_is_better, metric.scaling) == ("img/s", True, "rate")
    assert (run.gpus, run.nodes[0].host, run.batch_per_gpu) == (4, "n1", None)
    assert main(["history", str(nights)]) == 0
    assert "SLOWER" in capsys.readouterr().out
    assert main(["compare", "--history", str(nights)]) == 1


def test_what_was_imported_is_passed_over_and_what_is_new_is_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports, nights = write(tmp_path / "reports", report(0, images(100))), tmp_path / "nights"
    imported(reports, "-o", nights)
    before = {path: path.read_bytes() for path in nights.glob("*.jsonl")}
    # The same session under another name is known by its uuid.
    (reports / "copy.json").write_text(json.dumps(report(0, images(100))))
    imported(reports, "-o", nights)
    assert {path: path.read_bytes() for path in nights.glob("*.jsonl")} == before
    (reports / "r2.json").write_text(json.dumps(report(1, images(101))))
    imported(reports, "-o", nights)
    assert len([*nights.glob("*.jsonl")]) == 2
    assert "1 new night with 1 value" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("thresholds", "unit", "more"),
    [
        ((-0.1, None), "widgets", True),
        ((None, 0.1), "widgets", False),
        ((-0.1, 0.1), "s", False),
        ((None, None), "GB/s", True),
        ((None, None), "GFLOPS", True),
        ((None, None), "us", False),
    ],
)
def test_the_better_direction_comes_from_the_thresholds_or_the_unit(
    tmp_path: Path, thresholds: tuple[float | None, float | None], unit: str, more: bool
) -> None:
    values = {"site:gpu:figure": [5.0, 5.0, *thresholds, unit]}
    imported(write(tmp_path / "reports", report(0, values)), "-o", tmp_path / "nights")
    (file,) = (tmp_path / "nights").glob("*.jsonl")
    metric = read_results(file).runs[0].configuration.metric
    assert known(metric).more_is_better is more


def test_an_unknown_direction_is_asked_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = write(tmp_path / "reports", report(0, {"a:b:score": [5.0, 0, None, None, None]}))
    nights = tmp_path / "nights"
    assert imported(reports, "-o", nights) == 2
    assert "--better score=more|less" in capsys.readouterr().err
    assert imported(reports, "-o", nights, "--better", "score=less") == 0
    (reports / "r2.json").write_text(
        json.dumps(report(1, {"a:b:score": [5.1, 0, None, None, None]}))
    )
    assert imported(reports, "-o", nights) == 0
    assert len([*nights.glob("*.jsonl")]) == 2


def test_a_name_that_may_be_a_rate_or_a_time_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("time,throughput_img_s\n2026-03-01,80\n2026-03-02,70\n")
    nights = tmp_path / "nights"
    command = [str(table), "-o", str(nights)]
    assert main(["import", "csv", *command]) == 2
    assert "--better throughput_img_s=more|less" in capsys.readouterr().err
    assert main(["import", "csv", *command, "--better", "throughput_img_s=more"]) == 0
    metrics = {
        run.configuration.metric
        for file in nights.glob("*.jsonl")
        for run in read_results(file).runs
    }
    assert [(each.unit, each.scaling) for each in metrics if each] == [("img/s", "rate")]


def test_failed_and_unusable_cases_are_named_and_never_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = write(
        tmp_path / "reports",
        report(0, images(100)),
        report(1, {}, result="fail", fail_phase="sanity"),
        report(2, images(0.0)),
        report(3, {**images(-4.0), "site:gpu:score": [math.nan, 5, None, None, "GB/s"]}),
        report(4, images(100), result="skip"),
    )
    (reports / "broken.json").write_text(json.dumps(report(5, images(1)))[:300])
    assert imported(reports, "-o", tmp_path / "nights") == 0
    said = capsys.readouterr()
    assert "broken.json" in said.err
    assert "Img %n=4 (no value): 2 ×, Img %n=4 (fail in sanity)" in said.out
    assert len([*(tmp_path / "nights").glob("*.jsonl")]) == 1
    assert imported(reports, "-o", tmp_path / "nights") == 0
    assert "with 0 values, from 0 files; 5 files imported before" in capsys.readouterr().out
    assert imported(tmp_path / "nowhere.json", "-o", tmp_path / "nights") == 2
    assert "nowhere.json: No such file" in capsys.readouterr().err


def test_two_systems_do_not_mix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = write(
        tmp_path / "reports", report(0, images(100)), report(1, images(50), system="other")
    )
    assert imported(reports, "-o", tmp_path / "nights") == 2
    assert "r1.json is of other:gpu" in capsys.readouterr().err
    other = reports, "-o", tmp_path / "other", "--system"
    assert imported(*other, "third:gpu") == 2
    assert "of third:gpu; the files are of other:gpu, site:gpu" in capsys.readouterr().err
    assert imported(*other, "other:gpu") == 0
    (file,) = (tmp_path / "other").glob("*.jsonl")
    assert read_results(file).environment.system == "other:gpu"


def test_a_unit_that_changes_is_named_and_its_values_are_not_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = [(1500.0 + day, "img/s") if day < 7 else (1.5, "kimg/s") for day in range(14)]
    named = "metrics in several units, each a row of its own: Img %n=4/throughput (img/s, kimg/s)"
    reports = (report(day, images(*rate)) for day, rate in enumerate(rates))
    nights, better = tmp_path / "nights", ("--better", "throughput=more")
    assert imported(write(tmp_path / "reports", *reports), "-o", nights, *better) == 0
    assert main(["history", str(nights)]) == 0
    assert f"note: {named}\n" in capsys.readouterr().out
    # The row in the former unit was not measured on the last night.
    assert main(["compare", "--history", str(nights)]) == 3
    assert f"note: {named}\n" in capsys.readouterr().out


def test_a_performance_log_becomes_a_night_a_day(tmp_path: Path) -> None:
    folder = tmp_path / "perflogs" / "site" / "gpu"
    folder.mkdir(parents=True)
    head = "result|job_completion_time_unix|name|num_tasks|throughput_value|throughput_unit"
    head += "|throughput_lower_thres|throughput_upper_thres"
    lines = [f"pass|{1.79e9 + day * 86400}|Img|4|{100 + day}|img/s|-0.1|None" for day in range(3)]
    (folder / "Img.log").write_text("\n".join((head, *lines, "")))
    assert imported(tmp_path / "perflogs", "-o", tmp_path / "nights") == 0
    files = sorted((tmp_path / "nights").glob("*.jsonl"))
    assert [read_results(file).runs[0].measured["throughput"] for file in files] == [100, 101, 102]
    assert read_results(files[0]).environment.system == "site:gpu"


def test_a_report_and_a_log_of_the_same_sessions_count_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at_s = 1.79e9
    reports = [report(0, images(100), job_completion_time_unix=at_s + 60 * n) for n in range(3)]
    for number, each in enumerate(reports):
        each["session_info"].update(uuid=str(number), time_start_unix=at_s + 60 * number - 30)
    write(tmp_path / "site" / "gpu", *reports)
    head = "result|job_completion_time_unix|name|num_tasks|job_nodelist|throughput_value"
    head += "|throughput_unit|throughput_lower_thres|throughput_upper_thres"
    lines = [f"pass|{at_s + 60 * n}|Img %n=4|4|n1|100|img/s|-0.1|None" for n in range(3)]
    # ReFrame has renamed the log, since its columns changed.
    (tmp_path / "site" / "gpu" / "Img.log.h0").write_text("\n".join((head, *lines, "")))
    assert imported(tmp_path / "site", "-o", tmp_path / "nights") == 0
    assert "with 6 values" in capsys.readouterr().out
    read = read_nights([tmp_path / "nights"])
    assert sum(len(results.runs) for results in read) == 3
    assert "left out: 3 repeated runs; each counts once" in capsys.readouterr().err


NCCL = """
#  Rank  0 Group  0 Pid  12345 on       n1 device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid  12346 on       n2 device  0 [0x0a] NVIDIA A100-SXM4-40GB
           8        2  float  sum  -1   25.10   0.00   0.00   0    24.96   0.00   0.00   0
    33554432  8388608  float  sum  -1  1043.2  32.17  60.31   0   1038.9  32.30  60.56   0
# Avg bus bandwidth    : 40.6
"""
MLPERF = "\n".join(
    f':::MLLOG {{"time_ms": {time_ms}, "key": "{key}", "value": {value}, "metadata": {meta}}}'
    for time_ms, key, value, meta in (
        (1684449000000, "submission_benchmark", '"resnet"', "{}"),
        (1684449087549, "run_start", "null", "{}"),
        (1684450087549, "run_stop", "null", '{"status": "success"}'),
    )
)
BENCHMARK = """{"machine_info": {"node": "n1", "cpu": {"brand_raw": "Xeon"}}, "datetime":
"2026-03-01T03:00:00+00:00", "commit_info": {"id": "0123abc"}, "benchmarks": [{"fullname":
"test_b.py::test_x", "stats": {"median": 8.04e-06, "rounds": 5}}]}"""


@pytest.mark.parametrize(
    ("source", "name", "text", "rows"),
    [
        (
            "nccl-tests",
            "all_reduce_perf.log",
            NCCL,
            [
                ("all_reduce_perf/32MiB_gb_s on 2 GPUs", 60.31),
                ("all_reduce_perf/32MiB_in_place_gb_s on 2 GPUs", 60.56),
                ("all_reduce_perf/busbw_gb_s on 2 GPUs", 40.6),
            ],
        ),
        ("mlperf", "result_0.txt", MLPERF, [("resnet/time_to_train_s on 1 device", 1000.0)]),
        (
            "pytest-benchmark",
            "b.json",
            BENCHMARK,
            [("test_b.py::test_x/median_s on 1 device", 8.04e-06)],
        ),
        (
            "csv",
            "t.csv",
            "time,commit,latency_ms,images_per_s\n2026-03-01,abc,3.5,10\n",
            [("t/images_per_s on 1 device", 10.0), ("t/latency_ms on 1 device", 3.5)],
        ),
        (
            "table",
            "wiki.md",
            "|case|strategy|batch|n|img/s|\n|-|-|-|-|-|\n|cnn|ddp|8|1|9.5|\n|cnn|ddp|8|2|18|\n",
            [
                ("cnn, ddp/samples_per_s on 1 device", 9.5),
                ("cnn, ddp/samples_per_s on 2 devices", 18.0),
            ],
        ),
        (
            "table",
            "wiki.csv",
            "case,strategy,batch,GPUs,img/s\ncnn,ddp,8,2,18\n",
            [("cnn, ddp/samples_per_s on 2 GPUs", 18.0)],
        ),
        (
            "reframe",
            "r.json",
            json.dumps(report(0, images(100), num_gpus_per_node=4)),
            [("Img %n=4/throughput on 4 GPUs", 100.0)],
        ),
    ],
)
def test_each_source_becomes_rows_with_its_values(
    tmp_path: Path, source: str, name: str, text: str, rows: list[tuple[str, float]]
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["import", source, str(tmp_path), "-o", str(tmp_path / "nights")]) == 0
    (file,) = (tmp_path / "nights").glob("*.jsonl")
    found = [(run.label, *run.measured.values()) for run in read_results(file).runs]
    assert sorted(found) == rows


def test_imported_runs_on_gpus_are_shown_and_recorded_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    days = (report(day, images(100 + day), num_gpus_per_node=4) for day in range(4))
    nights = tmp_path / "nights"
    imported(write(tmp_path / "reports", *days), "-o", nights)
    files = [str(path) for path in sorted(nights.glob("*.jsonl"))]
    own = str(tmp_path / "own.json")
    assert main(["baseline", "record", *files, "--weak", "--cluster", "c", "-o", own]) == 0
    assert main(["show", own]) == 0
    assert main(["show", files[0]]) == 0
    assert main(["compare", own, files[-1]]) == 0
    assert "device" not in capsys.readouterr().out


def test_lines_of_one_moment_are_runs_of_one_night(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time,latency_ms\n2026-03-01,3.5\n2026-03-01,3.6\n")
    assert main(["import", "csv", str(tmp_path / "t.csv"), "-o", str(tmp_path / "nights")]) == 0
    (file,) = (tmp_path / "nights").glob("*.jsonl")
    runs = [(run.index, run.measured["latency_ms"]) for run in read_results(file).runs]
    assert runs == [(1, 3.5), (2, 3.6)]


def test_a_history_names_the_commits_between_which_a_table_changed(tmp_path: Path) -> None:
    steps = [(f"2026-11-{day:02d}", f"c{day}", 3.5 if day < 9 else 4.5) for day in range(1, 13)]
    lines = (f"{date},{commit},{value_ms}" for date, commit, value_ms in steps)
    (tmp_path / "t.csv").write_text("\n".join(["time,commit,latency_ms", *lines]))
    assert main(["import", "csv", str(tmp_path / "t.csv"), "-o", str(tmp_path / "nights")]) == 0
    history = gpuscale("history", "nights", cwd=tmp_path).stdout
    assert "revision of the cases c8 → c9" in " ".join(history.split())


@pytest.mark.parametrize("source", SOURCES)
def test_a_file_that_the_source_does_not_write_is_refused_in_one_line(
    tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").write_text("nothing of the kind\n")
    assert main(["import", source, str(tmp_path / "other"), "-o", str(tmp_path / "nights")]) == 2
    refused, *rows = capsys.readouterr().err.splitlines()
    assert "other" in refused
    assert all(row.startswith("  line 1: ") for row in rows)
    (tmp_path / "another").write_text("nor of this\n")
    both = str(tmp_path / "other"), str(tmp_path / "another")
    assert main(["import", source, *both, "-o", str(tmp_path / "nights")]) == 2
    assert capsys.readouterr().err.endswith("none of the files could be read; see above\n")


SITE = """
import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class Img(rfm.RunOnlyRegressionTest):
    n = parameter([1, 2])
    valid_systems = valid_prog_environs = ["*"]
    executable = "echo"
    reference = {"*": {"throughput": (90, -0.1, None, "img/s")}}

    @run_before("run")
    def prepare(self):
        self.num_tasks = self.n
        self.executable_opts = [f"Images/sec: {97 * self.n}"]

    @sanity_function
    def has_images(self):
        return sn.assert_found("Images", self.stdout)

    @performance_function("img/s")
    def throughput(self):
        return sn.extractsingle(r"sec: (\\S+)", self.stdout, 1, float)
"""


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Folders with the report and the logs of a real ReFrame, by the rate that it measured."""
    if find_spec("reframe") is None:
        pytest.skip("ReFrame-HPC is not installed")
    found = {}
    for rate in (70, 97):
        found[rate] = folder = tmp_path_factory.mktemp(f"site{rate}")
        (folder / "site.py").write_text(SITE.replace("97 *", f"{rate} *"))
        # ReFrame leaves a log in the temporary folder.
        variables = {**os.environ, "TMPDIR": str(folder)}
        variables["RFM_REPORT_FILE"] = str(folder / "report.json")
        command = [str(Path(sys.executable).with_name("reframe")), "-c", "site.py", "-r"]
        # 70 is 22 % below the reference of 90, of which the site allows 10 %.
        code = subprocess.run(
            command, cwd=folder, env=variables, check=False, stdout=subprocess.DEVNULL
        ).returncode
        assert code == (rate == 70)
    return found


def test_reports_and_logs_of_a_real_reframe_are_imported(
    sites: Mapping[int, Path], tmp_path: Path
) -> None:
    for source in ("report.json", "perflogs"):
        assert imported(sites[97] / source, "-o", tmp_path / source) == 0
        runs = [
            run for file in (tmp_path / source).glob("*.jsonl") for run in read_results(file).runs
        ]
        found = sorted((run.gpus, run.measured["throughput"]) for run in runs)
        assert found == [(1, 97.0), (2, 194.0)]


def test_references_of_a_real_reframe_are_a_baseline_with_their_own_thresholds(
    sites: Mapping[int, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "b.json"
    asked = ("baseline", "import", "reframe", str(sites[97] / "report.json"))
    assert main([*asked, "-o", str(baseline), "--cluster", "here"]) == 0
    assert "the spread of their runs is unknown" in capsys.readouterr().out
    found = [(f.gpus, f.value, f.runs) for f in read_baseline(baseline).published]
    assert found == [(1, 90.0, 1), (2, 90.0, 1)]
    for rate, code in ((97, 0), (70, 1)):
        nights = tmp_path / f"nights{rate}"
        assert imported(sites[rate] / "report.json", "-o", nights) == 0
        (night,) = nights.glob("*.jsonl")
        capsys.readouterr()
        assert main(["compare", str(baseline), str(night)]) == code
        assert "90.0 →" in capsys.readouterr().out


def test_what_a_table_does_not_tell_of_its_machine_is_left_out_everywhere(tmp_path: Path) -> None:
    lines = [f"2026-11-{day:02d}T02:00:00,{3.5 + day % 3 / 100}" for day in range(1, 21)]
    (tmp_path / "t.csv").write_text("\n".join(["time,latency_ms", *lines]))
    assert main(["import", "csv", str(tmp_path / "t.csv"), "-o", str(tmp_path / "nights")]) == 0
    history = gpuscale("history", "nights", cwd=tmp_path).stdout
    assert "history   20 nights, 2026-11-01 to 2026-11-20\nlast      2026-11-20 02:00\n" in history
    compared = gpuscale("compare", "--history", "nights", cwd=tmp_path).stdout
    assert gpuscale("report", "nights", "-o", "page.html", cwd=tmp_path).returncode == 0
    page = re.sub(r"<style>.*?</style>", "", (tmp_path / "page.html").read_text(), flags=re.DOTALL)
    shown = gpuscale("show", *(tmp_path / "nights").glob("2026-11-20*.jsonl"), cwd=tmp_path).stdout
    assert "measured  2026-11-20 02:00 UTC, imported by gpuscale" in shown
    for text in (history, compared, page, shown):
        assert not re.search(r"unknown host|unrecorded|\bNone\b|\(\?\)", text)
