"""The contents of pictures, and their safety in files and pages."""

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from builders import (
    CNN,
    baseline,
    figure,
    phased_run,
    phases,
    published,
    results,
    results_text,
    run,
)
from changing import replace
from command_line import ARC4, gpuscale, refusal
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from numpy.typing import NDArray
from statements import known
from test_over_nights import made_nights, moved, night_of

from gpuscale.analysis.history import history_of
from gpuscale.analysis.scaling import scaling_points
from gpuscale.cli import main
from gpuscale.records import Configuration, Run
from gpuscale.reports.figures import FIGURES, Measurements, Picture, content_of, svg_of
from gpuscale.reports.figures.stacked_bars import MOST_BARS
from gpuscale.reports.phrases import percent_text
from gpuscale.store.results import read_results


def measured(
    configuration: Configuration = CNN, *, counts: Sequence[int] = (1, 2, 4), factor: float = 1.0
) -> list[Run]:
    """Two runs on each number of GPUs that differ by 2%."""
    return [
        replace(
            run(gpus, 0.1 * factor * gpus**0.1 * spread, configuration=configuration, index=index),
            samples_per_epoch=60_000,
        )
        for gpus in counts
        for index, spread in enumerate((0.99, 1.01), start=1)
    ]


def written(path: Path, *runs: Run, **changes: Any) -> Path:
    """Write results with these runs to a file; return its path."""
    path.write_text(results_text(replace(results(*runs), **changes)))
    return path


def drawn(name: str, measurements: Measurements) -> Picture:
    return known(FIGURES[name](measurements))


def curves_in(axes: Axes) -> dict[str, ErrorbarContainer]:
    found = (each for each in axes.containers if isinstance(each, ErrorbarContainer))
    return {str(each.get_label()): each for each in found}


def at_of(line: Line2D) -> NDArray[np.float64]:
    """The points of a line, one in a row."""
    return np.asarray(line.get_xydata(), dtype=np.float64)


def notes_below(picture: Picture) -> str:
    return picture.figure.get_supxlabel()


def test_a_curve_is_at_its_values_with_its_intervals_and_gpus_as_ticks() -> None:
    runs = measured()
    (axes,) = drawn("throughput", Measurements(runs=runs)).figure.axes
    (curve,) = curves_in(axes).values()
    line, _, (bars,) = curve.lines
    assert [*axes.get_xticks()] == [1, 2, 4]
    values, ends = at_of(known(line))[:, 1], bars.get_segments()
    for point, value, bar in zip(scaling_points(runs), values, ends, strict=True):
        estimate = known(point.samples_per_s)
        assert value == pytest.approx(estimate.value)
        assert [*bar[:, 1]] == pytest.approx((estimate.low, estimate.high))


@pytest.mark.parametrize("name", ["throughput", "speedup"])
@pytest.mark.parametrize("step_time_s", [0.0016, 1.6, 1.9, 2.4, 30.0])
def test_every_axis_has_two_ticks_or_more(name: str, step_time_s: float) -> None:
    runs = results(run(1, 1.0), run(1, 1.02, index=2), run(2, step_time_s)).runs
    (axes,) = drawn(name, Measurements(runs=runs)).figure.axes
    least, most = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if least <= tick <= most]
    assert len(ticks) >= 2
    assert max(ticks) > most / 4


def test_a_speedup_on_two_devices_has_values_beside_its_bar() -> None:
    (axes,) = drawn("speedup", Measurements(runs=measured(counts=(1, 2)))).figure.axes
    least, most = axes.get_ylim()
    assert sum(least <= tick <= most for tick in axes.get_yticks()) >= 4


def test_the_three_plots_stand_beside_each_other_for_each_case_and_many_are_counted() -> None:
    cases = (replace(CNN, case=f"case_{i}") for i in range(6))
    runs = [run for case in cases for run in measured(case, counts=(1, 2))]
    picture = drawn("scaling", Measurements(runs=runs))
    words = ["time per epoch (s)", "throughput (samples/s)", "speedup"]
    assert [axes.get_ylabel().splitlines()[0] for axes in picture.figure.axes] == words * 4
    for axes in picture.figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            assert (axis.get_scale() == "log") == ("log scale" in axis.label.get_text())
    assert "2 more cases" in notes_below(picture)


