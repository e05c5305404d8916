"""Where `gpuscale compare` writes: `--format FORMAT[=FILE]`."""

import os
import subprocess
from pathlib import Path

import pytest
from command_line import ARC4, TWO_CPU_RANKS, gpuscale

from gpuscale.base.errors import UsageError
from gpuscale.cli.compare import outputs_of
from gpuscale.reports.comparison.formats import COMPARISON_FORMATS
from gpuscale.store.files import write_report


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
        (["json", "text"], "json and text cannot both go to standard output"),
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
