"""`Option`, an option that gpuscale adds to pytest, and functions that parse option values."""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuscale.base.errors import UsageError
from gpuscale.base.text import no_such, parse_count


def parse_counts(text: str) -> tuple[int, ...]:
    """Parse and sort counts such as `1,2,4`; raise ArgumentTypeError if invalid or duplicate."""
    numbers = [parse_count(part) for part in text.split(",")]
    if len(set(numbers)) < len(numbers):
        raise ArgumentTypeError(f"{text} has a number twice; name each once, such as 1,2,4")
    return tuple(sorted(numbers))


def parse_seconds(text: str) -> float:
    """Parse a finite duration above 0, in seconds; raise ArgumentTypeError for other text."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ArgumentTypeError(f"'{text}' is not a number of seconds above 0, such as 60")
    return number


def one_of(*known: str) -> Callable[[str], str]:
    """Return a parser that accepts only `known` values, and raises ArgumentTypeError for others."""

    def parse(text: str) -> str:
        if text not in known:
            raise ArgumentTypeError(no_such(text, known))
        return text

    return parse


def absolute_path(text: str) -> Path:
    """Parse a path and make it absolute, because pytest may change its working directory later."""
    return Path(text).expanduser().absolute()


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option that gpuscale adds to pytest; docs/options.md describes it in more detail."""

    flag: str
    metavar: str
    """Name of the value in the help; empty for a switch."""
    meaning: str
    type: Callable[[str], object] = str
    """Function that parses the value, or raises an `ArgumentTypeError`."""
    default: object = None
    """Default value; None if it depends on other options, a tuple if the option may be repeated."""
    otherwise: str = ""
    """Description of the default, needed if its value alone would be unclear."""
    owner: str = ""
    """Package of a pytest plugin with the same option; if installed, that option is used."""
    in_training: bool = False
    """True if the option changes how gpuscale trains a case, so it does not apply to commands."""

    @property
    def dest(self) -> str:
        """Name of the attribute in which argparse stores the value."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def default_text(self) -> str:
        """Description of the default in the help and docs/options.md."""
        return self.otherwise or (f"{self.default}" if self.metavar else "off")

    def settings(self) -> dict[str, Any]:
        """Return keyword arguments for `add_argument`; the value is parsed later, by `parse`."""
        text = f"{self.meaning} (default: {self.default_text})".replace("%", "%%")
        if not self.metavar:
            return {"action": "store_true", "help": text}
        action = "append" if isinstance(self.default, tuple) else "store"
        return {"action": action, "metavar": self.metavar, "help": text}

    def parse(self, given: object) -> object:
        """Parse a string, a list of strings, or True for a switch; raise UsageError if invalid."""
        if isinstance(given, list):
            return tuple(map(self.parse, given))
        if not self.metavar:
            return True
        try:
            return self.type(str(given))
        except ArgumentTypeError as error:
            raise UsageError(f"{self.flag}: {error}") from None


def words_for_pytest(options: Iterable[Option], given: Mapping[str, object]) -> list[str]:
    """Return pytest arguments for these options, with the values collected by argparse."""
    values = ((option.flag, given[option.dest]) for option in options)
    return [flag if value is True else f"{flag}={value}" for flag, value in values if value]


def option(usage: str, meaning: str, *, default: object = None, **settings: Any) -> Any:
    """Return a `MeasureOptions` field for an option with `usage`, such as `--run-seconds S`."""
    flag, _, metavar = usage.partition(" ")
    default = default if metavar else False
    entry = Option(flag=flag, metavar=metavar, meaning=meaning, default=default, **settings)
    return field(default=default, metadata={"option": entry})