def test_the_three_curves_of_a_page_are_equally_high_and_state_the_size_of_an_epoch() -> None:
    earlier = (replace(each, allocation="1") for each in measured(factor=0.9))
    before = replace(baseline({1: [0.1]}), runs=tuple(earlier))
    places = set()
    for name in ("time", "throughput", "speedup"):
        picture = drawn(name, Measurements(runs=measured(), baseline=before))
        picture.figure.draw_without_rendering()
        (axes,) = picture.figure.axes
        places.add((round(axes.get_position().y0, 3), round(axes.get_position().y1, 3)))
        samples = "60,000 samples" in axes.get_ylabel()
        assert samples == (name == "time"), axes.get_ylabel()
        texts = [text.get_text().strip() for text in axes.texts]
        assert texts == (["ideal"] if name == "speedup" else [])
    assert len(places) == 1, places


def test_plot_names_cases_without_room(tmp_path: Path) -> None:
    runs = [run(1, 0.1, configuration=replace(CNN, case=f"case_{i}")) for i in range(6)]
    path = written(tmp_path / "six.jsonl", *runs)
    left_out = "gpuscale: not shown: 2 more cases; choose with --case\n"
    for further, said in (((), left_out), (("--case", "case_5"), "")):
        answer = gpuscale("plot", path, "-o", tmp_path / "six.svg", *further)
        assert (answer.returncode, answer.stderr) == (0, said)


def test_plot_names_machine_and_date_and_rows_whose_runs_failed(tmp_path: Path) -> None:
    lost, elsewhere = run(2, None), run(1, 0.1, configuration=replace(CNN, case="other"))
    files = {"some": [run(1, 0.1), lost], "none": [lost], "other": [elsewhere]}
    some, none, other = (written(tmp_path / f"{n}.jsonl", *runs) for n, runs in files.items())
    picture = tmp_path / "some.svg"
    said = "mnist_cnn/ddp on 2 GPUs: 0 of 1 run gave a number"
    answer = gpuscale("plot", some, "--baseline", some, "-o", picture)
    assert (answer.returncode, answer.stderr) == (0, f"gpuscale: {said}\n")
    for text in (said, "measured: 2023-11-14, ", "baseline some: 2023-11-14, "):
        assert text in picture.read_text(), text
    for words, refused in (
        ((none,), "no run gave a number; 'gpuscale show' says why"),
        ((some, "--baseline", other), "has none of the rows to draw; leave out --baseline"),
    ):
        assert refused in refusal("plot", *words, "-o", picture)


def test_a_picture_of_several_files_names_each_that_it_draws(tmp_path: Path) -> None:
    names = ("first", "second", "bad", "other")
    paths = [tmp_path / f"{name}.jsonl" for name in names]
    for at, (name, path) in enumerate(zip(names, paths, strict=True)):
        runs = measured(replace(CNN, case="other") if name == "other" else CNN, factor=1 + at / 10)
        written(path, *runs, left_out="x" if name == "bad" else None)
    picture = tmp_path / "p.svg"
    assert main(["plot", *map(str, paths), "--case", CNN.case, "-o", str(picture)]) == 0
    said = re.sub(r"<[^>]*>|\s", "", picture.read_text())
    drawn_files = [name for name in names if f"{name}.jsonl:2023-11-14," in said]
    assert (drawn_files, "measured:" in said) == (["first", "second"], False)


