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

from gpuscale.cli.inputs import read_nights
from gpuscale.records import Results
from gpuscale.store.files import read_baseline
from gpuscale.store.imports.sources import SOURCES
from gpuscale.store.results import read_results

CASE: dict[str, Any] = {"name": "Img %n=4", "system": "site", "partition": "gpu"}
CASE |= {"environ": "builtin", "result": "pass", "num_tasks": 4, "job_nodelist": ["n1"]}


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


def imported(
    given: Path, *options: str, source: str = "reframe", code: int = 0
) -> "subprocess.CompletedProcess[str]":
    """Import a file or a folder into the folder `nights` beside it."""
    answer = gpuscale("import", source, given, *options, "-o", given.parent / "nights")
    assert answer.returncode == code, answer.stderr
    return answer


def nights_in(folder: Path) -> list[Results]:
    return [read_results(path) for path in sorted((folder / "nights").glob("*.jsonl"))]


def import_table(folder: Path, *lines: str) -> None:
    (folder / "t.csv").write_text("\n".join(lines))
    imported(folder / "t.csv", source="csv")


def test_reports_become_nights_in_which_a_loss_is_found(tmp_path: Path) -> None:
    rng = random.Random(3)
    days = [images(1500 * rng.gauss(1, 0.003) * (0.94 if day >= 8 else 1)) for day in range(11)]
    reports = write(tmp_path / "reports", *(report(day, each) for day, each in enumerate(days)))
    assert "11 new nights with 11 values" in imported(reports).stdout
    (run,) = nights_in(tmp_path)[0].runs
    metric = known(run.configuration.metric)
    assert (metric.unit, metric.more_is_better, metric.scaling) == ("img/s", True, "rate")
    assert (run.gpus, run.nodes[0].host, run.batch_per_gpu) == (4, "n1", None)
    assert "SLOWER" in gpuscale("history", tmp_path / "nights").stdout
    assert gpuscale("compare", "--history", tmp_path / "nights").returncode == 1


def test_what_was_imported_is_passed_over_and_what_is_new_is_added(tmp_path: Path) -> None:
    reports = write(tmp_path / "reports", report(0, images(100)))
    imported(reports)
    (file,) = (tmp_path / "nights").glob("*.jsonl")
    before = file.read_bytes()
    # The same session under another name is known by its uuid.
    (reports / "copy.json").write_text(json.dumps(report(0, images(100))))
    imported(reports)
    assert [path.read_bytes() for path in (tmp_path / "nights").glob("*.jsonl")] == [before]
    (reports / "r2.json").write_text(json.dumps(report(1, images(101))))
    assert "1 new night with 1 value" in imported(reports).stdout
    assert len(nights_in(tmp_path)) == 2


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
    imported(write(tmp_path / "reports", report(0, values)))
    (night,) = nights_in(tmp_path)
    assert known(night.runs[0].configuration.metric).more_is_better is more


def test_an_unknown_direction_is_asked_once(tmp_path: Path) -> None:
    scores = [report(day, {"a:b:score": [5.0, 0, None, None, None]}) for day in (0, 1)]
    reports = write(tmp_path / "reports", scores[0])
    assert "--better score=more|less" in imported(reports, code=2).stderr
    imported(reports, "--better", "score=less")
    imported(write(reports, *scores))
    assert len(nights_in(tmp_path)) == 2


