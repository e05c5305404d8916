"""Find lines that count something but fit no log format, and suggest a pattern to read them."""

import re
from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import NamedTuple

from gpuscale.workload.log_formats import FORMATS, STEP_REGEX_EXAMPLE

_FEWEST_RISES = 20
_SHORTEST_S = 10.0
_FALLS_PER_RISE = 0.1
"""Maximum ratio of decreases to increases in a counter; measured values decrease about as often."""
_MOST_KINDS = 100
# Dates, times and decimals are one number each.
_NUMBER = re.compile(r"(?:(?<!\w)[-+])?\d+(?:[-.:,]\d+)*(?:[eE][-+]?\d+)?")
_ANY_NUMBER = r"[-+.,:\deE]+"
_MOST_DIGITS = 9
"""Maximum number of digits in a counter; a longer number may be a timestamp."""
# Seconds, shares and sizes grow too, but count no steps.
_NO_COUNTER_BEFORE = re.compile(r"[\w%]|\s(?:s|sec\w*|min\w*|[kMG]i?B|bytes)\b")
_STEP_WORDS = re.compile(r"(?:steps?|iter[a-z]*|it|batch)(?![a-z])", re.IGNORECASE)
_TRAINING_WORDS = re.compile(
    r"(?<![a-z])(?:steps?|iter\w*|it(?=[=:\s]*\d)|batch|loss)(?![a-z])", re.IGNORECASE
)
# Before the counter: a word right there, or one with a number in between.
_LAST_WORDS = (re.compile(r"[^\W\d_]+\W*$"), re.compile(r"[^\W\d_]+\W+\d+\W+$"))
_LONGEST_SHOWN = 100


class Counting(NamedTuple):
    """Lines of one kind that contain a growing number."""

    line: str
    """The latest line, shortened if long."""
    pattern: str
    """Pattern for `--step-regex` that captures the number; contains no single quotes."""
    of_training: bool
    """True if the line mentions steps or a loss; scripts also count other things as they start."""


class UnreadLines:
    """Search the lines of one script for a growing number."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, int, str], _Kind] = {}

    def take(self, source: str, text: str, arrived_s: float) -> None:
        """Examine the next line of a process, as returned by `plain`."""
        numbers = [*_NUMBER.finditer(text)]
        if not numbers:
            return
        name = (source, len(numbers), " ".join(_NUMBER.sub("#", text).split()))
        kind = self._kinds.pop(name, None) or _Kind(text, arrived_s, len(numbers))
        kind.add(text, arrived_s, numbers)
        # The latest kind is last.
        self._kinds[name] = kind
        if len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]

    @property
    def counting(self) -> Counting | None:
        """Lines that clearly count something, preferably training steps; None if there are none."""
        found = (counting for kind in self._kinds.values() for counting in kind.counting())
        return max(found, key=lambda counting: counting.of_training, default=None)

    def reason(self, format_name: str | None, last_line: str, *, has_batch: bool) -> str:
        """Explain why no step was found in the lines, and suggest a remedy."""
        if (counting := self.counting) is not None:
            reads_no = "no format knows" if format_name is None else f"{format_name} reads no"
            batch = "" if has_batch else ", and --batch N, the samples of a step on each GPU"
            return (
                f"{reads_no} lines like '{counting.line}'; give --step-regex '{counting.pattern}', "
                f"if that number counts steps{batch}"
            )
        if not last_line:
            return "it printed nothing, and its steps are timed by the lines that tell them"
        asked = format_name or f"none of the formats known ({', '.join(FORMATS)})"
        return (
            f"no line told a step: they fit {asked}, such as: {last_line}; give --step-regex, "
            f"such as '{STEP_REGEX_EXAMPLE}', or print lines of 'GPUSCALE {{\"step\": 10}}'"
        )


class _Kind:
    """Lines that differ only in their numbers."""

    def __init__(self, text: str, arrived_s: float, numbers: int) -> None:
        self._first = self._latest = text
        self._began_s = self._ended_s = arrived_s
        self._values: list[int | None] = [None] * numbers
        self._rises, self._falls = [0] * numbers, [0] * numbers

    def add(self, text: str, arrived_s: float, numbers: list[re.Match[str]]) -> None:
        self._latest, self._ended_s = text, arrived_s
        for place, number in enumerate(numbers):
            before, now = self._values[place], _count(number)
            if before is not None and now is not None:
                self._rises[place] += now > before
                self._falls[place] += now < before
            self._values[place] = now

    def counting(self) -> Iterator[Counting]:
        if self._ended_s - self._began_s < _SHORTEST_S:
            return
        growing = (
            place
            for place, (rises, falls) in enumerate(zip(self._rises, self._falls, strict=True))
            if rises >= _FEWEST_RISES and falls <= _FALLS_PER_RISE * rises
        )
        patterns = [pattern for place in growing if (pattern := self._pattern(place))]
        if patterns:
            pattern = next(filter(_STEP_WORDS.match, patterns), patterns[0])
            line = self._latest.strip()
            line = line if len(line) <= _LONGEST_SHOWN else f"{line[:_LONGEST_SHOWN]}…"
            yield Counting(line, pattern, _TRAINING_WORDS.search(line) is not None)

    def _pattern(self, place: int) -> str | None:
        """Return the shortest pattern that finds the counter in the first and the latest line."""
        texts = (self._first, self._latest)
        begins = [[*_NUMBER.finditer(text)][place].start() for text in texts]
        before = self._first[: begins[0]]
        words = [word[0] for last in _LAST_WORDS if (word := last.search(before))]
        for start in (*map(_literal, words), rf"^\s*{_literal(before.lstrip())}"):
            pattern = rf"{start}(?P<step>\d+)"
            found = [re.search(pattern, text) for text in texts]
            if [match and match.start("step") for match in found] == begins:
                return pattern
        return None


def _count(number: re.Match[str]) -> int | None:
    """Return the matched number if it is whole and may be a counter; else None."""
    is_other = _NO_COUNTER_BEFORE.match(number.string, number.end())
    is_count = number[0].isdecimal() and len(number[0]) <= _MOST_DIGITS and not is_other
    return int(number[0]) if is_count else None


def _literal(text: str) -> str:
    """Return a pattern that matches the text with any other numbers in place of its own."""
    numbers = [r"\d+" if number.isdecimal() else _ANY_NUMBER for number in _NUMBER.findall(text)]
    between = (re.sub(r"([][\\.^$*+?{}()|])", r"\\\1", part) for part in _NUMBER.split(text))
    pattern = "".join(chain.from_iterable(zip_longest(between, numbers, fillvalue="")))
    return re.sub(r"\s{2,}", r"\\s*", pattern.replace("'", "."))
