"""Output that cannot carry −, ×, ± or → says the same in ASCII, whoever prints it."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from golden.inputs import Night, baseline_of, write_night
from measuring import REPOSITORY

from gpuscale.printable import SPELT_OUT
from gpuscale.store import write_baseline

POOR = {
    "told": {"PYTHONIOENCODING": "ascii"},
    "C locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


def given(
    folder: Path, *arguments: str, environment: dict[str, str]
) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-m", "gpuscale", *arguments],
        capture_output=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a baseline, and with a night that says all that has no ASCII."""
    folder = tmp_path_factory.mktemp("ascii")
    write_baseline(folder / "b.json", baseline_of(Night(job="1001", runs=6)))
    noisy = Night(job="2001", day=30, deviations={2: 0.05, 4: 0.2})
    write_night(folder / "night.jsonl", noisy)
    return folder


COMMANDS = (
    ("compare", "b.json", "night.jsonl", "--format", "markdown=out.md"),
    ("show", "night.jsonl"),
    ("history", "night.jsonl"),
    ("doctor",),
    ("run", "--gpus"),
)


@pytest.mark.parametrize("poor", POOR)
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda words: words[0])
def test_what_has_no_ascii_is_spelt_out(
    folder: Path, arguments: tuple[str, ...], poor: str
) -> None:
    rich = given(folder, *arguments, environment={"PYTHONIOENCODING": "utf-8"})
    plain = given(folder, *arguments, environment=POOR[poor])
    text = plain.stdout.decode("ascii") + plain.stderr.decode("ascii")
    said = (rich.stdout + rich.stderr).decode()
    assert plain.returncode == rich.returncode
    assert "Traceback" not in text
    assert "\\u" not in text
    assert len(text.splitlines()) == len(said.splitlines())


def test_tables_stay_as_wide_and_files_stay_as_they_are(folder: Path) -> None:
    compared = COMMANDS[0]
    written = []
    for environment in ({"PYTHONIOENCODING": "utf-8"}, *POOR.values()):
        given(folder, *compared, environment=environment)
        written.append((folder / "out.md").read_text(encoding="utf-8"))
    assert len(set(written)) == 1
    assert "−" in written[0]
    shown = [
        given(folder, "show", "night.jsonl", environment={"PYTHONIOENCODING": encoding})
        for encoding in ("utf-8", "ascii")
    ]
    tables = [each.stdout.decode().split("\n\n")[1] for each in shown]
    assert "±" in tables[0]
    assert "+-" in tables[1]
    assert [len(row) for row in tables[0].splitlines()] == [
        len(row) for row in tables[1].splitlines()
    ]


def test_what_is_of_the_users_keeps_its_letters_or_is_escaped() -> None:
    assert "Grüße, Ж ≠ 1".encode("ascii", SPELT_OUT) == rb"Gru\u00dfe, \u0416 != 1"


def test_every_sign_of_ours_has_its_spelling() -> None:
    for path in (REPOSITORY / "gpuscale").rglob("*.py"):
        texts = [
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        # A range of a regular expression ends with the last two, which are never shown.
        for sign in set("".join(texts)) - {"\\", "\ufffd", "\U00010000"}:
            if sign.isprintable() and not sign.isalpha():
                assert b"\\" not in sign.encode("ascii", SPELT_OUT), f"{sign!r} of {path}"
