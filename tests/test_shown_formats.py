"""Results and baselines for other tools: every number plain, every text harmless."""

import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import CNN, baseline, figure, measured, published, results, results_text, run
from builders.comparisons import comparison, entry, of_each_verdict, peak_memory, view
from builders.nights import Night, results_of_night
from changing import replace
from command_line import ARC4, gpuscale, ran, refusal

from gpuscale.analysis.step_parts import PHASES
from gpuscale.base.errors import FileError
from gpuscale.records import Baseline, Configuration, Results, Verdict
from gpuscale.reports.comparison import formats as formats
from gpuscale.reports.show import Shown
from gpuscale.reports.show.formats import SHOWN_FORMATS
from gpuscale.store.files import write_baseline

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "tools.md").read_text(encoding="utf-8")
HOSTILE = 'a_b & 50% #1 $x^2~{y}\\z <a|b> "q" --- é Ω 中 …'
NIGHT = measured({1: [0.1, 0.101], 2: [0.11, 0.111, None], 4: [None], 8: [0.12, 0.121]})


def shown(content: Results | Baseline, *, steps: int | None = None) -> Shown:
    return Shown(content=content, path=Path("night.jsonl"), steps=steps)


def rendered(name: str, what: Shown) -> str:
    return SHOWN_FORMATS[name].render(what)


def lines_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), strict=True))


def document(what: Shown) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rendered("json", what))
    return found


def test_whatever_shows_numbers_of_a_command_shows_the_command(tmp_path: Path) -> None:
    command = "torchrun --nproc-per-node {gpus} train.py"
    trained = replace(CNN, case="train", strategy="command", command=command)
    night, before, page = (tmp_path / name for name in ("night.jsonl", "base.json", "page.html"))
    times = {1: [0.1, 0.101, 0.102]}
    night.write_text(results_text(measured(times, configuration=trained)))
    write_baseline(before, baseline(times, configuration=trained))
    for given in (("show", night), ("compare", before, night)):
        assert re.search(rf"command\s+{re.escape(command)}", gpuscale(*given).stdout)
    for judged in ((), ("--baseline", before)):
        assert gpuscale("report", night, *judged, "-o", page).returncode == 0
        assert command in page.read_text()


def test_published_figures_stand_beside_measured_ones() -> None:
    own = baseline({1: [0.1], 2: [0.11]})
    figures = (figure(1, time_s=145.0), figure(2, time_s=84.5))
    told = published(*figures, figure(8, samples_per_s=900.0, nodes=2))
    both = replace(own, published=told.published, source=told.source)
    rows = document(shown(both, steps=3600))["rows"]
    assert [row["kind"] for row in rows] == ["published"] * 3 + ["measured"] * 2
    by_time, by_throughput = rows[1], rows[2]
    assert by_time["speedup"]["value"] == pytest.approx(145 / 84.5)
    assert (by_time["time_s"], by_time["timed"]) == (84.5, "training_loop")
    assert (by_time["step_time_s"], by_time["gpu_hours"]) == (None, None)
    assert by_throughput["step_time_s"]["value"] == pytest.approx(8 * 128 / 900)
    assert by_throughput["gpu_hours"]["value"] == pytest.approx(8 * 8 * 128 / 900)
    assert (by_throughput["speedup"], by_throughput["nodes"]) == (None, 2)


@pytest.mark.parametrize("sign", "=+-@")
def test_text_that_a_spreadsheet_would_run_is_text_and_numbers_stay_numbers(sign: str) -> None:
    name = f"{sign}HYPERLINK(1)"
    hostile = measured({1: [0.1]}, configuration=replace(CNN, case=name))
    (line,) = lines_of(rendered("csv", shown(hostile)))
    assert line["case"] == f"'{name}"
    (judged,) = lines_of(formats.csv(view(comparison(entry(Verdict.OK, case=name)))))
    assert judged["case"] == f"'{name}"
    assert float(judged["change"]) < 0


def test_a_comparison_is_a_line_for_each_row() -> None:
    told = of_each_verdict()
    lines = lines_of(formats.csv(view(told, "data=5ms")))
    assert [line["verdict"] for line in lines] == [each.verdict for each in told.entries]
    lost = next(line for line in lines if line["verdict"] == "regressed")
    change = [float(lost[f"change{end}"]) for end in ("", "_low", "_high")]
    assert change == [-0.077, -0.091, -0.062]
    assert lost["finding"] == "scaling loss"
    assert lost["injections"] == "data=5ms"
    missing = next(line for line in lines if line["verdict"] == "missing")
    assert missing["change"] == ""
    memory = peak_memory(Verdict.REGRESSED)
    (line,) = lines_of(formats.csv(view(comparison(entry(Verdict.OK, metrics=[memory])))))
    assert line["verdict_of_peak_memory_bytes"] == "regressed"
    assert float(line["current_peak_memory_bytes"]) == memory.current.value
    assert line["verdict_of_energy_per_sample_j"] == ""


def test_latex_has_what_a_proposal_asks_for_and_its_signs_are_escaped() -> None:
    times_s = {1: [0.1, 0.101], 2: [0.11, 0.111], 4: [0.12, 0.121]}
    content = measured(times_s, configuration=replace(CNN, case=HOSTILE))
    text = rendered("latex", shown(content, steps=100_000))
    assert re.search("GPUs & +step time & +samples/s & +speedup & +efficiency & +GPU-hours", text)
    assert r"Scaling of a\_b \& 50\% \#1 \$x\^{}2" in text
    assert "batch 128 on each GPU" in text