def test_a_strategy_has_one_colour_in_every_picture() -> None:
    of_ddp, of_fsdp = (measured(replace(CNN, strategy=name)) for name in ("ddp", "fsdp"))
    other = measured(replace(CNN, precision="bf16"))
    colours = []
    for runs in ([*of_ddp, *of_fsdp], [*of_fsdp, *of_ddp], of_fsdp, [*of_fsdp, *other, *of_ddp]):
        (axes,) = drawn("speedup", Measurements(runs=runs)).figure.axes
        lines = {name: each.lines[0] for name, each in curves_in(axes).items()}
        colours.append({name: line.get_color() for name, line in lines.items() if line})
    assert colours[0] == colours[1]
    assert colours[2] == {"fsdp": colours[0]["fsdp"]}
    # Two ways of one strategy stay apart.
    assert len({*colours[3].values()}) == len(colours[3]) == 3
    assert colours[3]["fsdp"] == colours[0]["fsdp"]


def test_a_published_time_of_a_job_is_drawn_alone_but_its_speedup_beside_others() -> None:
    baseline = published(figure(1, time_s=90.0), figure(2, time_s=50.0))
    alone = drawn("time", Measurements(baseline=baseline))
    assert [*curves_in(alone.figure.axes[0])] == ["ddp, published"]
    beside = drawn("scaling", Measurements(runs=measured(), baseline=baseline))
    time, _, speedup = (curves_in(axes) for axes in beside.figure.axes)
    assert [*time] == ["ddp"]
    assert [*speedup] == ["ddp", "ddp, published"]
    assert known(baseline.source).title in notes_below(beside)


def of_phases(
    gpus: int, case: str = "mnist_cnn", *, optimizer_s: float = 0.01, data_s: float = 0.01
) -> Run:
    rank = phases(data_s=data_s, forward_s=0.03, backward_s=0.05, optimizer_s=optimizer_s)
    exposed_s, of_case = 0.025 if gpus > 1 else 0.0, replace(CNN, case=case)
    return phased_run([rank] * gpus, communication_s=exposed_s, configuration=of_case)


def test_stacked_bars_add_up_to_the_whole_and_many_rows_are_counted() -> None:
    runs = [of_phases(gpus) for gpus in (1, 2)]
    (axes,) = drawn("budget", Measurements(runs=runs)).figure.axes
    widths = [bar.get_width() for each in axes.containers for bar in each]
    assert sum(widths) == pytest.approx(1)
    (axes,) = drawn("phases", Measurements(runs=runs)).figure.axes
    ends = {round(bar.get_x() + bar.get_width(), 6) for each in axes.containers for bar in each}
    assert {100, 125} <= ends
    (axes,) = drawn("phases", Measurements(runs=[of_phases(1, optimizer_s=0.003)])).figure.axes
    assert "optimizer 3 %" in [each.get_text() for each in axes.texts]
    many = [of_phases(gpus, f"case_{i}") for i in range(MOST_BARS + 3) for gpus in (1, 2)]
    assert "3 more rows" in notes_below(drawn("budget", Measurements(runs=many)))


@pytest.mark.parametrize("name", ["budget", "phases"])
def test_bars_of_a_baseline_are_paler_below_those_of_the_same_row(name: str) -> None:
    runs = [of_phases(gpus) for gpus in (1, 2)]
    slower = [of_phases(gpus, data_s=0.03) for gpus in (1, 2)]
    picture = drawn(name, Measurements(runs=runs, earlier=slower))
    (axes,) = picture.figure.axes
    labels = [text.get_text() for text in axes.texts if re.search("rank|GPU|base", text.get_text())]
    rows = 1 if name == "budget" else 2
    assert ["baseline" in label for label in labels] == [False, True] * rows
    (forward,) = (each for each in axes.containers if each.get_label() in ("efficiency", "forward"))
    colours = [sum(bar.get_facecolor()[:3]) for bar in forward]
    assert all(now < then for now, then in zip(colours[::2], colours[1::2], strict=True))
    assert "the baseline is not drawn" not in notes_below(picture)
    other = published(figure(2, time_s=9.0))
    without = drawn(name, Measurements(runs=runs, baseline=other, origins=["x"]))
    assert "the baseline is not drawn: it has no such parts" in notes_below(without)
    many = [of_phases(gpus, f"case_{i}") for i in range(MOST_BARS + 3) for gpus in (1, 2)]
    picture = drawn(name, Measurements(runs=many, earlier=slower))
    assert f"{rows * (MOST_BARS + 3) - MOST_BARS // 2} more rows" in notes_below(picture)


