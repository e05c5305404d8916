"""Classes that describe log formats, and functions that parse the lines of logs."""

import re
import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuscale.base.errors import UsageError
from gpuscale.base.text import counted, visible

NUMBER = r"[-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?|(?i:nan|inf(?:inity)?)\b)"
STEP_REGEX_GROUPS = ("step", "epoch", "samples", "loss")
LONGEST = 4000
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|\x08+")
_STEP_WORD = r"(?<![a-z])(?:steps?|iter[a-z]*|it|batch)(?![a-z])"
_OF_TRAINING = re.compile(
    rf"(?:{_STEP_WORD}|(?<![a-z])(?:loss|epoch|acc(?:uracy)?|lr|ppl|perplexity|ce|nll|seen))\W*\d",
    re.IGNORECASE,
)
_COUNTER = re.compile(rf"{_STEP_WORD}\W*\d", re.IGNORECASE)
_TOTAL = re.compile(r"\d+/\d+")
EPOCH = re.compile(r"\bepoch[\s:=\[#]*(\d+)", re.IGNORECASE)
HF_LOSS = re.compile(rf"\{{'loss': '?(?P<loss>{NUMBER})")
_WHOLE = re.compile(r"(?<![\d.,])(?<!\d[:-])\d+(?![.,]?\d)(?![:-]\d)")
"""Pattern of a whole number that is not part of a decimal number, time or date."""
_OWN_LINES = "print lines of 'GPUSCALE {\"step\": 10}' at each step"
_FEWEST_ALIKE = 20
_MOST_KINDS = 1000
_SHORTEST_S = 10.0
_LONGEST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Mark:
    """Values reported by one line; fields that the line does not report are None."""

    step: int | None = None
    """Value of the step counter; None if the line reports something else."""
    epoch: int | None = None
    total_steps: int | None = None
    """Last value that the step counter will reach, which tells loops and progress bars apart."""
    samples_per_step: int | None = None
    """Samples per step over all ranks."""
    samples_per_s: float | None = None
    loss: float | None = None
    validated: bool = False
    """True if the line shows that a validation took place: before this line if it reports a step,
    otherwise around the time of this line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """A log format, with the function that parses its lines."""

    name: str
    read: Callable[[str], Mark | None]
    """Function that parses a line returned by `plain`; it returns None for any other format."""
    generic: int = 0
    """0 for a specific format; a format is used only if no format with a lower value matches."""


def plain(line: str) -> str:
    """Return the beginning of a line, without terminal escape sequences and backspaces.

    Lines that report steps are short, and patterns may take quadratic time on long lines.
    """
    line = line[:LONGEST]
    return ESCAPES.sub("", line) if "\x1b" in line or "\x08" in line else line


def number(value: Any) -> float | None:
    """Parse a number from JSON or text (thousands separators are allowed); None if invalid."""
    try:
        return float(value.replace(",", "").rstrip(".") if isinstance(value, str) else value)
    except (TypeError, ValueError, OverflowError):
        return None


def whole(text: str | None) -> int | None:
    """Parse a whole number such as `1,000`; return None for None; raise a ValueError if invalid."""
    return None if text is None else int(text.replace(",", ""))


VALIDATION = Mark(validated=True)


def reader(pattern: str) -> Callable[[str], Mark | None]:
    """Return a function that reads lines by a pattern with groups such as `step` and `loss`."""
    search = re.compile(pattern).search

    def read(line: str) -> Mark | None:
        found = search(line)
        return found and mark_of(found.groupdict())

    return read


def mark_of(groups: dict[str, str | None]) -> Mark:
    """Convert the named groups of a match to a mark; raise a ValueError if a count is invalid."""
    return Mark(
        step=whole(groups.get("step")),
        epoch=whole(groups.get("epoch")),
        total_steps=whole(groups.get("total")),
        samples_per_step=whole(groups.get("samples")),
        samples_per_s=number(groups.get("rate")),
        loss=number(groups.get("loss")),
        validated=groups.get("validated") is not None,
    )


def by_regex(pattern: str) -> LogFormat:
    """Return the format for a user's pattern (`--step-regex`); a single unnamed group is the step.

    Raise a UsageError if the pattern or a group is invalid. The format's `read` raises a UsageError
    if a step, epoch or count is not a whole number.
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
        raise refused(r"has no group named step; for example --step-regex 'step (?P<step>\d+)'")
    if unknown := groups.difference(STEP_REGEX_GROUPS):
        known = ", ".join(STEP_REGEX_GROUPS)
        raise refused(f"there is no group {min(unknown)}; choose from {known}")

    def read(line: str) -> Mark | None:
        found = compiled.search(line)
        if found is None:
            return None
        values = {"step": found[1]} if is_bare else found.groupdict()
        try:
            return mark_of(values)
        except ValueError:
            taken = ", ".join(f"{name} '{text}'" for name, text in values.items())
            problem = f"takes {taken} from the line '{line}'"
            raise refused(f"{problem}, and step, epoch and samples must be whole numbers") from None

    return LogFormat(name="step-regex", read=read)


