"""The wheel, in an environment that has neither torch nor pytest."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest
from ci_checkout import write_program
from command_line import python_in
from measuring import REPOSITORY
from statements import known

from gpuscale.cli import _COMMANDS

BUILD = "import sys; from setuptools import build_meta as b; print(b.build_{}(sys.argv[1]))"
LIGHT = ("msgspec", "tabulate", "wcwidth")
RESULTS = REPOSITORY / "tests/data/two_cpu_ranks.jsonl"
USES = {
    "init": "made",
    "compare": f"{REPOSITORY}/baselines/arc4.json {RESULTS}",
    "show": f"{RESULTS}",
    "history": f"{RESULTS}",
    "env": f"{RESULTS}",
    "baseline": f"record {RESULTS} --cluster X -o b.json",
    "submit": "generic-slurm --gpus-per-node 2 --gpus 1,2 --cases made --print",
    "schema": "results",
    "import": "reframe Img.log -o nights",
    "leave-out": "two_cpu_ranks.jsonl --because cooling",
}
"""Arguments of the commands that need no further package."""
LACKED = {
    "doctor": "nvidia-ml-py",
    "night": "torch numpy pytest pytest-benchmark nvidia-ml-py",
}


def built(kind: str, tree: Path, target: Path) -> Path:
    answer = python_in(tree, "-c", BUILD.format(kind), target)
    assert answer.returncode == 0, answer.stderr
    return target / answer.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and what judging needs.

    The wheel is built of the source distribution, as `python -m build` does.
    """
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    for name in ("gpuscale", "bench_cases", "baselines"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, tree / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, tree)
    with tarfile.open(built("sdist", tree, folder)) as archive:
        archive.extractall(folder, filter="data")
    wheel = built("wheel", next(folder.glob("gpuscale-*/")), folder)
    venv.create(folder / "light", symlinks=True)
    (packages,) = (folder / "light/lib").glob("python*/site-packages")
    for name in LIGHT:
        spec = known(importlib.util.find_spec(name))
        (packages / name).symlink_to(Path(known(spec.origin)).parent)
    python = folder / "light/bin/python"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel)]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, *install], check=True)
    return python


def gpuscale(
    python: Path, *words: str, cwd: Path, variables: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command, env = [str(python.with_name("gpuscale")), *words], {**own, **(variables or {})}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def test_the_wheel_judges_without_torch(light: Path, tmp_path: Path) -> None:
    answer = gpuscale(light, "compare", *USES["compare"].split(), cwd=tmp_path)
    assert answer.returncode == 4, answer.stderr
    assert "INCOMPARABLE" in answer.stdout
    # The same as from this checkout, to the letter.
    same = python_in(tmp_path, "-m", "gpuscale", "compare", *USES["compare"].split())
    assert (same.stdout, same.stderr) == (answer.stdout, answer.stderr)


def test_every_command_of_the_wheel_runs_or_says_what_it_lacks(light: Path, tmp_path: Path) -> None:
    shutil.copy(RESULTS, tmp_path)
    columns = "result|job_completion_time_unix|name|throughput_value|throughput_unit"
    (tmp_path / "Img.log").write_text(f"{columns}\npass|1790000000|Img|97|img/s\n")
    for name, _ in _COMMANDS:
        answer = gpuscale(light, name, *USES.get(name, "").split(), cwd=tmp_path)
        assert "Traceback" not in answer.stderr
        if name in USES:
            assert answer.returncode in (0, 4), f"{name}: {answer.stderr}"
            continue
        assert answer.returncode == 2, name
        (line,) = answer.stderr.splitlines()
        assert line.startswith(f"gpuscale: {name} needs ")
        _, packages = line.split("install with: pip install ")
        # As pip knows them.
        assert packages == LACKED.get(name, packages)


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """Variables with the commands of a Slurm on PATH, whose sbatch writes GPUSCALE_VENV down."""
    for name in ("sbatch", "scontrol", "sacct"):
        script = '#!/bin/bash\necho "$GPUSCALE_VENV" >venv\necho 7\n'
        write_program(tmp_path / "bin" / name, script)
    return {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}


def test_a_job_never_lacks_torch(light: Path, tmp_path: Path, slurm: dict[str, str]) -> None:
    assert gpuscale(light, "init", ".", cwd=tmp_path, variables=slurm).returncode == 0
    for venv_of_job in ("", "/elsewhere"):
        variables = slurm | ({"GPUSCALE_VENV": venv_of_job} if venv_of_job else {})
        words = ("submit", "./mysite.toml", "--yes")
        answer = gpuscale(light, *words, cwd=tmp_path, variables=variables)
        assert answer.returncode == 0, answer.stderr
        assert (tmp_path / "venv").read_text() == f"{venv_of_job}\n"


def test_the_wheel_ships_all_the_cases(light: Path, tmp_path: Path, slurm: dict[str, str]) -> None:
    answer = gpuscale(light, "init", "here", cwd=tmp_path, variables=slurm)
    assert answer.returncode == 0, answer.stderr
    for folder in ("bench_cases", "baselines"):
        shipped = (path for path in (REPOSITORY / folder).iterdir() if path.is_file())
        kept = {path.name: path.read_text() for path in shipped}
        made = {path.name: path.read_text() for path in (tmp_path / "here" / folder).glob("*")}
        assert made == kept
    here = tmp_path / "here"
    assert gpuscale(light, "submit", "./mysite.toml", "--print", cwd=here).returncode == 0