def test_a_budget_marks_an_uncertain_efficiency_and_gains_as_the_table_does() -> None:
    for second_data_s, shown in ((0.01, "80 %"), (0.0, "data −4 %"), (0.08, "64 % ?")):
        second = replace(of_phases(2, data_s=second_data_s), index=2)
        runs = [of_phases(1), replace(of_phases(1), index=2), of_phases(2), second]
        picture = drawn("budget", Measurements(runs=runs))
        assert shown in [text.get_text() for text in picture.figure.axes[0].texts]
        has_note = "?: uncertain by more than a factor of two" in notes_below(picture)
        assert has_note == ("?" in shown)


@pytest.mark.filterwarnings("error")
def test_a_history_shows_each_level_and_the_night_that_changed_it() -> None:
    nights = made_nights(20, lambda night: 1.0 if night < 12 else 1.08)
    newer = [replace(night.environment, torch_version="2.12") for night in nights[12:]]
    later = (replace(night, environment=its) for night, its in zip(nights[12:], newer, strict=True))
    history = history_of([*nights[:12], *later])
    picture = drawn("history", Measurements(history=history))
    axes = picture.figure.axes[0]
    levels = [line for line in axes.lines if line.get_label() == "level"]
    first, second = (at_of(line)[0, 1] for line in levels)
    assert (first, second) == pytest.approx((128 / 0.1, 128 / 0.108), rel=0.01)
    assert axes.get_ylabel() == "samples/s"
    (changed,) = (line for line in axes.lines if line.get_label() == "level changed")
    assert 11 < at_of(changed)[0, 0] < 12
    assert "torch 2.11 → 2.12" in notes_below(picture)
    assert "bold: the change between the levels" in notes_below(picture)
    ticks = [tick.get_text() for tick in picture.figure.axes[-1].get_xticklabels()]
    assert history.names[12] in ticks
    # Laid out with room for all of it, which matplotlib warns of.
    content_of(picture, "svg")