@pytest.mark.parametrize(
    ("runs_on_2", "runs"), [([0.1] * 2, "2"), ([0.1] * 3, "2 to 3"), ([None], "2")]
)
def test_a_latex_caption_has_the_number_of_runs(runs_on_2: list[float | None], runs: str) -> None:
    said = f"over runs ({runs} of each measured row).}}"
    assert said in rendered("latex", shown(measured({1: [0.1, 0.1], 2: runs_on_2})))
    alone = rendered("latex", shown(measured({1: [0.1], 2: [0.1]})))
    assert "a single run gives no interval.}" in alone


def test_latex_has_columns_only_for_what_differs_between_rows() -> None:
    smaller = replace(run(2, 0.1), batch_per_gpu=64)
    another = run(1, 0.1, configuration=replace(CNN, case="other"))
    for runs, first in (
        ([run(1, 0.1), run(2, 0.1)], "GPUs"),
        ([run(1, 0.1), smaller], "batch/GPU"),
        ([run(1, 0.1), another], "case"),
    ):
        text = rendered("latex", shown(results(*runs)))
        assert text.split("\\toprule\n")[1].split()[0] == first
        assert ("Scaling of mnist" in text) == (first != "case")
    alone = rendered("latex", shown(published(figure(1, time_s=90.0), figure(4, time_s=30.0))))
    assert "published figures from" in alone
    assert "interval" not in alone
    both = replace(published(figure(4, time_s=30.0)), runs=baseline({1: [0.1]}).runs)
    of_both = rendered("latex", shown(both))
    assert re.search(r"kind +&.*published +&.*measured +&", of_both, re.DOTALL)
    with pytest.raises(FileError, match="no run was recorded"):
        rendered("latex", shown(results()))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("noise", [1.01, 1.2])
@pytest.mark.parametrize("cases", [["mnist_cnn"], ["mnist_cnn", "resnet50"], [HOSTILE]])
def test_latex_compiles_and_fits_on_a_page(cases: list[str], noise: float, tmp_path: Path) -> None:
    where = replace(builders.environment(), gpus=(), cpu_model=HOSTILE)
    means_s = {1: 0.0123, 16: 0.0141, 1024: 0.0191}
    times_s = {n: [mean, mean, mean * noise] for n, mean in means_s.items()}
    each_case = [measured(times_s, configuration=replace(CNN, case=case)) for case in cases]
    runs = [run for content in each_case for run in content.runs]
    text = rendered("latex", shown(results(*runs, where=where), steps=10**6))
    beginning = "\\documentclass{article}\\usepackage{booktabs}\n\\begin{document}"
    document = f"{beginning}\n{text}\n\\end{{document}}\n"
    (tmp_path / "table.tex").write_text(document, encoding="utf-8")
    words = ("pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex")
    made = ran(*words, cwd=tmp_path, errors="replace", timeout=120)
    assert made.returncode == 0, made.stdout
    if HOSTILE not in cases:
        assert "Overfull" not in made.stdout


def test_conflicting_options_fail(tmp_path: Path) -> None:
    path = tmp_path / "night.jsonl"
    path.write_text(results_text(NIGHT))
    said = refusal("show", path, "--phases", "--format", "csv")
    assert "csv and json have the phases of every row" in said
    assert "no phases were recorded" in gpuscale("show", ARC4, "--phases").stdout
    for options in (("--format", "xml"), ("--steps", "0"), ("--steps", "1e5")):
        assert gpuscale("show", path, *options).returncode == 2


def test_a_recorded_baseline_has_the_phases_of_its_runs_in_every_format(tmp_path: Path) -> None:
    night, before = tmp_path / "night.jsonl", tmp_path / "base.json"
    night.write_text(results_text(results_of_night(Night(job="1"))))
    gpuscale("baseline", "record", night, "-o", before, "--cluster", "ours", "--weak")
    tables, rows = [], []
    for path in (night, before):
        text = gpuscale("show", path, "--phases").stdout
        tables.append(text.split("\n\n", 1)[1])
        rows.append(lines_of(gpuscale("show", path, "--format", "csv").stdout))
    assert tables[0] == tables[1]
    assert "forward" in tables[0]
    phases = [[{name: row[f"{name}_s"] for name in PHASES} for row in each] for each in rows]
    assert phases[0] == phases[1]
    for row, own in zip(rows[0], phases[0], strict=True):
        total_s = sum(float(time_s) for time_s in own.values() if time_s)
        assert total_s == pytest.approx(float(row["step_time_s"]), rel=0.02)


def documented(heading: str) -> list[str]:
    part = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^- (`.*?):", part, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_the_page_has_every_column_and_every_field() -> None:
    what = shown(NIGHT, steps=1)
    columns = next(csv.reader(io.StringIO(rendered("csv", what))))
    plain = [name for name in columns if not name.endswith(("_low", "_high"))]
    others = {*Configuration.__struct_fields__} - {"case", "strategy", "device"}
    assert documented("Results as CSV") == [name for name in plain if name not in others]
    found = document(what)
    assert {*documented("Results as JSON")} == found.keys()
