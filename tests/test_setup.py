"""What `make setup` installs, and the wheel in an environment that has neither torch nor pytest."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from itertools import chain
from pathlib import Path

import pytest
from ci_checkout import REPOSITORY, write_program
from command_line import python_in, ran
from measuring import run_pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from statements import known

from gpuscale.cli import _COMMANDS

# Makes an environment whose Python only writes down what it is asked to do, and so does its uv.
PYTHON = """#!/bin/sh
mkdir -p "$3/bin"
cat >"$3/bin/python" <<'END'
#!/bin/sh
echo "pip $*" >>calls
case "$*" in *" uv")
    [ "$WITHOUT" = uv ] && exit 1
    printf '#!/bin/sh\\necho "uv $*" >>calls\\n[ "$WITHOUT" != index ]\\n' >"$(dirname "$0")/uv"
    chmod +x "$(dirname "$0")/uv"
esac
END
chmod +x "$3/bin/python"
"""


def pins_of(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line[:1] not in ("", "#")]
    return dict(line.split("==") for line in lines)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    (tmp_path / "bench_cases").symlink_to(REPOSITORY / "bench_cases")
    write_program(tmp_path / "python", PYTHON)
    return tmp_path


def make(checkout: Path, *words: str, without: str = "") -> None:
    # MAKEFLAGS would hand the LATEST=1 of `make test LATEST=1` on to this make.
    variables = {"PATH": "/usr/bin:/bin", "WITHOUT": without}
    assert ran("make", *words, cwd=checkout, env=variables).returncode == 0


def set_up(checkout: Path, *variables: str, without: str = "", target: str = "setup") -> list[str]:
    """The command that installs, after uv itself."""
    make(checkout, target, "PYTHON=./python", *variables, without=without)
    return (checkout / "calls").read_text().splitlines()[1:]


def test_setup_installs_by_uv_what_the_constraints_name(checkout: Path) -> None:
    (installed,) = set_up(checkout)
    assert installed.startswith("uv pip install")
    assert installed.endswith(" --editable .[dev] --constraint .venv/constraints.txt")
    assert pins_of(checkout / ".venv/constraints.txt") == pins_of(REPOSITORY / "constraints.txt")


def test_the_main_job_alone_needs_no_tools_of_developers(checkout: Path) -> None:
    (measures,) = set_up(checkout, target=".venv/.measures")
    assert " --editable .[amd,lightning,plots] " in measures
    *_, developers = set_up(checkout)
    assert " --editable .[dev] " in developers


def test_setup_with_another_torch_frees_what_moves_with_it(checkout: Path) -> None:
    (installed,) = set_up(checkout, "TORCH=2.6.0")
    where = ".venv-torch-2.6.0/constraints.txt"
    assert installed.endswith(f" torch==2.6.0 --constraint {where}")
    left_out = pins_of(REPOSITORY / "constraints.txt").keys() - pins_of(checkout / where).keys()
    assert {"torch", "torchvision", "triton", "sympy", "nvidia-nccl-cu13"} <= left_out
    assert not left_out & {"pytest", "numpy", "nvidia-ml-py", "lightning"}


@pytest.mark.parametrize("without", ["uv", "index"])
def test_setup_goes_on_with_pip_where_uv_cannot(checkout: Path, without: str) -> None:
    *_, installed = set_up(checkout, without=without)
    assert installed.startswith("pip -m pip install")
    assert installed.endswith(" --editable .[dev] --constraint .venv/constraints.txt")


def test_constraints_are_names_and_versions_and_satisfy_each_requirement() -> None:
    pins = pins_of(REPOSITORY / "constraints.txt")
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in pins)
    assert all(re.fullmatch(r"\d[\w.]*", version) for version in pins.values())
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in map(Requirement, chain.from_iterable(lists)):
        name = canonicalize_name(requirement.name)
        assert name == "gpuscale" or pins[name] in requirement.specifier, requirement


@pytest.mark.parametrize(
    ("variables", "measured"),
    [
        ([], "bench_cases/test_mnist_cnn.py bench_cases/test_resnet50.py"),
        (["CASES=gpt"], "bench_cases/test_gpt.py"),
        (["CASES=all"], "bench_cases"),
    ],
)
def test_bench_measures_chosen_cases(checkout: Path, variables: list[str], measured: str) -> None:
    program = '#!/bin/sh\necho "$*" >measured\n'
    set_up(checkout)
    write_program(checkout / ".venv/bin/pytest", program)
    make(checkout, "bench", "STRATEGY=ddp", *variables)
    assert (checkout / "measured").read_text() == f"{measured} --gpus 1,2 --strategy ddp\n"
    assert all((REPOSITORY / path).exists() for path in measured.split())


def test_bench_names_the_cases_for_one_that_does_not_exist(checkout: Path) -> None:
    answer = ran("make", "bench", "PYTHON=./python", "CASES=mnist gpt", cwd=checkout)
    assert answer.returncode == 2
    assert "there is no case mnist; choose from all gpt mnist_cnn " in answer.stderr
    assert not (checkout / "calls").exists()


def test_without_tools_of_developers_a_mistyped_case_is_not_found(tmp_path: Path) -> None:
    write_program(tmp_path / "hypothesis.py", 'raise ModuleNotFoundError("as after make bench")')
    path = "bench_cases/test_mnist.py"
    # Before all that its process could find.
    lacks = ("-o", f"pythonpath=tests . {tmp_path}", "--gpus", "1")
    session = run_pytest(REPOSITORY, path, *lacks)
    assert f"file or directory not found: {path}" in session.output
    assert "hypothesis" not in session.output
    cases = run_pytest(REPOSITORY, *lacks, "--collect-only", "-q").ended()
    assert "bench_cases/test_mnist_cnn.py::" in cases.output


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
LACKED = {"doctor": "nvidia-ml-py", "night": "torch numpy pytest pytest-benchmark nvidia-ml-py"}


def built(kind: str, tree: Path, target: Path) -> Path:
    answer = python_in(tree, "-c", BUILD.format(kind), target)
    assert answer.returncode == 0, answer.stderr
    return target / answer.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with what judging needs and the source distribution's wheel."""
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
    return ran(python.with_name("gpuscale"), *words, cwd=cwd, env={**own, **(variables or {})})


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
