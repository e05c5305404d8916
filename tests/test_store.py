"""Files: what is read, what is refused in one line, and what a kill or a full disk leaves."""

import os
import stat
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from builders.network_tree import as_ordinary_user
from changing import replace
from command_line import ARC4, TWO_CPU_RANKS, gpuscale, python, ran
from format_page import example

from gpuscale.base.errors import DecodeError, FileError, UsageError
from gpuscale.cli.compare import outputs_of
from gpuscale.records import Baseline, Results
from gpuscale.reports.comparison.formats import COMPARISON_FORMATS
from gpuscale.store import results as results_files
from gpuscale.store.file_formats import decode_baseline, decode_results
from gpuscale.store.files import MOST_BYTES, read_any, read_baseline, write_baseline, write_report
from gpuscale.store.results import ResultsFile, create_results, default_results_path, read_results

ROOT = Path(__file__).parent.parent
NOW = datetime(2026, 11, 21, 3, 30, 15, 123456, tzinfo=UTC)


def results() -> Results:
    return decode_results(example("results"))


def baseline() -> Baseline:
    return decode_baseline(example("baseline"))


def writer(path: Path) -> ResultsFile:
    return create_results(path, replace(results(), created_at=NOW.isoformat()))


def refusal(action: Callable[..., object], *arguments: object) -> str:
    with pytest.raises((FileError, DecodeError)) as caught:
        action(*arguments)
    message = str(caught.value)
    assert message.isprintable()
    return message


def test_runs_that_were_appended_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "results.jsonl"
    with writer(path) as file:
        assert read_results(path).runs == ()
        for number, run in enumerate(results().runs, start=1):
            file.append(run)
            assert len(read_results(path).runs) == number
    read = read_results(path)
    assert read.runs == results().runs
    assert read.environment == results().environment
    assert datetime.fromisoformat(read.created_at) == NOW


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("precious")
    assert "it is not overwritten" in refusal(writer, path)
    assert path.read_text() == "precious"
    link = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / "nowhere")
    assert "it is not overwritten" in refusal(writer, link)


def test_a_run_that_breaks_the_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    good = results().runs[0]
    with writer(path) as file:
        file.append(good)
        bad = replace(good, wall_s=-1.0)
        message = refusal(file.append, bad)
        assert "cannot record mnist_cnn/ddp on 2 CPU ranks, run 1: wall_s: " in message
        file.append(good)
    assert read_results(path).runs == (good, good)


# A limit on the file's size makes the last write a partial one, as a full disk does.
FILLS_UP = """
import resource, sys
from pathlib import Path
from gpuscale.base.errors import FileError
from gpuscale.store.results import create_results, read_results
example, path = read_results(Path(sys.argv[1])), Path(sys.argv[2])
file = create_results(path, example)
file.append(example.runs[0])
size = path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))
try:
    file.append(example.runs[0])
except FileError as error:
    print(error)
"""


def test_a_disk_that_fills_up_loses_only_the_run_under_way(tmp_path: Path) -> None:
    path, source = tmp_path / "results.jsonl", tmp_path / "example.jsonl"
    source.write_text(example("results"))
    assert "File too large" in python("-c", FILLS_UP, source, path).stdout
    assert len(read_results(path).runs) == 1
    assert path.read_bytes().endswith(b"}\n")


def test_what_may_not_be_written_or_read_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with as_ordinary_user():
        path = tmp_path / "results.jsonl"
        assert "Permission denied" in refusal(writer, path)
        assert "Permission denied" in refusal(writer, tmp_path / "a" / "results.jsonl")
        assert "Permission denied" in refusal(write_baseline, path, baseline())
    tmp_path.chmod(0o700)
    path.touch(mode=0)
    with as_ordinary_user():
        assert "Permission denied" in refusal(read_baseline, path)


@pytest.mark.parametrize("read", [read_results, read_baseline, read_any])
def test_unreadable_files_are_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    pipe, loop, large = tmp_path / "pipe", tmp_path / "loop", tmp_path / "large"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    with large.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    expected = {
        tmp_path / "none.json": "No such file or directory; check the path",
        tmp_path: "is a folder; give one of the files in it",
        pipe: "is not a regular file",
        Path("/dev/zero"): "is not a regular file",
        loop: "Too many levels of symbolic links",
        large: "larger than the 256 MiB that are read",
        tmp_path / ("a" * 300): "File name too long",
        tmp_path / "nul\0": "check the path",
        tmp_path / "surrogate\ud800": "check the path",
        tmp_path / "two\nlines": "two\\nlines: No such file or directory",
        tmp_path / "no\ufeffglyph\n": "no\\ufeffglyph\\n: No such file or directory",
    }
    for path, problem in expected.items():
        assert problem in refusal(read, path)


@pytest.mark.parametrize("read", [read_results, read_baseline, read_any])
def test_bytes_that_are_not_utf8_are_placed(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b'{"format": "\xff"}')
    problem = "byte 13: is not UTF-8 text; unpack it, or save it as UTF-8"
    assert refusal(read, path) == f"{path}:1: {problem}"


def test_any_file_is_told_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "baseline.jsonl"
    path.write_text(example("baseline"))
    assert read_any(path) == baseline()
    path.write_text(example("results"))
    assert read_any(path) == results()
    path.write_text(example("results")[:40])
    assert "this is not JSON" in refusal(read_any, path)
    assert "this is a results file, not a baseline" in refusal(read_baseline, path)


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no sysfs")
def test_a_folder_that_takes_no_files_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    results_files.validate_writable(tmp_path / "new" / "folder")
    assert not [*tmp_path.iterdir()]
    with pytest.raises(FileError, match=r"^/sys/kernel: \w.*, with --results FILE$"):
        # Root is stopped by no permissions, and cannot write here either.
        results_files.validate_writable(Path("/sys/kernel/.gpuscale/results"))


