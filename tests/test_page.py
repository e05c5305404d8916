"""`gpuscale report`: what stands on a page, what never does, and how a browser shows it."""

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from browser import seen_in_chromium
from builders import results, results_text, run
from builders.nights import CNN, RESNET, Fault, Night, baseline_of, results_of_night, write_night
from changing import replace
from command_line import gpuscale, refusal
from statements import known
from test_over_nights import write_nights

from gpuscale.analysis.history import history_of
from gpuscale.cli import main
from gpuscale.cli.inputs import selected
from gpuscale.records.configuration import Choice
from gpuscale.reports.page import Subject, readable, write_index
from gpuscale.reports.page.sections import measured_headline, nights
from gpuscale.store.campaign_folders import NightRecord, record_files
from gpuscale.store.files import write_baseline
from gpuscale.store.results import leave_out, read_results

Report = Callable[..., str]
UNJUDGED = "not judged yet"
FRAME = Path(__file__).parent.parent / "gpuscale/reports/page/templates" / "page.html"
NIGHTS = [Night(job=f"470{n}", day=n - 10, configurations=(CNN, RESNET)) for n in range(6)]
UPGRADED = Night(job="4801", environment={"driver_version": "580.1"}, configurations=(CNN, RESNET))
THROTTLED = replace(UPGRADED, fault=Fault(computing=1.3, device=2, clock=0.7))


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Run the command in a folder of its own and return the page that it writes."""

    def give(*arguments: object) -> str:
        page = tmp_path / "page.html"
        assert main(["report", *map(str, arguments), "-o", str(page)]) == 0
        return page.read_text(encoding="utf-8")

    return give


def test_a_page_shows_the_rows_that_were_asked_for(report: Report, tmp_path: Path) -> None:
    write_night(tmp_path / "now.jsonl", THROTTLED)
    assert "resnet50" in report(tmp_path / "now.jsonl")
    page = report(tmp_path / "now.jsonl", "--case", "mnist_cnn/ddp", "--gpus", "2")
    assert "resnet50" not in page
    its = selected(read_results(tmp_path / "now.jsonl"), Choice(gpus={2}))
    assert {run.gpus for run in its.runs} == {1, 2}


@pytest.mark.parametrize(
    ("truth", "says"),
    [
        (lambda night: 1.04 if night >= 8 else 1.0, 'loss">\n<h1>SLOWER</h1>'),
        (lambda night: 1.2 if night == 11 else 1.0, 'doubt">\n<h1>UNUSUAL</h1>'),
        (lambda night: 1.04 if night < 6 else 1.0, '">\n<h1>STEADY</h1>'),
    ],
)
def test_a_page_of_nights_alone_says_first_what_they_found(
    report: Report, tmp_path: Path, truth: Callable[[int], float], says: str
) -> None:
    nights = tmp_path / "nights"
    paths = write_nights(nights, 12, truth)
    page = report(nights)
    assert says in page
    if "SLOWER" in says:
        first = "2 of 2 rows from 2026-09-29 on, throughput: mnist_cnn/ddp on 2 GPUs −3."
        assert f'<p class="first">{first}' in page
    # A page about another night than the last one says nothing of tonight.
    assert "MEASURED" in report(paths[2], nights)


def test_a_page_by_earlier_nights_says_what_compare_says(report: Report, tmp_path: Path) -> None:
    nights = tmp_path / "nights"
    paths = write_nights(nights, 9, lambda night: 1.15 if night == 8 else 1.0, runs=2)
    for files in ([paths[-1]], []):
        told = gpuscale("compare", "--history", nights, *files, "--format", "json").stdout
        page = unescape(report(*files, "--history", nights))
        assert 'loss">\n<h1>REGRESSED</h1>' in page
        for line in json.loads(told)["headline"]:
            assert readable(line["text"]) in page
        for text in ("<h2>Why</h2>", "was 100 ms", "<h2>History</h2>", "9 nights of"):
            assert readable(text) in page
    said = refusal("report", nights, "--history", nights, "-o", tmp_path / "r.html")
    assert "--history: give results files with it, or none for its last night" in said


def test_a_page_draws_the_bars_of_what_it_judges_against(report: Report, tmp_path: Path) -> None:
    nights, file, now = (tmp_path / name for name in ("nights", "file.json", "now.jsonl"))
    for night in NIGHTS:
        write_night(nights / f"{night.job}.jsonl", night)
    write_baseline(file, baseline_of(*NIGHTS))
    write_night(now, THROTTLED)
    bar, of_one = ">baseline</text>", ("--case", "mnist_cnn", "--gpus", "2")
    for option in (("--baseline", nights / f"{NIGHTS[0].job}.jsonl"), ("--history", nights)):
        page = report(now, *option, *of_one)
        assert bar in page
        assert "the baseline is not drawn" not in page
    page = report(now, "--baseline", file, *of_one)
    assert bar not in page
    assert "the baseline is not drawn: it has no such parts of these rows" in page
    assert ">baseline: " in page


def test_markup_in_names_stays_text(report: Report, tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>&amp;$x_{$"
    where = {"host": evil, "driver_version": evil, "variables": {evil: evil}}
    night = Night(job="1", configurations=(replace(CNN, case=evil),), environment=where)
    write_baseline(tmp_path / "well.json", replace(baseline_of(night), name=evil, cluster=evil))
    write_night(tmp_path / "now.jsonl", replace(night, fault=Fault(computing=1.2)))
    page = report(tmp_path / "now.jsonl", "--baseline", tmp_path / "well.json")
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 5


def test_a_hundred_rows_take_less_than_half_a_megabyte(report: Report, tmp_path: Path) -> None:
    many = tuple(replace(CNN, case=f"case_{number:02d}") for number in range(34))
    nights = [replace(night, configurations=many) for night in NIGHTS[:3]]
    write_baseline(tmp_path / "well.json", baseline_of(*nights))
    write_night(tmp_path / "now.jsonl", replace(THROTTLED, configurations=many))
    page = report(tmp_path / "now.jsonl", "--baseline", tmp_path / "well.json")
    assert "of 102 rows" in page
    assert len(page.encode()) < 500_000


def test_the_index_lists_the_latest_night_first_and_links_what_each_left(tmp_path: Path) -> None:
    for name, record, files in (
        ("2026-11-01_1", NightRecord(night="ok", exit=0), ("report.html",)),
        ("2026-11-02_<b>2#", NightRecord(night="regressed", exit=1), ()),
        ("2026-11-03_3", None, ()),
        ("2026-11-04_4", NightRecord(night=UNJUDGED, unjudged="judge by", exit=4), ()),
        ("2026-11-05_5", NightRecord(night="not shown to be fine", exit=3), ()),
        ("2026-11-06_6", NightRecord(night="not all", left_out=("not steady",), exit=5), ()),
        ("old_nights", None, ()),
    ):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
        for file, text in record_files(record).items() if record else ():
            (tmp_path / name / file).write_text(text)
    write_night(tmp_path / "2026-11-01_1" / "results.jsonl", THROTTLED)
    leave_out(tmp_path / "2026-11-01_1" / "results.jsonl", "cooling failure")
    told = "3 of 4 rows: every GPU lost 12 % of its samples/s [9 %, 13 %]; 1 ok"
    brief = "2 of 2 rows inconclusive: the host was busy"
    for folder, said in (("2026-11-02_<b>2#", told), ("2026-11-05_5", brief)):
        (tmp_path / folder / "comparison.json").write_text(json.dumps({"brief": said}))
    write_index(tmp_path)
    index = unescape((tmp_path / "index.html").read_text()).replace("\u00a0", " ")
    assert index.count('<span class="below">left out: cooling failure</span>') == 1
    assert f'class="loss word">regressed<span class="below">{told}</span>' in index
    assert f'class="doubt word">not shown to be fine<span class="below">{brief}</span>' in index
    assert f'class="doubt word">{UNJUDGED}</td>' in index
    assert '<span class="below">not steady</span>' in index
    assert "<b>2#</a>" in index
    assert "<b>" not in (tmp_path / "index.html").read_text()
    texts = ("2026-11-06_6", "2026-11-05_5", "2026-11-04_4", "2026-11-02_%3Cb%3E2%23")
    linked = ["2026-11-01_1/report.html", *(f"{name}/night.txt" for name in texts)]
    assert re.findall(r'href="(2026[^"]+)"', index) == linked
    # The first one was measured in 2096, as its results say.
    names = re.findall(r">(2026-11-\d\d_\w+)<", index)
    assert names == ["2026-11-01_1", "2026-11-06_6", "2026-11-05_5", "2026-11-04_4", "2026-11-03_3"]


def test_the_index_and_the_history_call_a_night_by_the_name_of_its_folder(tmp_path: Path) -> None:
    paths = write_nights(tmp_path, 3, lambda night: 1.0)
    for number, path in enumerate(paths):
        results = read_results(path)
        # All on one date; the job began an hour before it measured.
        runs = (replace(run, started_at_s=1.79e9 + 60 * number) for run in results.runs)
        path.write_text(results_text(replace(results, runs=tuple(runs))))
        record = NightRecord(night="ok", exit=0, started=f"2026-09-21T13:{12 + number}:20+00:00")
        folder = path.parent.rename(tmp_path / f"2026-09-21_{number}")
        for file, text in record_files(record).items():
            (folder / file).write_text(text)
    write_index(tmp_path)
    index = (tmp_path / "index.html").read_text()
    history = history_of(read_results(path) for path in tmp_path.glob("*/results.jsonl"))
    assert [*history.names] == [f"2026-09-21_{number}" for number in range(3)]
    assert re.findall(r">(2026-09-21_\d)<", index) == [*reversed(history.names)]
    named = gpuscale("history", tmp_path).stdout
    assert "last      2026-09-21 14:15, node1, job 2, folder 2026-09-21_2" in named
    # Alone on its date, a night is called by the date with which the name of its folder begins.
    alone = history_of([read_results(tmp_path / "2026-09-21_1" / "results.jsonl")])
    assert [*alone.names] == ["2026-09-21"]


def test_chromium_shows_all_of_a_page_at_every_width(report: Report, tmp_path: Path) -> None:
    write_baseline(tmp_path / "well.json", baseline_of(*NIGHTS))
    long = replace(CNN, case="a_rather_long_name_of_a_case_that_somebody_chose", precision="tf32")
    now = replace(THROTTLED, configurations=(CNN, RESNET, long))
    write_night(tmp_path / "now.jsonl", now)
    nights = tmp_path / "nights"
    for night in NIGHTS:
        write_night(nights / f"{night.job}.jsonl", night)
    page = report(nights, tmp_path / "now.jsonl", "--baseline", tmp_path / "well.json")
    widths = (400, 1000, 1600)
    for width, seen in zip(widths, seen_in_chromium(page, tmp_path, *widths), strict=True):
        assert seen.console == []
        assert seen.overflow <= 0, width
        assert (seen.cut, seen.hidden, seen.unnamed, seen.twice) == ([], [], [], []), width
        assert (seen.scripts, seen.from_outside) == (0, [])
        assert "REGRESSED" in seen.text
        assert "History" in seen.text


def test_every_colour_of_text_has_contrast_in_light_and_in_dark() -> None:
    light, dark, _ = re.findall(r":root \{(.*?)\}", FRAME.read_text(), re.DOTALL)
    for scheme in (light, dark):
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", scheme))
        for name in ("loss", "doubt", "pass"):
            assert contrast(colours[name], colours[f"{name}-paper"]) >= 4.5
        for name in ("ink", "quiet", "link", "loss", "doubt", "pass", "neutral"):
            assert contrast(colours[name], colours["paper"]) >= 4.5


def contrast(one: str, other: str) -> float:
    """Contrast as defined by WCAG 2; text that is not large needs 4.5."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_without_a_baseline_rows_with_a_number_are_counted() -> None:
    several = [results(run(1, 1.0), run(2, None)), results(run(4, 1.0))]
    said = dict(measured_headline(Subject(results=several)))
    why = "since no run of the others is valid; no baseline was given, so nothing is judged"
    assert said["MEASURED"] == f"2 of 3 rows, {why}"
    alone = dict(measured_headline(Subject(results=several[1:])))
    assert alone["MEASURED"] == "1 row; no baseline was given, so nothing is judged"


@pytest.mark.parametrize(
    ("faster", "tone", "gpus"), [(0.8, "loss", (1, 2)), (1.25, "pass", (1, 2)), (0.8, "loss", (1,))]
)
def test_the_changes_of_nights_are_marked_as_losses_or_gains(
    faster: float, tone: str, gpus: tuple[int, ...]
) -> None:
    factors = [1.0] * 8 + [faster] * 4
    made = (Night(job=str(n), day=n, faster=each, gpus=gpus) for n, each in enumerate(factors))
    found = [*map(results_of_night, made)]
    section = known(nights(Subject(results=found, history=history_of(found))))
    assert {block.tone for block in section.blocks} == {tone}
    assert section.title == "History"
    assert section.intro.endswith(".")
    assert nights(Subject(results=found)) is None