@pytest.mark.parametrize(
    ("count", "truth"),
    [
        # The mean of few nights is not their median.
        (8, [1.0, 0.99, 1.0, 1.0, 1.05, 1.25, 1.2, 1.25].__getitem__),
        # The nights after the first change differ from those before the second one.
        (70, lambda night: 1.1 + 0.0002 * night if 10 <= night < 50 else 1.0),
        (70, lambda night: 1 + 0.0015 * max(0, night - 20)),
    ],
    ids=["step", "long level", "drift"],
)
def test_bold_changes_are_between_drawn_levels(count: int, truth: Callable[[int], float]) -> None:
    history = history_of(made_nights(count, truth))
    picture = drawn("history", Measurements(history=history))
    assert history.events
    for axes in picture.figure.axes:
        drawn_lines = [at_of(line)[:, 1] for line in axes.lines if line.get_label() == "level"]
        bold = [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"]
        ends = [(before[-1], after[0]) for before, after in itertools.pairwise(drawn_lines)]
        assert bold == [percent_text(after / before - 1) for before, after in ends]


def test_the_bold_change_of_an_imported_time_is_that_of_the_drawn_time(tmp_path: Path) -> None:
    lines = [f"2026-11-{day:02d}T02:00,{100 if day < 9 else 110}" for day in range(1, 15)]
    (tmp_path / "m.csv").write_text("\n".join(["time,wall_s", *lines]))
    nights = tmp_path / "nights"
    assert main(["import", "csv", str(tmp_path / "m.csv"), "-o", str(nights)]) == 0
    history = history_of([read_results(path) for path in nights.rglob("*.jsonl")])
    (axes,) = drawn("history", Measurements(history=history)).figure.axes
    first, second = (at_of(line)[0, 1] for line in axes.lines if line.get_label() == "level")
    assert (first, second) == pytest.approx((100, 110))
    assert [text.get_text() for text in axes.texts] == ["+10.0 %"]


def test_the_level_that_is_drawn_is_the_one_that_the_last_night_is_compared_with() -> None:
    truth = [1.2 if night == 9 else 1.006 - night / 4000 for night in range(20)]
    history = history_of(made_nights(20, truth.__getitem__))
    picture = drawn("history", Measurements(history=history))
    for row, axes in zip(history.rows, picture.figure.axes, strict=True):
        (level,) = (at_of(line)[:, 1] for line in axes.lines if line.get_label() == "level")
        (night,) = (at_of(line)[-1, 1] for line in axes.lines if line.get_label() == "night")
        assert night / level[-1] - 1 == pytest.approx(row.departure)


@pytest.mark.parametrize(("count", "is_cut"), [(1, False), (4, False), (5, True)])
def test_an_axis_holds_bars_of_few_nights_and_cuts_others(count: int, is_cut: bool) -> None:
    runs = [run(1, 0.1, index=1), run(1, 0.105, index=2), run(1, 0.11, index=3)]
    history = history_of([night_of(night, *runs, hours=24 * night) for night in range(count)])
    picture = drawn("history", Measurements(history=history))
    (axes,) = picture.figure.axes
    (bars,) = axes.collections
    ends = [end for path in bars.get_paths() for end in np.asarray(path.vertices)[:, 1]]
    low, high = axes.get_ylim()
    assert (low < min(ends) < max(ends) < high) != is_cut


def test_nights_have_intervals_on_an_axis_that_they_fill_and_that_begins_at_0_or_above() -> None:
    history = history_of(made_nights(12, lambda night: 9.0 if night % 2 else 1.0, runs=3))
    picture = drawn("history", Measurements(history=history))
    axes = picture.figure.axes[0]
    assert "bars: 95 % intervals over the runs of a night" in notes_below(picture)
    # One artist: 10,000 of them take minutes.
    (drawn_bars,) = axes.collections
    bars = [np.asarray(path.vertices)[:, 1] for path in drawn_bars.get_paths()]
    (nights,) = (at_of(line)[:, 1] for line in axes.lines if line.get_label() == "night")
    assert len(bars) == 12
    assert all(low < night < high for night, (low, high) in zip(nights, bars, strict=True))
    assert axes.get_ylim()[0] == 0
    left, right = axes.get_xlim()
    assert 11 / (right - left) > 0.8


def test_a_night_beyond_the_axis_has_an_arrow_with_its_distance_from_its_level() -> None:
    truth = {4: 1 / 0.85, 6: 1 / 0.905, 8: 1 / 1.2}
    nights = made_nights(14, lambda night: truth.get(night, 1.0))
    outlying = drawn("history", Measurements(history=history_of(nights)))
    for axes in outlying.figure.axes:
        labels = {each.get_text(): each for each in axes.texts if isinstance(each, Annotation)}
        at = {text: each.xy for text, each in labels.items()}
        assert at == {"↓ −15 %": (4, 0.0), "↓ −9 %": (6, 0.0), "↑ +20 %": (8, 1.0)}
        # Those of near nights are on lines of their own.
        assert labels["↓ −15 %"].xyann[1] < labels["↓ −9 %"].xyann[1]
    assert "arrows: outlying nights beyond it" in notes_below(outlying).replace("\n", " ")
    assert "bold: " not in notes_below(outlying)


def test_nights_of_one_date_are_told_apart_by_their_times() -> None:
    nights = made_nights(5, lambda night: 1.0)
    history = history_of(moved(each, -at * (1 - 5 / 1440)) for at, each in enumerate(nights))
    names = history.names
    (last,) = drawn("history", Measurements(history=history)).figure.axes[-1:]
    ticks = [tick.get_text().split("\n") for tick in last.get_xticklabels()]
    # The names of all five would overlap.
    assert ticks == [[name[11:], name[:10]] for name in names[::2]]


def test_pictures_of_one_page_share_no_id_and_say_what_they_show() -> None:
    measurements = Measurements(runs=[*measured(), of_phases(2, "<b>&")])
    pictures = [picture for draw in FIGURES.values() if (picture := draw(measurements))]
    texts = [svg_of(picture) for picture in pictures]
    roots = [ElementTree.fromstring(text) for text in texts]
    ids = [each.attrib["id"] for root in roots for each in root.iter() if "id" in each.attrib]
    assert len(ids) == len(set(ids)) > 0
    for picture, root, text in zip(pictures, roots, texts, strict=True):
        assert root.attrib["role"] == "img"
        assert root[0].text == picture.title
        assert {"<?xml", "<style", "http://www.w3.org/1999/xhtml"} & {*text.split()} == set()
        # Text stays text, in the colour around it.
        words = [each for each in root.iter() if each.tag.endswith("}text")]
        assert any("currentColor" in each.attrib["style"] for each in words)


def test_a_picture_is_written_as_what_its_name_says(tmp_path: Path) -> None:
    now = written(tmp_path / "now.jsonl", *measured())
    before = written(tmp_path / "before.jsonl", *measured(factor=0.9))
    for kind, beginning in (("svg", b"<svg "), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        path = tmp_path / f"scaling.{kind}"
        assert main(["plot", str(now), "--baseline", str(before), "-o", str(path)]) == 0
        assert path.read_bytes().startswith(beginning)


@pytest.mark.filterwarnings("error")
def test_names_of_any_length_leave_room_for_the_axes() -> None:
    alike = [replace(CNN, case=f"{end}{'x' * 190}{end}") for end in "ab"]
    picture = drawn("scaling", Measurements(runs=[run for each in alike for run in measured(each)]))
    content_of(picture, "svg")
    (name,) = set(curves_in(picture.figure.axes[0])) - {"linear"}
    assert name.startswith("axx")
    assert name.endswith("xxa/ddp")
    assert len(name) < 60
    (legend,) = picture.figure.legends
    assert legend.get_window_extent().x1 <= picture.figure.bbox.x1


def test_only_a_figure_of_phases_is_refused_for_being_of_a_command(tmp_path: Path) -> None:
    (alone,) = [run(2, 0.1)]
    command = replace(alone.configuration, command="torchrun train.py")
    file = written(tmp_path / "c.jsonl", replace(alone, configuration=command))
    for name, is_told in (("phases", True), ("budget", True), ("speedup", False)):
        said = refusal("plot", file, "--figure", name, "-o", tmp_path / "x.svg")
        assert "has no data for this figure" in said
        assert ("sees no phases of a command" in said) is is_told


def test_a_refused_plot_is_one_line(tmp_path: Path) -> None:
    file = written(tmp_path / "now.jsonl", *measured())
    faulty = tmp_path / "faulty.jsonl"
    written(faulty, run(1, 0.1, index=9), injections=("data=5ms",))
    for arguments, said in (
        ((file, "-o", tmp_path / "x.gif"), "ends with .svg, .pdf, .png"),
        ((file, "--figure", "phases", "-o", tmp_path / "x.svg"), "has no data for this figure"),
        ((file, "--case", "other", "-o", tmp_path / "x.svg"), "no case 'other'; choose from mnist"),
        ((file, faulty, "-o", tmp_path / "x.svg"), "give one of them as the baseline"),
        ((tmp_path, "-o", tmp_path / "x.svg"), "is a folder; give one of the files in it"),
        ((ARC4, "--baseline", ARC4, "-o", tmp_path / "x.svg"), "draw it alone"),
        (
            (file, "--figure", "history", "--baseline", ARC4, "-o", tmp_path / "x.svg"),
            "nights need no --baseline",
        ),
    ):
        assert said in refusal("plot", *arguments)
    assert {*tmp_path.iterdir()} == {file, faulty}
