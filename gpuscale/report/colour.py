"""Colour for terminals, and only for them."""

import os
from typing import TextIO

from gpuscale.records import Verdict

_RESET = "\033[0m"
_BOLD = "\033[1m"
_BY_VERDICT = {
    Verdict.OK: "\033[32m",
    Verdict.CONSISTENT: "\033[32m",
    Verdict.IMPROVED: "\033[32m",
    Verdict.REGRESSED: "\033[1;31m",
    Verdict.INCONSISTENT: "\033[1;31m",
    Verdict.INCONCLUSIVE: "\033[33m",
    Verdict.INCOMPARABLE: "\033[33m",
    Verdict.MISSING: "\033[33m",
}


def wants_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal whose user has not set NO_COLOR (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Palette:
    """Colours, or none."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    def verdict(self, verdict: Verdict, text: str) -> str:
        """The text in the verdict's colour."""
        return f"{_BY_VERDICT[verdict]}{text}{_RESET}" if self._colour else text

    def bold(self, text: str) -> str:
        """The text in bold."""
        return f"{_BOLD}{text}{_RESET}" if self._colour else text
