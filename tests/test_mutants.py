"""The groups of `make mutants` name code and tests that there are."""

import shlex
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "tests" / "mutants").glob("*.toml"))
GROUPS = [path for path in FILES if path.stem != "operators"]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.stem)
def test_what_is_changed_and_what_should_notice_are_there(group: Path) -> None:
    chosen = tomllib.loads(group.read_text())["cosmic-ray"]
    words = shlex.split(chosen["test-command"])
    tests = [word.partition("::") for word in words if word.startswith("tests/")]
    named = [*chosen["module-path"], *(file for file, _, _ in tests)]
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert [name for file, _, name in tests if f"def {name}" not in (ROOT / file).read_text()] == []