@dataclass(slots=True)
class _Kind:
    """Lines with the same words, which differ only in numbers and punctuation."""

    first_s: float
    is_training: bool
    """True if the lines have a word that only training prints."""
    count: int = 0
    latest: str = ""
    rises: Counter[int] = field(default_factory=Counter)
    """How often each whole number rose from a line to the next, keyed by its place among them."""

    def take(self, line: str) -> None:
        """Count a line, and the numbers in it that are higher than in the line before."""
        both = zip(_WHOLE.findall(self.latest), _WHOLE.findall(line), strict=False)
        self.rises.update(place for place, (old, new) in enumerate(both) if int(new) > int(old))
        self.count += 1
        self.latest = line

    @property
    def counter(self) -> str:
        """A pattern for the number that rose most often, after a step word if any; '' if none."""
        named = {found.end() - 1 for found in _COUNTER.finditer(self.latest)}
        starts = [number.start() for number in _WHOLE.finditer(self.latest)]
        risen = [(at in named, self.rises[n], -at) for n, at in enumerate(starts) if self.rises[n]]
        return _pattern(self.latest, -max(risen)[-1]) if risen else ""


class UnreadLines:
    """Detector of lines that a script probably prints at each step, in an unknown format."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self.are_training = False
        """True once lines that only training prints have recurred often and for long enough."""
        self.count = 0
        self._last = ""

    def take(self, line: str, arrived_s: float) -> None:
        """Examine the next line, as returned by `plain`."""
        self.count += 1
        self._last = " ".join(line.split())[:_LONGEST_SHOWN] or self._last
        is_training = _OF_TRAINING.search(line) is not None
        if not is_training and len(self._kinds) >= _MOST_KINDS:
            return
        words = re.sub(r"[^A-Za-z]+", " ", line)
        kind = self._kinds.setdefault(words, _Kind(arrived_s, is_training))
        kind.take(line.strip())
        is_frequent = kind.count >= _FEWEST_ALIKE and arrived_s - kind.first_s >= _SHORTEST_S
        self.are_training |= is_frequent and kind.is_training

    @property
    def notice(self) -> str:
        """The number of lines and the last one, for a user who waits for the first step."""
        read = f"no step read in {counted(self.count, 'line')} (--step-regex?)"
        return f"{read}; last: {visible(self._last)}"

    def reason(self, format_name: str | None) -> str:
        """Explain why no step was found in the lines, and suggest a remedy."""
        if not self._last:
            return f"it printed nothing to time its steps by; {_OWN_LINES}"
        shown = max(
            reversed(self._kinds.values()),
            key=lambda kind: (kind.is_training and kind.count > 1, bool(kind.latest), kind.count),
        )
        reads = f"{format_name} does not read" if format_name else "no format known reads"
        line = shown.latest[:_LONGEST_SHOWN]
        return f"{reads} a step in lines such as: {line}; {_remedy(shown)}"


def _remedy(kind: _Kind) -> str:
    own = f"{_OWN_LINES}, or judge a figure that it prints, by --figure"
    if HF_LOSS.search(kind.latest):
        return f"keep the bar of Hugging Face's Trainer (no disable_tqdm=True), or {own}"
    if pattern := kind.counter:
        return f"if that counts steps, give --step-regex '{pattern}', else {own}"
    return own


def _pattern(line: str, at: int) -> str:
    """Return the shortest regex that finds the number at `at` by the words before it, or ''.

    All other numbers may vary, even the total in `219/500`, which may depend on the number of
    ranks. The regex begins at the line's epoch if there is one, else at the word nearest to it.
    """
    starts = [found.start() for found in re.finditer(r"\S+", line[:at])][::-1]
    named = [begin for begin in starts if re.fullmatch(r"\D*[^\W\d_]\D*", line[begin:at])]
    epoch = EPOCH.search(line, 0, at)
    starts = [*([epoch.start()] if epoch else []), *named, *starts, at]
    total = r"/\d+" if _TOTAL.match(line, at) else ""
    for begin in starts:
        before = _escaped(line[begin:at]) or r"^\s*"
        if epoch and begin == epoch.start():
            parts = line[begin : epoch.start(1)], line[epoch.end(1) : at]
            before = r"(?P<epoch>\d+)".join(map(_escaped, parts))
        pattern = rf"{before}(?P<step>\d+){total}"
        if (found := re.search(pattern, line)) and found.start("step") == at:
            return pattern
    return ""


def _escaped(text: str) -> str:
    """Return a regex, safe within single quotes, for a text with any blanks and numbers."""
    pattern = re.sub(r"(\\ )+", r"\\s*", re.escape(text)).replace("'", ".")
    return re.sub(r"\d+", r"\\d+", pattern)