def test_a_name_that_may_be_a_rate_or_a_time_is_asked_for(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("time,throughput_img_s\n2026-03-01,80\n2026-03-02,70\n")
    asked = imported(table, source="csv", code=2).stderr
    assert "--better throughput_img_s=more|less" in asked
    imported(table, "--better", "throughput_img_s=more", source="csv")
    # A line that ends before its time has an empty one.
    table.write_text("loss,time\n0.5\n")
    assert "t.csv:2: expected a time such as" in (
        said := imported(table, source="csv", code=2).stderr
    )
    assert said.endswith("found ''\n")
    metrics = {run.configuration.metric for night in nights_in(tmp_path) for run in night.runs}
    assert [(each.unit, each.scaling) for each in metrics if each] == [("img/s", "rate")]


def test_failed_and_unusable_cases_are_named_and_never_passed(tmp_path: Path) -> None:
    reports = write(
        tmp_path / "reports",
        report(0, images(100)),
        report(1, {}, result="fail", fail_phase="sanity"),
        report(2, images(0.0)),
        report(3, {**images(-4.0), "site:gpu:score": [math.nan, 5, None, None, "GB/s"]}),
        report(4, images(100), result="skip"),
    )
    (reports / "broken.json").write_text(json.dumps(report(5, images(1)))[:300])
    said = imported(reports)
    assert "broken.json" in said.stderr
    assert "Img %n=4 (no value): 2 ×, Img %n=4 (fail in sanity)" in said.stdout
    assert len(nights_in(tmp_path)) == 1
    again = imported(reports).stdout
    assert "with 0 values, from 0 files; 5 files imported before" in again
    assert "nowhere.json: No such file" in imported(tmp_path / "nowhere.json", code=2).stderr


def test_two_systems_do_not_mix(tmp_path: Path) -> None:
    days = report(0, images(100)), report(1, images(50), system="other")
    mixed = imported(write(tmp_path / "reports", *days), code=2).stderr
    assert "r1.json is of other:gpu" in mixed
    reports = write(tmp_path / "other" / "reports", *days)
    third = imported(reports, "--system", "third:gpu", code=2).stderr
    assert "of third:gpu; the files are of other:gpu, site:gpu" in third
    imported(reports, "--system", "other:gpu")
    (night,) = nights_in(tmp_path / "other")
    assert night.environment.system == "other:gpu"


def test_a_unit_that_changes_is_named_and_its_values_are_not_mixed(tmp_path: Path) -> None:
    rates = [(1500.0 + day, "img/s") if day < 7 else (1.5, "kimg/s") for day in range(14)]
    named = "metrics in several units, each a row of its own: Img %n=4/throughput (img/s, kimg/s)"
    reports = (report(day, images(*rate)) for day, rate in enumerate(rates))
    imported(write(tmp_path / "reports", *reports), "--better", "throughput=more")
    # The row in the former unit was not measured on the last night.
    for command, code in ((("history",), 0), (("compare", "--history"), 3)):
        answer = gpuscale(*command, tmp_path / "nights")
        assert (answer.returncode, f"note: {named}\n" in answer.stdout) == (code, True)


LOG_HEAD = (
    "result|job_completion_time_unix|name|num_tasks|job_nodelist|throughput_value"
    "|throughput_unit|throughput_lower_thres|throughput_upper_thres"
)
UNIT = "|img/s|-0.1|None"


def test_a_performance_log_becomes_a_night_a_day(tmp_path: Path) -> None:
    folder = tmp_path / "perflogs" / "site" / "gpu"
    folder.mkdir(parents=True)
    lines = (f"pass|{1.79e9 + day * 86400}|Img|4|n1|{100 + day}{UNIT}" for day in range(3))
    (folder / "Img.log").write_text("\n".join((LOG_HEAD, *lines, "")))
    imported(tmp_path / "perflogs")
    nights = nights_in(tmp_path)
    assert [night.runs[0].measured["throughput"] for night in nights] == [100, 101, 102]
    assert nights[0].environment.system == "site:gpu"


def test_a_report_and_a_log_of_the_same_sessions_count_once(tmp_path: Path) -> None:
    at_s = 1.79e9
    reports = [report(0, images(100), job_completion_time_unix=at_s + 60 * n) for n in range(3)]
    for number, each in enumerate(reports):
        each["session_info"].update(uuid=str(number), time_start_unix=at_s + 60 * number - 30)
    write(tmp_path / "site" / "gpu", *reports)
    lines = [f"pass|{at_s + 60 * n}|Img %n=4|4|n1|100{UNIT}" for n in range(3)]
    # ReFrame has renamed the log, since its columns changed.
    (tmp_path / "site" / "gpu" / "Img.log.h0").write_text("\n".join((LOG_HEAD, *lines, "")))
    assert "with 6 values" in imported(tmp_path / "site").stdout
    assert sum(len(results.runs) for results in read_nights([tmp_path / "nights"])) == 3
    said = gpuscale("history", tmp_path / "nights").stderr
    assert "left out: 3 repeated runs; each counts once" in said


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
"test_b.py::test_x", "stats": {"median": 8e-06, "rounds": 5}}]}"""


CSV = "time,commit,latency_ms,images_per_s\n2026-03-01,abc,3.5,10\n"
WIKI = "|case|strategy|batch|n|img/s|\n|-|-|-|-|-|\n|cnn|ddp|8|1|9.5|\n|cnn|ddp|8|2|18|\n"
ON_GPUS = "case,strategy,batch,GPUs,img/s\ncnn,ddp,8,2,18\n"
IN_REPORT = json.dumps(report(0, images(100), num_gpus_per_node=4))
OF_NCCL = {"32MiB_gb_s": 60.31, "32MiB_in_place_gb_s": 60.56, "busbw_gb_s": 40.6}
OF_NCCL = {f"all_reduce_perf/{name} on 2 GPUs": rate for name, rate in OF_NCCL.items()}
OF_WIKI = {f"cnn, ddp/samples_per_s on {n}": v for n, v in (("1 device", 9.5), ("2 devices", 18))}


@pytest.mark.parametrize(
    ("source", "name", "text", "rows"),
    [
        ("nccl-tests", "all_reduce_perf.log", NCCL, OF_NCCL),
        ("mlperf", "result_0.txt", MLPERF, {"resnet/time_to_train_s on 1 device": 1000}),
        ("pytest-benchmark", "b.json", BENCHMARK, {"test_b.py::test_x/median_s on 1 device": 8e-6}),
        ("csv", "t.csv", CSV, {"t/images_per_s on 1 device": 10, "t/latency_ms on 1 device": 3.5}),
        ("table", "wiki.md", WIKI, OF_WIKI),
        ("table", "wiki.csv", ON_GPUS, {"cnn, ddp/samples_per_s on 2 GPUs": 18}),
        ("reframe", "r.json", IN_REPORT, {"Img %n=4/throughput on 4 GPUs": 100}),
    ],
)
def test_each_source_becomes_rows_with_its_values(
    tmp_path: Path, source: str, name: str, text: str, rows: dict[str, float]
) -> None:
    (tmp_path / name).write_text(text)
    imported(tmp_path / name, source=source)
    (night,) = nights_in(tmp_path)
    found = {run.label: [*run.measured.values()] for run in night.runs}
    assert found == {label: [value] for label, value in rows.items()}


def test_imported_runs_on_gpus_are_shown_and_recorded_as_such(tmp_path: Path) -> None:
    days = (report(day, images(100 + day), num_gpus_per_node=4) for day in range(4))
    imported(write(tmp_path / "reports", *days))
    files, own = sorted((tmp_path / "nights").glob("*.jsonl")), tmp_path / "own.json"
    record = ("baseline", "record", *files, "--weak", "--cluster", "c", "-o", own)
    for command in (record, ("show", own), ("show", files[0]), ("compare", own, files[-1])):
        answer = gpuscale(*command)
        assert (answer.returncode, "device" in answer.stdout) == (0, False)


def test_lines_of_one_moment_are_runs_of_one_night(tmp_path: Path) -> None:
    import_table(tmp_path, "time,latency_ms", "2026-03-01,3.5", "2026-03-01,3.6")
    (night,) = nights_in(tmp_path)
    runs = [(run.index, run.measured["latency_ms"]) for run in night.runs]
    assert runs == [(1, 3.5), (2, 3.6)]


@pytest.mark.parametrize("time", ["20260301", "2026-03-01T00:00:00Z", "1772323200", "1772323200.0"])
def test_a_time_is_a_date_with_or_without_hyphens_or_unix_seconds(
    tmp_path: Path, time: str
) -> None:
    import_table(tmp_path, "time,latency_ms", f"{time},3.5")
    (night,) = nights_in(tmp_path)
    assert night.created_at == "2026-03-01T00:00:00+00:00"


def test_a_history_names_the_commits_between_which_a_table_changed(tmp_path: Path) -> None:
    steps = [(f"2026-11-{day:02d}", f"c{day}", 3.5 if day < 9 else 4.5) for day in range(1, 13)]
    lines = (f"{date},{commit},{value_ms}" for date, commit, value_ms in steps)
    import_table(tmp_path, "time,commit,latency_ms", *lines)
    history = gpuscale("history", "nights", cwd=tmp_path).stdout
    assert "revision of the cases c8 → c9" in " ".join(history.split())


@pytest.mark.parametrize("source", SOURCES)
def test_a_file_that_no_such_tool_wrote_is_refused_in_one_line(tmp_path: Path, source: str) -> None:
    other, another = tmp_path / "files" / "other", tmp_path / "files" / "another"
    other.parent.mkdir()
    other.write_text("nothing of the kind\n")
    refused, *rows = imported(other, source=source, code=2).stderr.splitlines()
    assert "other" in refused
    assert all(row.startswith("  line 1: ") for row in rows)
    another.write_text("nor of this\n")
    both = imported(other, str(another), source=source, code=2).stderr
    assert both.endswith("none of the files could be read; see above\n")


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


def test_files_of_a_real_reframe_are_imported(sites: Mapping[int, Path], tmp_path: Path) -> None:
    for source in ("report.json", "perflogs"):
        found = tmp_path / source / "nights"
        assert gpuscale("import", "reframe", sites[97] / source, "-o", found).returncode == 0
        runs = [run for night in nights_in(tmp_path / source) for run in night.runs]
        values = sorted((run.gpus, run.measured["throughput"]) for run in runs)
        assert values == [(1, 97.0), (2, 194.0)]


def test_references_of_a_real_reframe_are_a_baseline_with_their_own_thresholds(
    sites: Mapping[int, Path], tmp_path: Path
) -> None:
    baseline, report = tmp_path / "b.json", sites[97] / "report.json"
    asked = ("baseline", "import", "reframe", report, "-o", baseline, "--cluster", "here")
    assert "of them judged by their own thresholds" in gpuscale(*asked).stdout
    found = [(f.gpus, f.value, f.runs) for f in read_baseline(baseline).published]
    assert found == [(1, 90.0, 1), (2, 90.0, 1)]
    for rate, code in ((97, 0), (70, 1)):
        nights = tmp_path / f"nights{rate}"
        gpuscale("import", "reframe", sites[rate] / "report.json", "-o", nights)
        compared = gpuscale("compare", baseline, *nights.glob("*.jsonl"))
        assert (compared.returncode, "90.0 →" in compared.stdout) == (code, True)


def test_what_a_table_does_not_tell_of_its_machine_is_left_out_everywhere(tmp_path: Path) -> None:
    lines = [f"2026-11-{day:02d}T02:00:00,{3.5 + day % 3 / 100}" for day in range(1, 21)]
    import_table(tmp_path, "time,latency_ms", *lines)
    history = gpuscale("history", "nights", cwd=tmp_path).stdout
    assert "history   20 nights, 2026-11-01 to 2026-11-20\nlast      2026-11-20 02:00\n" in history
    compared = gpuscale("compare", "--history", "nights", cwd=tmp_path).stdout
    assert gpuscale("report", "nights", "-o", "page.html", cwd=tmp_path).returncode == 0
    page = re.sub(r"<style>.*?</style>", "", (tmp_path / "page.html").read_text(), flags=re.DOTALL)
    shown = gpuscale("show", *(tmp_path / "nights").glob("2026-11-20*.jsonl"), cwd=tmp_path).stdout
    assert "measured  2026-11-20 02:00 UTC, imported by gpuscale" in shown
    for text in (history, compared, page, shown):
        assert not re.search(r"unknown host|unrecorded|\bNone\b|\(\?\)", text)
