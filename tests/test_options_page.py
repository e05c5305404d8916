"""docs/options.md is true: it has every option of the plugin with its default, and no other."""

import re
from pathlib import Path
from typing import Any

import pytest

from gpuscale.plugin import pytest_addoption
from gpuscale.plugin.options import DEFAULT_TIMEOUT_S
from gpuscale.run_defaults import PACINGS

PAGE = (Path(__file__).parent.parent / "docs" / "options.md").read_text(encoding="utf-8")


class NotedOptions:
    """In pytest's place, takes down which options are declared."""

    def __init__(self) -> None:
        self.defaults: dict[str, object] = {}

    def getgroup(self, name: str, description: str) -> "NotedOptions":
        return self

    def addoption(self, name: str, **settings: Any) -> None:
        self.defaults[name] = settings.get("default")


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The options and their defaults where pytest-timeout is not installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    parser = NotedOptions()
    pytest_addoption(parser)  # type: ignore[arg-type]
    return parser.defaults


def documented() -> dict[str, str]:
    """The default of each option as the page has it."""
    rows = re.findall(r"^\| `(--[\w-]+)[^|]*\|[^|]*\|([^|]*)\|$", PAGE, re.MULTILINE)
    return {option: default.strip() for option, default in rows}


def test_every_option_has_a_row_and_every_row_an_option(declared: dict[str, object]) -> None:
    assert documented().keys() == declared.keys()


def test_the_defaults_are_those_of_the_code(declared: dict[str, object]) -> None:
    shown = documented()
    for option, default in declared.items():
        if default is not None:
            assert str(default) in shown[option]
    gpus, cpus = PACINGS["cuda"].run_seconds, PACINGS["cpu"].run_seconds
    assert shown["--run-seconds"] == f"{gpus:g} on GPUs, {cpus:g} on CPU ranks"
    assert shown["--timeout"] == f"{DEFAULT_TIMEOUT_S:g}"
