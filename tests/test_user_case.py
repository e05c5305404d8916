"""A user's own case: the very text that the README shows, in a project of its own."""

import re
from pathlib import Path

import pytest
from measuring import REPOSITORY, Session, run_pytest

LONGEST = 15


def readme_case() -> str:
    """The README's example of a case."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (case,) = [block for block in blocks if "TrainingCase" in block]
    return case


def test_the_readmes_case_takes_at_most_fifteen_lines() -> None:
    lines = [line for line in readme_case().splitlines() if line.strip()]
    assert len(lines) <= LONGEST


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("project")
    (folder / "test_digits_mlp.py").write_text(readme_case())
    return run_pytest(
        folder, "--gpus", "1,2", "--runs", "1", "--device", "cpu", "--run-seconds", "0.1"
    )


def test_the_readmes_case_is_measured_as_it_stands(session: Session) -> None:
    assert session.exit_code == 0, session.output
    assert [run.gpus for run in session.results.runs] == [1, 2]
    assert all(run.is_valid for run in session.results.runs)


def test_a_case_in_a_package_with_importlib_mode_finds_its_module(tmp_path: Path) -> None:
    package = tmp_path / "our_cases"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "test_digits_mlp.py").write_text(readme_case())
    session = run_pytest(
        tmp_path,
        *("--import-mode", "importlib", "--gpus", "2", "--runs", "1", "--device", "cpu"),
        *("--run-seconds", "0.1"),
    )
    assert session.exit_code == 0, session.output
    assert session.results.runs[0].is_valid
