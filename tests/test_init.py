"""`gpuscale init` as a user types it, with stand-ins for the commands of schedulers."""

import shutil
import subprocess
from pathlib import Path

import command_line
import pytest
from builders import measured
from ci_checkout import write_program
from measuring import REPOSITORY, run_pytest

from gpuscale.campaigns.cluster_profile import ClusterProfile, find_profile
from gpuscale.cli import init
from gpuscale.judge.baseline import baseline_from_results
from gpuscale.store.files import write_baseline


def gpuscale(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """The answer of the command in a folder where only the programs in `bin` are on PATH."""
    return command_line.gpuscale(*words, cwd=folder, variables={"PATH": f"{folder}/bin"})


def made(folder: Path, **programs: str) -> ClusterProfile:
    """The profile that is written where these programs print this; its job can be printed."""
    for name, printed in programs.items():
        write_program(folder / "bin" / name, f"#!/bin/bash\necho '{printed}'\n")
    answer = gpuscale(folder, "init", "made")
    assert (answer.returncode, answer.stderr) == (0, "")
    answer = gpuscale(folder / "made", "submit", "./mysite.toml", "--print")
    assert (answer.returncode, answer.stderr) == (0, "")
    return find_profile(str(folder / "made" / "mysite.toml"))


COMMANDS = {"slurm": "sbatch scontrol sacct", "sge": "qsub qstat qacct", "pbs": "qsub qstat"}


@pytest.mark.parametrize(("scheduler", "commands"), [*COMMANDS.items(), ("lsf", "bsub bjobs")])
def test_each_scheduler_is_detected(tmp_path: Path, scheduler: str, commands: str) -> None:
    profile = made(tmp_path, **dict.fromkeys(commands.split(), ""))
    assert profile.scheduler == scheduler
    text = (tmp_path / "made" / "mysite.toml").read_text()
    assert "gpus = 4  # a guess: correct it\n" in text
    assert "{gpus}'  # a guess" in text or "{gpus}:j_exclusive=yes\"'  # a guess" in text
    assert '\n# partition = "gpu"\n' in text


def test_without_a_scheduler_there_is_no_profile_and_a_line_says_so(tmp_path: Path) -> None:
    answer = gpuscale(tmp_path, "init", "made")
    assert (answer.returncode, len(answer.stderr.splitlines())) == (0, 1)
    assert "no profile was written" in answer.stderr
    assert not list(tmp_path.glob("made/*.toml"))
    assert "submit" not in (tmp_path / "made" / "README.md").read_text()


def test_one_file_that_is_there_keeps_all_from_being_written(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    said = command_line.refusal("init", ".", cwd=tmp_path)
    assert said.startswith("gpuscale: README.md: exists already and is not overwritten")
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    (tmp_path / "file").touch()
    assert command_line.refusal("init", "file", cwd=tmp_path)


def test_what_was_written_is_measured_from_its_folder(tmp_path: Path) -> None:
    assert gpuscale(tmp_path, "init", "made").returncode == 0
    folder = tmp_path / "made"
    options = ("--gpus", "1", "--strategy", "ddp", "--runs", "1", "--run-seconds", "0.2")
    session = run_pytest(folder, "bench_cases/test_mnist_cnn.py", *options).ended()
    assert [run.is_valid for run in session.results.runs] == [True]


def test_own_baselines_are_not_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = tmp_path / "shipped" / "baselines"
    shipped.mkdir(parents=True)
    shutil.copy(REPOSITORY / "baselines" / "arc4.json", shipped)
    ours = baseline_from_results([measured({1: (1.0, 1.0, 1.0)})], name="ours", cluster="Here")
    write_baseline(shipped / "ours.json", ours)
    monkeypatch.setattr(init, "_SHIPPED", shipped.parent)
    answer = gpuscale(tmp_path, "init", "made")
    assert answer.returncode == 0, answer.stderr
    assert [path.name for path in (tmp_path / "made/baselines").iterdir()] == ["arc4.json"]
