"""A bad night that is left out: once said, every output names it, until it is taken back."""

import json
from pathlib import Path

import pytest
from command_line import gpuscale, refusal
from test_over_nights import write_nights

from gpuscale.reports.page import write_index
from gpuscale.store.campaign_folders import NIGHT_JSON, NightRecord, record_files
from gpuscale.store.files import read_baseline

REASON = "cooling failure"
NAMED = f"2026-09-25 ({REASON})"


@pytest.fixture
def nights(tmp_path: Path) -> list[Path]:
    """Nine nights, of which the fifth lost a quarter."""
    paths = write_nights(tmp_path / "nights", 9, lambda night: 1.25 if night == 4 else 1.0, runs=3)
    said = gpuscale("history", paths[0].parent.parent).stdout
    assert "far from the other nights of their level: 2026-09-25" in said
    return paths


def leave_out(path: Path) -> None:
    answer = gpuscale("leave-out", path, "--because", REASON)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.endswith(f"results.jsonl: left out: {REASON}\n")


def test_every_output_leaves_it_out_and_names_it(nights: list[Path], tmp_path: Path) -> None:
    folder, last = nights[0].parent.parent, nights[-1]
    leave_out(nights[4].parent)
    history = gpuscale("history", folder).stdout
    assert f"left out: {NAMED}\n" in history
    assert "history   8 nights of" in history
    assert "stood out" not in history
    files = [f"{name}={tmp_path / name}" for name in ("json", "markdown")]
    formats = [word for file in files for word in ("--format", file)]
    compared = gpuscale("compare", "--history", folder, last, *formats)
    assert compared.returncode == 0, compared.stdout
    assert f"note: left out: {NAMED}" in compared.stdout
    assert "jobs 0, 1, 2, 3 and 3 more, 21 runs a row" in " ".join(compared.stdout.split())
    assert f"left out: {NAMED}" in json.loads((tmp_path / "json").read_text())["notes"]
    assert f"left out: {NAMED}" in (tmp_path / "markdown").read_text()
    assert gpuscale("report", last, folder, "-o", tmp_path / "r.html").returncode == 0
    assert f"left out: {NAMED}" in (tmp_path / "r.html").read_text()
    picture = tmp_path / "h.svg"
    assert gpuscale("plot", folder, "--figure", "history", "-o", picture).returncode == 0
    assert "cooling" in picture.read_text()
    baseline = tmp_path / "b.json"
    recorded = gpuscale("baseline", "record", *nights, "--cluster", "x", "-o", baseline)
    assert f"left out: {NAMED}" in recorded.stderr
    assert {run.allocation for run in read_baseline(baseline).runs} == set("01235678")
    assert f"left out: {NAMED}" in gpuscale("compare", baseline, nights[4], last).stderr


def test_taken_back_the_file_is_as_it_was_to_the_byte(nights: list[Path]) -> None:
    folder, before = nights[0].parent.parent, nights[4].read_bytes()
    first = gpuscale("history", folder).stdout
    leave_out(nights[4])
    assert nights[4].read_bytes().partition(b"\n")[2] == before.partition(b"\n")[2]
    answer = gpuscale("leave-out", "--undo", nights[4].parent)
    assert answer.stdout.endswith("results.jsonl: counts again\n")
    assert nights[4].read_bytes() == before
    assert gpuscale("history", folder).stdout == first
    answer = gpuscale("leave-out", "--undo", nights[4].parent)
    assert answer.stdout.endswith("results.jsonl: counts as before\n")


def test_the_index_of_the_nights_shows_at_once_which_night_is_left_out(nights: list[Path]) -> None:
    folder = nights[4].parent.rename(nights[0].parent.parent / "2026-09-25_4")
    (folder / NIGHT_JSON).write_text(record_files(NightRecord(night="ok", exit=0))[NIGHT_JSON])
    index = folder.parent / "index.html"
    leave_out(folder)
    assert not index.exists()
    write_index(folder.parent)
    for undo, marks in ((True, 0), (False, 1)):
        choice = ("--undo",) if undo else ("--because", REASON)
        assert gpuscale("leave-out", folder / "results.jsonl", *choice).returncode == 0
        assert index.read_text().count(f"left out: {REASON}") == marks


def test_alone_it_is_judged_but_never_a_reference(nights: list[Path], tmp_path: Path) -> None:
    bad, good = nights[4], nights[5]
    baseline = tmp_path / "b.json"
    gpuscale("baseline", "record", *nights[:3], "--cluster", "x", "-o", baseline)
    leave_out(bad)
    for command in (("show", bad), ("compare", baseline, bad)):
        answer = gpuscale(*command)
        assert "mnist_cnn/ddp" in answer.stdout
        assert f"left out: {NAMED}; it was given alone" in answer.stderr
    against_earlier = gpuscale("compare", "--history", bad.parent.parent, bad)
    assert "left out: 4 nights that began after these results" in against_earlier.stderr
    assert against_earlier.stdout.count(NAMED) == 1
    kept = baseline.read_bytes()
    record = ("baseline", "record", bad, "--cluster", "x", "-o", tmp_path / "c.json")
    update = ("baseline", "update", "--add", baseline, bad)
    for refused in (("compare", bad, good), record, update):
        answer = gpuscale(*refused)
        assert answer.returncode == 2
        assert "'gpuscale leave-out --undo NIGHT' takes it back" in answer.stderr
    assert baseline.read_bytes() == kept


def test_what_cannot_be_left_out_changes_nothing(nights: list[Path], tmp_path: Path) -> None:
    before = [path.read_bytes() for path in nights]
    (tmp_path / "empty").mkdir()
    because = ("--because", "rain")
    for arguments, why in (
        ((nights[0].parent.parent, *because), "is a folder; give one of the files in it"),
        ((nights[0], tmp_path / "empty", *because), "is a folder; give one"),
        ((nights[0], tmp_path / "none", *because), "No such file or directory"),
        ((nights[0], "--because", " "), "say why"),
    ):
        assert why in refusal("leave-out", *arguments)
    assert [path.read_bytes() for path in nights] == before
    for path in nights:
        assert gpuscale("leave-out", path, *because).returncode == 0
    nothing = refusal("history", nights[0].parent.parent)
    assert "no valid run of the chosen rows; left out: 2026-09-21 (rain), " in nothing


def test_a_night_without_results_is_named(nights: list[Path]) -> None:
    failed = nights[0].parent.parent / "2026-10-01_9"
    failed.mkdir()
    record = NightRecord(night="it could not be run or judged", exit=2)
    (failed / NIGHT_JSON).write_text(record_files(record)[NIGHT_JSON])
    answer = gpuscale("history", failed.parent)
    named = f"gpuscale: left out: {failed}: no results (it could not be run or judged)\n"
    assert (answer.returncode, answer.stderr) == (0, named)
