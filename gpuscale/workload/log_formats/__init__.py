"""The formats of lines that training scripts print, in one table.

To add a format, add an entry to a module of this package. `LogFormat.read` turns a line returned by
`plain` into a `Mark`, or None if the line has another format. Carriage returns also end lines.
"""

import re
import shlex
from collections.abc import Mapping

from gpuscale.base.errors import UsageError
from gpuscale.workload.log_formats import frameworks, progress_bars, structured
from gpuscale.workload.log_formats.log_format import LogFormat, Mark, mark_of

__all__ = ["FORMATS", "LogFormat", "Mark", "Recognition", "by_regex", "plain"]

FORMATS: Mapping[str, LogFormat] = {
    one.name: one for one in (*structured.FORMATS, *frameworks.FORMATS, *progress_bars.FORMATS)
}
STEP_REGEX_GROUPS = ("step", "epoch", "samples", "loss")
STEP_REGEX_EXAMPLE = r"step (?P<step>\d+)"
LONGEST = 4000
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|\x08+")


def plain(line: str) -> str:
    """Return the beginning of a line, without colours, other escape sequences and backspaces.

    Lines that report steps are short, and patterns may take quadratic time on long lines.
    """
    line = line[:LONGEST]
    return ESCAPES.sub("", line) if "\x1b" in line or "\x08" in line else line


class Recognition:
    """Determines which log formats match the lines that a script prints."""

    def __init__(self) -> None:
        self._waiting = dict(FORMATS)
        self._known: set[str] = set()
        self._fitting: list[LogFormat] = []

    def take(self, line: str) -> None:
        """Examine the next line, as returned by `plain`."""
        for one in list(self._waiting.values()):
            if one.known_by and one.known_by in line:
                self._known.add(one.name)
            if one.known_by and one.name not in self._known:
                continue
            mark = one.read(line)
            if mark is not None and (mark.step is not None or mark.figure is not None):
                self._fitting.append(one)
                del self._waiting[one.name]

    @property
    def fitting(self) -> tuple[LogFormat, ...]:
        """Formats that fit the lines so far; of those, only the least generic ones."""
        least = min((one.generic for one in self._fitting), default=0)
        return tuple(one for one in self._fitting if one.generic == least)


def by_regex(pattern: str) -> LogFormat:
    """Return the format for a user's pattern (`--step-regex`); a single unnamed group is the step.

    Raise a UsageError if the pattern or a group is invalid. The format's `read` raises a UsageError
    if a group matches something that is not a number.
    """

    def refused(problem: object) -> UsageError:
        return UsageError(f"--step-regex {shlex.quote(pattern)}: {problem}")

    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise refused(error) from error
    groups = set(compiled.groupindex)
    is_bare = not groups and compiled.groups == 1
    if "step" not in groups and not is_bare:
        raise refused(f"has no group named step; for example --step-regex '{STEP_REGEX_EXAMPLE}'")
    if unknown := groups.difference(STEP_REGEX_GROUPS):
        known = ", ".join(STEP_REGEX_GROUPS)
        raise refused(f"there is no group {min(unknown)}; choose from {known}")

    def read(line: str) -> Mark | None:
        found = compiled.search(line)
        if found is None:
            return None
        told = {"step": found[1]} if is_bare else found.groupdict()
        try:
            return mark_of(told)
        except ValueError:
            taken = ", ".join(f"{name} '{text}'" for name, text in told.items())
            problem = f"takes {taken} from the line '{line}'"
            raise refused(f"{problem}, and step, epoch and samples must be whole numbers") from None

    return LogFormat(name="step-regex", project="your own", example="", read=read)
