"""Formats of the lines that training scripts print, and detection of a script's format.

To add a format, add its pattern to `_PATTERNS`, and a line that a real script printed to `EXAMPLES`
in tests/test_step_log_formats.py. A carriage return also ends a line.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gpuscale.base.errors import UsageError
from gpuscale.workload.step_report import PREFIX

NUMBER = r"[-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?|(?i:nan|inf(?:inity)?)\b)"
STEP_REGEX_GROUPS = ("step", "epoch", "samples", "loss")
LONGEST = 4000
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|\x08+")
EPOCH = re.compile(r"\bepoch[\s:=\[#]*(\d+)", re.IGNORECASE)
HF_LOSS = re.compile(rf"\{{'loss': '?(?P<loss>{NUMBER})")
# Percentage, counter, elapsed and remaining time, rate; the bar itself may be missing (ncols=0),
# and so may the total, the remaining time or the rate.
TQDM = re.compile(
    r"(?:\d+%(?:\|[^|]*\|)? *(?P<step>\d+)/(?P<total>\d+) \[[\d:]+<[\d:?]+"
    r"|\b(?P<count>\d+)it \[[\d:]+)"
    r"(?:, *[\d.?]+ ?(?:s/)?(?P<unit>[A-Za-z]+))?"
)
TQDM_STEPS = frozenset({"it", "its", "iter", "iters", "batch", "batches", "ba", "step", "steps"})
VALIDATING = re.compile(r"\b(?:valid|val\b|sanity|test|eval)", re.IGNORECASE)
PREPARING = re.compile(
    r"\b(?:predict|infer|download|load|fetch|read|writ|sav|map\b|filter|tokeniz|generat|process|"
    r"preproc|extract|cach|collat)",
    re.IGNORECASE,
)
LOSS = re.compile(rf"\b(?:train_)?loss[=:] ?(?P<loss>{NUMBER})")


class Mark(msgspec.Struct, frozen=True):
    """Values that one line of a log reports; fields that it does not report are None."""

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


class LogFormat(msgspec.Struct, frozen=True, kw_only=True):
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
    """Parse a whole number such as `1,000` (None stays None); raise a ValueError if invalid."""
    return None if text is None else int(text.replace(",", ""))


VALIDATION = Mark(validated=True)


def reader(pattern: str) -> Callable[[str], Mark | None]:
    """Return a function that parses a line by a regular expression with groups such as `step`."""
    search = re.compile(pattern).search

    def read(line: str) -> Mark | None:
        found = search(line)
        return found and mark_of(found.groupdict())

    return read


def mark_of(groups: dict[str, str | None]) -> Mark:
    """Convert the named groups of a match to a `Mark`; raise a ValueError if a count is invalid."""
    return Mark(
        step=whole(groups.get("step")),
        epoch=whole(groups.get("epoch")),
        total_steps=whole(groups.get("total")),
        samples_per_step=whole(groups.get("samples")),
        samples_per_s=number(groups.get("rate")),
        loss=number(groups.get("loss")),
        validated=groups.get("validated") is not None,
    )


class Reported(msgspec.Struct, frozen=True):
    """Content of the JSON object after `GPUSCALE` in a line printed by `gpuscale.report`."""

    step: int
    samples: int | None = None
    """Samples per step over all ranks."""
    epoch: int | None = None
    loss: float | str | None = None
    """Loss, as text if JSON cannot represent the number: `"nan"`, `"inf"`."""


def read_reported(line: str) -> Mark | None:
    """Parse a line printed by `gpuscale.report`; return None for any other line."""
    if (start := line.find(f"{PREFIX}{{")) < 0:
        return None
    try:
        state = msgspec.json.decode(line[start + len(PREFIX) :], type=Reported)
    except msgspec.DecodeError:
        return None
    return Mark(state.step, state.epoch, samples_per_step=state.samples, loss=number(state.loss))


def read_tqdm(line: str) -> Mark | None:
    """Parse a tqdm bar that counts steps, or Hugging Face Trainer's metrics; else return None."""
    bar = TQDM.search(line) if " [" in line and ("<" in line or "it [" in line) else None
    if bar is None:
        if "'eval_loss'" in line or "'eval_runtime'" in line:
            return VALIDATION
        found = HF_LOSS.search(line)
        return found and mark_of(found.groupdict())
    if (bar["unit"] or "it") not in TQDM_STEPS:
        return None
    description = line[: bar.start()]
    if VALIDATING.search(description):
        return VALIDATION
    if PREPARING.search(description):
        return None
    epoch = EPOCH.search(description)
    loss = LOSS.search(line, bar.end())
    return Mark(
        step=whole(bar["step"] or bar["count"]),
        epoch=epoch and int(epoch[1]),
        total_steps=whole(bar["total"]),
        loss=loss and number(loss["loss"]),
    )


