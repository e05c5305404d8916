"""The `gpuscale` command as a user types it, and Python in processes of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from gpuscale.cli import main

REPOSITORY = Path(__file__).parent.parent
ARC4 = REPOSITORY / "baselines" / "arc4.json"
TWO_CPU_RANKS = Path(__file__).parent / "data" / "two_cpu_ranks.jsonl"


def gpuscale(
    *arguments: object, cwd: Path | None = None, variables: Mapping[str, str] | None = None
) -> "CompletedProcess[str]":
    """Run the command in this process, which has imported it already, without a terminal."""
    words, out, err = [str(argument) for argument in arguments], StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(cwd or Path.cwd())
        for name, value in (variables or {}).items():
            patch.setenv(name, value)
        try:
            code = int(main(words))
        except SystemExit as ended:
            code = int(ended.code or 0)
    return CompletedProcess(words, code, out.getvalue(), err.getvalue())


def ran(*words: object, **more: Any) -> "CompletedProcess[str]":
    """Run a program to its end, however it ends; `more` is for `subprocess.run`."""
    command = [str(word) for word in words]
    answer: CompletedProcess[str]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    return answer


def python(*arguments: object, **variables: str) -> "CompletedProcess[str]":
    return python_in(Path.cwd(), *arguments, **variables)


def python_in(folder: Path, *arguments: object, **variables: str) -> "CompletedProcess[str]":
    """Run Python in a process and a folder of its own, with further variables."""
    return ran(sys.executable, *arguments, cwd=folder, env={**os.environ, **variables})


def refusal(
    *arguments: object, cwd: Path | None = None, variables: Mapping[str, str] | None = None
) -> str:
    """The one line by which the command says, with the exit code 2, what it does not do."""
    answer = gpuscale(*arguments, cwd=cwd, variables=variables)
    assert answer.returncode == 2, answer.stdout
    (line,) = answer.stderr.splitlines()
    return line
