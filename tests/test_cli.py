import json
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from builders import results, results_text, run
from changing import replace
from command_line import ARC4, REPOSITORY, gpuscale, refusal
from command_line import TWO_CPU_RANKS as RESULTS
from measuring import in_a_terminal

from gpuscale.store.results import read_results


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compar", RESULTS], "no command 'compar' (did you mean 'compare'?); 'gpuscale --help'"),
        (
            ["baseline", "recrod", RESULTS],
            "no command 'baseline recrod' (did you mean 'record'?); 'gpuscale baseline --help'",
        ),
        (["fleet", "rnu"], "no command 'fleet rnu' (did you mean 'run'?)"),
        (["show", "--format", "jsn"], "--format: there is no 'jsn' (did you mean 'json'?); choose"),
        (["schema", "resluts"], "kind: there is no 'resluts' (did you mean 'results'?); choose"),
        (["xyzzy"], "no command 'xyzzy'; 'gpuscale --help' lists all"),
        (["compare", "cut.json", RESULTS], "cut.json:12: column"),
        (["compare", "binary.json", RESULTS], "UTF-8"),
        (["compare", "deep.json", RESULTS], "deep.json: "),
        (["compare", "future.json", RESULTS], "version: expected 2"),
        (["compare", RESULTS, RESULTS], "is given as both sides"),
        (["report", RESULTS, "--baseline", RESULTS], "is given as both sides"),
        (["compare", "copy.jsonl", RESULTS], "12 runs of the results to judge: one was copied"),
        (["report", RESULTS, "--baseline", "copy.jsonl"], "of the results to judge"),
        (["compare", ARC4], "there are no results here"),
        (["compare", RESULTS], f"{RESULTS}, given alone, is the baseline"),
        (["compare", "nope.json"], "nope.json: No such file or directory; check the path"),
        (["show"], "there are no results here"),
        (["compare", ARC4, RESULTS, "--gpus", "0"], "--gpus: '0' is not a whole number from 1"),
    ],
)
def test_refusals_are_one_line(tmp_path: Path, arguments: list[object], message: str) -> None:
    (tmp_path / "cut.json").write_bytes(ARC4.read_bytes()[:300])
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00{")
    (tmp_path / "copy.jsonl").write_bytes(RESULTS.read_bytes())
    (tmp_path / "deep.json").write_bytes(b"[" * 100_000)
    (tmp_path / "future.json").write_text('{"format": "gpuscale-baseline", "version": 99}')
    answer = gpuscale(*arguments, cwd=tmp_path)
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
    assert message in answer.stderr


@pytest.mark.parametrize(
    ("command", "option", "near"),
    [
        ("submit", "--xyzzy", ""),
        ("baseline show", "--xyzzy", ""),
        ("show", "--fromat=json", " (did you mean '--format'?)"),
        ("run", "--strategy", ""),
    ],
)
def test_an_unknown_option_is_answered_with_the_usage(command: str, option: str, near: str) -> None:
    answer = gpuscale(*command.split(), option, "here", cwd=REPOSITORY)
    assert answer.returncode == 2
    assert answer.stderr.startswith(f"usage: gpuscale {command} ")
    said = f"gpuscale {command}: error: unrecognized arguments: {option}{near}\n"
    assert answer.stderr.endswith(said)


def test_help_is_the_help_as_a_command_too_and_has_the_example_of_its_page() -> None:
    assert gpuscale("help").stdout == gpuscale("--help").stdout
    said = gpuscale("night", "--help").stdout
    assert gpuscale("help", "night").stdout == said
    example = said.split("example:\n  ")[1].splitlines()[0]
    assert f"$ {example} " in (REPOSITORY / "docs/nightly.md").read_text("utf-8")


@pytest.mark.parametrize(
    "words",
    [
        "vm cases",
        "vm 123 cases --gpus 1",
        "vm measure",
        "vm 123 measure compare b.json",
        "vm measure cases compare",
    ],
)
def test_an_incomplete_night_is_refused(tmp_path: Path, words: str) -> None:
    said = refusal("night", *words.split(), cwd=tmp_path)
    assert "night: expected NAME [JOB] measure PYTEST_ARGUMENT... [compare BASELINE|" in said
    assert not any(tmp_path.iterdir())


def test_the_newest_results_are_named_with_the_time_they_were_measured(tmp_path: Path) -> None:
    newest = tmp_path / ".gpuscale" / "results" / "2026-11-21T053958.532Z-0a4917.jsonl"
    newest.parent.mkdir(parents=True)
    made, days_ago = read_results(RESULTS), datetime.now(UTC) - timedelta(days=3, hours=1)
    runs = tuple(replace(run, started_at_s=days_ago.timestamp()) for run in made.runs)
    newest.write_text(results_text(replace(made, created_at=days_ago.isoformat(), runs=runs)))
    moment = f"{days_ago:%Y-%m-%d %H:%M} UTC"
    shown = gpuscale("show", cwd=tmp_path)
    place = newest.relative_to(tmp_path)
    assert shown.stdout.startswith(f"results   {place}\nmeasured  {moment} by ")
    compared = gpuscale("compare", ARC4, cwd=tmp_path)
    (line,) = compared.stderr.splitlines()
    assert line == f"gpuscale: the newest in .gpuscale/results: {newest.name}, measured {moment}"
    assert gpuscale("compare", ARC4, newest).stderr == ""


def test_a_session_that_failed_is_left_out_by_name_and_shown_by_name(tmp_path: Path) -> None:
    folder = tmp_path / ".gpuscale" / "results"
    folder.mkdir(parents=True)
    names = [f"2026-11-2{day}T053958.532Z-0a4917.jsonl" for day in range(1, 8)]
    well, begun, failed, *more = (folder / name for name in names)
    well.write_bytes(RESULTS.read_bytes())
    begun.write_text(results_text(results()))
    failed.write_text(results_text(results(run(1, None))))
    place = ".gpuscale/results/"
    newer = f"newer, but without a valid run: {place}{failed.name} and {place}{begun.name}"
    for words in (["show"], ["compare", ARC4], ["plot", "-o", str(tmp_path / "x.svg")]):
        answer = gpuscale(*words, cwd=tmp_path)
        assert answer.stderr.count(f"gpuscale: left out: {newer}\n") == 1, answer.stderr
        assert f"gpuscale: the newest in .gpuscale/results: {well.name}, " in answer.stderr
    shown = gpuscale("show", failed, cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "failed" in shown.stdout
    # Of many, the two newest are named.
    for path in more:
        path.write_bytes(begun.read_bytes())
    (line, _) = gpuscale("show", cwd=tmp_path).stderr.splitlines()
    assert line.endswith("2026-11-26T053958.532Z-0a4917.jsonl and 4 more")


def test_a_reader_that_has_seen_enough_gets_no_traceback() -> None:
    command = f"{sys.executable} -m gpuscale show {RESULTS} | true"
    answer = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, check=False)
    assert answer.stderr == b""


COMPARISON = ("compare", str(ARC4), str(RESULTS))


def test_verdicts_are_coloured_on_terminals_unless_no_color_is_set() -> None:
    words = ("gpuscale", *COMPARISON)
    coloured, plain = (in_a_terminal(words, REPOSITORY, columns=0, NO_COLOR=n) for n in ("", "1"))
    assert "\033[33mINCOMPARABLE" in coloured
    assert "\033[" not in plain


def test_tables_keep_to_the_width_that_the_terminal_has() -> None:
    words = ("gpuscale", "show", str(RESULTS))
    shown = in_a_terminal(words, REPOSITORY, columns=80, COLUMNS="")
    tables = [line for line in shown.splitlines() if not line.startswith(("results", " "))]
    assert max(map(len, tables)) <= 80
    assert "efficiency" in shown


@pytest.mark.parametrize("command", [("show", RESULTS), ("show", RESULTS, "--phases"), COMPARISON])
def test_text_in_a_pipe_is_as_wide_as_columns_says_and_else_100(command: Sequence[object]) -> None:
    for chosen, most in (("", 100), ("80", 80)):
        shown = gpuscale(*command, variables={"COLUMNS": chosen, "PYTHONUTF8": "1"}).stdout
        # The name of a file is one word.
        lengths = [len(line) for line in shown.splitlines() if str(RESULTS) not in line]
        assert 0 < max(lengths) <= most


def test_rows_are_chosen_alike_by_every_command_which_names_those_there_are(tmp_path: Path) -> None:
    page, picture = ("-o", tmp_path / "page.html"), ("-o", tmp_path / "a.svg")
    for arguments in (
        *(("show", RESULTS), ("history", RESULTS), ("compare", ARC4, RESULTS)),
        *(("report", RESULTS, *page), ("plot", RESULTS, *picture)),
    ):
        said = refusal(*arguments, "--case", "mnist_cn")
        assert "no case 'mnist_cn' (did you mean 'mnist_cnn'?); choose from " in said
        said = refusal(*arguments, "--gpus", 3)
        assert "--gpus 3: there is no such row; choose from 1, 2" in said
    chosen = gpuscale("show", RESULTS, "--gpus", 1, "--case", "mnist_cnn/ddp").stdout
    rows = [line.split()[:2] for line in chosen.splitlines() if line.startswith("mnist_cnn")]
    assert {*map(tuple, rows)} == {("mnist_cnn/ddp", "1")}


def test_a_folder_stands_for_its_only_results(tmp_path: Path) -> None:
    nights = tmp_path / "nights"
    for name in ("a", "b"):
        (nights / name).mkdir(parents=True)
        (nights / name / "results.jsonl").write_bytes(RESULTS.read_bytes())
    record = ("baseline", "record", nights, "--cluster", "here", "-o", tmp_path / "new.json")
    for command in (("compare", nights, RESULTS), ("compare", ARC4, nights), record):
        said = refusal(*command)
        assert "nights: is a folder; give one of the files in it; 'gpuscale history' and" in said
    alone = gpuscale("show", nights / "a")
    assert alone.stdout == gpuscale("show", nights / "a" / "results.jsonl").stdout
    assert gpuscale("compare", nights / "a", ARC4).returncode == 2


def test_results_with_and_without_faults_are_not_judged_as_one(tmp_path: Path) -> None:
    text = RESULTS.read_text()
    faulty = tmp_path / "faulty.jsonl"
    faulty.write_text(text.replace(',"environment"', ',"injections":["data=5ms"],"environment"', 1))
    said = refusal("compare", ARC4, RESULTS, faulty)
    assert "different injected faults" in said


def test_a_run_counts_once_however_often_its_file_is_given(tmp_path: Path) -> None:
    runs = RESULTS.read_text().splitlines(keepends=True)[1:]
    doubled, earlier = tmp_path / "doubled.jsonl", tmp_path / "earlier.jsonl"
    doubled.write_text(RESULTS.read_text() + "".join(runs))
    began = re.compile(r'"started_at_s":1(\d{9})')
    earlier.write_text(began.sub(r'"started_at_s":\1', doubled.read_text()))
    for command in (
        ("show", doubled, "--format", "csv"),
        ("compare", ARC4, RESULTS, RESULTS, "--format", "csv"),
        ("compare", earlier, RESULTS, "--format", "csv"),
        ("baseline", "record", doubled, "--cluster", "X", "-o", tmp_path / "b.json"),
    ):
        answer = gpuscale(*command)
        assert f"left out: {len(runs)} repeated runs; each counts once\n" in answer.stderr
        assert answer.stderr.count("left out") == 1
    shown = [gpuscale("show", path, "--format", "csv").stdout for path in (RESULTS, doubled)]
    assert shown[0] == shown[1]
    assert len(json.loads((tmp_path / "b.json").read_text())["runs"]) == len(runs)


def test_a_full_disk_under_the_output_is_no_regression() -> None:
    words = [sys.executable, "-m", "gpuscale", *COMPARISON]
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, check=False)
    assert answer.returncode == 2
    assert answer.stderr == b"gpuscale: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("closed", [False, True])
def test_an_error_that_nobody_can_be_told_is_no_regression(closed: bool) -> None:
    command = [sys.executable, "-m", "gpuscale", "show", "no-such-file"]
    words = ["sh", "-c", '"$@" 2>/dev/full' if not closed else '"$@" 2>&-', "sh", *command]
    assert subprocess.run(words, cwd=REPOSITORY, timeout=240, check=False).returncode == 2
    words = ["sh", "-c", '"$@" >&-', "sh", *command]
    told = subprocess.run(words, cwd=REPOSITORY, check=False, capture_output=True)
    assert (told.returncode, told.stderr.count(b"standard output is closed")) == (2, 1)