_LOSS = rf"\bloss[\s:=]*(?P<loss>{NUMBER})"
_REPORT = rf".{{0,80}}?(?:{_LOSS}|\d ?(?:[mu]?s|sec(?:onds?)?)\b|/(?:s|sec|step)\b)"
_EPOCH = r"\bepoch[\s:=\[#]*(?P<epoch>\d+)\b"
_IN_BRACKETS = r"\[ *(?P<step>\d+) */ *(?P<total>\d+)\]"
_ITERATIONS = r"(?:it|iter|iteration|batch|step)(?:e?s)?"
STEP_LINES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # A batch without a total is often a batch size.
        rf"(?:{_EPOCH}.{{0,40}}?)?\b(?:step|iter(?:ation)?|batch(?=[\s:=\[#]*\d+ */ *\d))[\s:=\[#]*"
        rf"(?P<step>\d+)\b(?: */ *(?P<total>\d+))?{_REPORT}",
        rf"\[(?P<epoch>\d+)(?: */ *\d+)?\]{_IN_BRACKETS}{_REPORT}",
        # Without an epoch in brackets, only a rate rules out that it counts epochs or samples.
        rf"(?:{_EPOCH}[^\[]{{0,40}})?{_IN_BRACKETS}"
        rf"(?=.{{0,120}}\d ?(?:{_ITERATIONS}/s|m?s/{_ITERATIONS})\b)(?:.{{0,80}}?{_LOSS})?",
    )
)


def read_step_line(line: str) -> Mark | None:
    """Parse a line with a step number and then a loss, time or rate; None for any other line."""
    found = next(filter(None, (pattern.search(line) for pattern in STEP_LINES)), None)
    if found is None:
        return None
    return VALIDATION if VALIDATING.search(line) else mark_of(found.groupdict())


_PATTERNS = {
    "imagenet": (
        r"Epoch: ?\[(?P<epoch>\d+)\]\[ *(?P<step>\d+)/(?P<total>\d+)\]\s+"
        rf"Time:? +[\d.]+(?:.*?\bLoss:?\s+(?P<loss>{NUMBER}))?"
    ),
    "timm": (
        r"Train: (?P<epoch>\d+) \[ *(?P<step>\d+)/(?P<total>\d+) \([^)]*\)\]"
        rf"(?:.*?\bLoss: +(?P<loss>{NUMBER}))?"
        r"(?:.*?\bTime: [\d.]+s, +(?P<rate>[\d.]+)/s)?"
    ),
    "torchvision": (
        r"Epoch: \[(?P<epoch>\d+)\]\s+\[ *(?P<step>\d+)/(?P<total>\d+)\]\s+eta:"
        rf"(?:.*?\bloss: +(?P<loss>{NUMBER}))?"
    ),
    "megatron": (
        r"(?P<validated>validation loss at iteration )|"
        r"\biteration +(?P<step>\d+)/ *(?P<total>\d+) \|"
        r".*?elapsed time per iteration \(ms\): *[\d.]+"
        r"(?:.*?\| *global batch size: *(?P<samples>\d+))?"
        rf"(?:.*?\| *(?:[a-z]+ )?loss: *(?P<loss>{NUMBER}))?"
    ),
    "deepspeed": (
        r"\bepoch=(?P<epoch>\d+)/micro_step=\d+/global_step=(?P<step>\d+), "
        r"RunningAvgSamplesPerSec=[^,]*, CurrSamplesPerSec=(?P<rate>[\d.]+)"
    ),
}
FORMATS: Mapping[str, LogFormat] = {
    **{name: LogFormat(name=name, read=reader(pattern)) for name, pattern in _PATTERNS.items()},
    "gpuscale": LogFormat(name="gpuscale", read=read_reported),
    "tqdm": LogFormat(name="tqdm", read=read_tqdm, generic=1),
    "step": LogFormat(name="step", read=read_step_line, generic=2),
}


class Recognition:
    """Detector of the log formats that match the lines of one script."""

    def __init__(self) -> None:
        self._fitting: dict[str, LogFormat] = {}

    def take(self, line: str) -> None:
        """Examine the next line, as returned by `plain`."""
        for name, one in FORMATS.items():
            mark = None if name in self._fitting else one.read(line)
            if mark is not None and mark.step is not None:
                self._fitting[name] = one

    @property
    def fitting(self) -> tuple[LogFormat, ...]:
        """The most specific of the formats that have matched a line so far."""
        found = self._fitting.values()
        least = min((one.generic for one in found), default=0)
        return tuple(one for one in found if one.generic == least)


def by_regex(pattern: str) -> LogFormat:
    """Return the format for a user's pattern (`--step-regex`); a single unnamed group is the step.

    Raise a UsageError if the pattern or a group is invalid. The format's `read` raises a UsageError
    if a step, epoch or number of samples is not a whole number.
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
        if (found := compiled.search(line)) is None:
            return None
        values = {"step": found[1]} if is_bare else found.groupdict()
        try:
            return mark_of(values)
        except ValueError:
            taken = ", ".join(f"{name} '{text}'" for name, text in values.items())
            problem = f"takes {taken} from the line '{line}'"
            raise refused(f"{problem}, and step, epoch and samples must be whole numbers") from None

    return LogFormat(name="step-regex", read=read)
