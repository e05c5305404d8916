"""What `make setup` installs: the versions that the tests were run with, and on demand others."""

import re
import shutil
import subprocess
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from ci_checkout import REPOSITORY, write_program
from measuring import run_pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    command = ["make", *words]
    subprocess.run(command, cwd=checkout, env=variables, check=True, capture_output=True)


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
    command = ["make", "bench", "PYTHON=./python", "CASES=mnist gpt"]
    answer = subprocess.run(command, cwd=checkout, check=False, capture_output=True, text=True)
    assert answer.returncode == 2
    assert "there is no case mnist; choose from all gpt mnist_cnn " in answer.stderr
    # Nothing was installed for it.
    assert not (checkout / "calls").exists()


def test_without_tools_of_developers_a_mistyped_case_is_not_found(tmp_path: Path) -> None:
    write_program(tmp_path / "hypothesis.py", 'raise ModuleNotFoundError("as after make bench")')
    path = "bench_cases/test_mnist.py"
    session = run_pytest(REPOSITORY, path, "--gpus", "1", PYTHONPATH=str(tmp_path))
    assert f"file or directory not found: {path}" in session.output
    assert "hypothesis" not in session.output
    words = ("--gpus", "1", "--collect-only", "-q")
    cases = run_pytest(REPOSITORY, *words, PYTHONPATH=str(tmp_path)).ended()
    assert "bench_cases/test_mnist_cnn.py::" in cases.output
