"""Output that cannot carry −, ×, ± or → says the same in ASCII, whoever prints it."""

import ast
import subprocess
from functools import cache
from pathlib import Path

import pytest
from builders.nights import Night, baseline_of, write_night
from command_line import REPOSITORY, python_in

from gpuscale.base.text import SPELT_OUT
from gpuscale.store.files import write_baseline

STREAMS = {
    "utf-8": {"PYTHONIOENCODING": "utf-8"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "C locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


@cache
def given(folder: Path, *arguments: str, stream: str) -> "subprocess.CompletedProcess[str]":
    return python_in(folder, "-m", "gpuscale", *arguments, **STREAMS[stream])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a baseline, and with a night that says all that has no ASCII."""
    folder = tmp_path_factory.mktemp("ascii")
    write_baseline(folder / "b.json", baseline_of(Night(job="1001", runs=6)))
    noisy = Night(job="2001", day=30, deviations={2: 0.05, 4: 0.2})
    write_night(folder / "night.jsonl", noisy)
    return folder


COMPARE = ("compare", "b.json", "night.jsonl")
SHOW = ("show", "night.jsonl")


@pytest.mark.parametrize(
    ("arguments", "stream"),
    [
        (COMPARE, "ascii"),
        (COMPARE, "C locale"),
        (SHOW, "ascii"),
        (("history", "night.jsonl"), "ascii"),
        (("doctor",), "ascii"),
        (("run", "--gpus"), "C locale"),
    ],
)
def test_missing_ascii_is_spelt_out(folder: Path, arguments: tuple[str, ...], stream: str) -> None:
    rich = given(folder, *arguments, stream="utf-8")
    plain = given(folder, *arguments, stream=stream)
    text = plain.stdout + plain.stderr
    assert (text.isascii(), plain.returncode) == (True, rich.returncode)
    assert "Traceback" not in text
    assert "\\u" not in text
    assert len(text.splitlines()) == len((rich.stdout + rich.stderr).splitlines())


def test_files_stay_as_they_are(folder: Path) -> None:
    given(folder, *COMPARE, "--format", "markdown=out.md", stream="C locale")
    assert "−" in (folder / "out.md").read_text(encoding="utf-8")


def test_letters_of_users_are_escaped() -> None:
    assert "Straße, Ж → 1".encode("ascii", SPELT_OUT) == rb"Stra\xdfe, \u0416 -> 1"


def test_every_sign_of_ours_has_its_spelling() -> None:
    for path in (REPOSITORY / "gpuscale").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        values = (node.value for node in nodes if isinstance(node, ast.Constant))
        texts = [value for value in values if isinstance(value, str)]
        # A range of a regular expression ends with the last two, which are never shown.
        for sign in set("".join(texts)) - {"\\", "\ufffd", "\U00010000"}:
            if sign.isprintable() and not sign.isalpha():
                assert b"\\" not in sign.encode("ascii", SPELT_OUT), f"{sign!r} of {path}"