@pytest.mark.parametrize(("earlier", "mask", "mode"), [(None, 0o027, 0o640), (0o664, 0o077, 0o664)])
def test_a_baseline_has_its_mode(tmp_path: Path, earlier: int | None, mask: int, mode: int) -> None:
    path = tmp_path / "baseline.json"
    if earlier is not None:
        path.touch()
        path.chmod(earlier)
    before = os.umask(mask)
    try:
        write_baseline(path, baseline())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(path, baseline())
    before = path.read_text()
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "full")))
    changed = replace(baseline(), name="another")
    assert "full; free some space" in refusal(write_baseline, path, changed)
    assert path.read_text() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["baseline.json"]


def test_no_baseline_and_no_report_replaces_what_is_no_file(tmp_path: Path) -> None:
    loop, file = tmp_path / "loop", tmp_path / "file"
    loop.symlink_to(loop)
    file.touch()
    expected = {
        tmp_path: "Is a directory; name a file",
        loop: "Too many levels of symbolic links",
        file / "a.json": "a part of the path is a file",
        tmp_path / "none" / "a.json": "No such file or directory; check the path",
        tmp_path / ("x" * 300): "File name too long",
    }
    for path, problem in expected.items():
        assert problem in refusal(write_baseline, path, baseline())
        assert problem in refusal(write_report, path, "text")
    assert {*tmp_path.iterdir()} == {loop, file}


def test_the_newest_results_are_those_measured_last(tmp_path: Path) -> None:
    old, new = (default_results_path(tmp_path, NOW + timedelta(days=day)) for day in (-1, 0))
    # Advice names the file of another session after that of the first one.
    newest = old.with_name(old.name.replace(".jsonl", "-2.jsonl"))
    for number, path in enumerate((old, new, newest)):
        writer(path).close()
        os.utime(path, ns=(number, number))
    (tmp_path / "zzz.jsonl").write_text("not dated")
    default_results_path(tmp_path, NOW + timedelta(days=1)).mkdir()
    results_files.leave_out(old, "a bad night")
    assert results_files.newest_results(tmp_path) == [newest, new, old]


def test_make_clean_keeps_results_and_another_target_names_them_first(tmp_path: Path) -> None:
    path = default_results_path(tmp_path / results_files.RESULTS_FOLDER, NOW)
    path.parent.mkdir(parents=True)
    path.write_text("hours of measuring")
    makefile = ROOT / "Makefile"

    def make(*words: str) -> "subprocess.CompletedProcess[str]":
        return ran("make", "-f", makefile, *words, cwd=tmp_path)

    assert make("clean").returncode == 0
    asked = make("clean-results")
    assert (asked.returncode, path.name in asked.stdout) == (2, True)
    assert "make clean-results YES=1" in asked.stderr
    assert path.exists()
    assert make("clean-results", "YES=1").returncode == 0
    assert not (tmp_path / ".gpuscale").exists()


def compare(*formats: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """A comparison whose exit code is 4: CPU ranks against GPUs."""
    options = [word for text in formats for word in ("--format", text)]
    return gpuscale("compare", ARC4, TWO_CPU_RANKS, *options, cwd=cwd)


def test_a_format_without_a_file_is_printed_alone(tmp_path: Path) -> None:
    answer = compare("markdown", "text=night.txt", cwd=tmp_path)
    assert answer.stdout.startswith("### ⚠️ Scaling: nothing comparable was measured\n")
    assert "INCOMPARABLE" in (tmp_path / "night.txt").read_text()
    assert "\033[" not in (tmp_path / "night.txt").read_text()


def test_a_file_that_cannot_be_written_is_named_after_all_else_was(tmp_path: Path) -> None:
    answer = compare("json=nowhere/a.json", "junit=report.xml", cwd=tmp_path)
    assert answer.returncode == 2
    assert "2 incomparable (exit code 4)" in answer.stdout
    (line,) = answer.stderr.splitlines()
    assert line == ("gpuscale: nowhere/a.json: No such file or directory; check the path")
    assert (tmp_path / "report.xml").exists()


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        (["xml"], f"--format: there is no 'xml'; choose from {', '.join(COMPARISON_FORMATS)}"),
        (["JSON=a"], "--format: there is no 'JSON'; choose from"),
        (["\x1b[31m"], "--format: there is no '\\x1b[31m'; choose from"),
        (["json="], "--format: no file after 'json='; give json or json=FILE"),
        (["json", "text"], "json and text cannot go to standard output together"),
    ],
)
def test_what_cannot_be_written_is_refused(formats: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        outputs_of(formats, [])
    assert message in str(error.value)


def test_neither_an_input_nor_another_output_is_written_over(tmp_path: Path) -> None:
    baseline = tmp_path / "ours.json"
    baseline.write_text("{}")
    (tmp_path / "link.json").symlink_to(baseline)
    for name in ("ours.json", "link.json"):
        with pytest.raises(UsageError, match=r"--format: .* is already an input or output"):
            outputs_of([f"json={tmp_path / name}"], [baseline])
    with pytest.raises(UsageError, match="a is already an input or output"):
        outputs_of(["json=a", "text=./a"], [])
    assert outputs_of([f"json={tmp_path / 'new.json'}"], [baseline])


def test_a_report_takes_the_place_of_the_file_that_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("before")
    (tmp_path / "link.txt").symlink_to("real.txt")
    write_report(tmp_path / "link.txt", "now")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "now"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        try:
            write_report(pipe, "now")
            assert reader.communicate(timeout=240)[0] == "now"
        finally:
            reader.kill()
    assert pipe.is_fifo()
