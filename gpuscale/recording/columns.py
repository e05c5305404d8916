"""What the columns of a table kept by hand mean, and what their cells say."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpuscale.encoding import converted
from gpuscale.errors import DecodeError
from gpuscale.printable import shown
from gpuscale.records.record import SamplesPerSecond, Seconds

Meaning = Literal[
    "gpus",
    "time",
    "throughput",
    "case",
    "strategy",
    "batch_per_gpu",
    "global_batch",
    "nodes",
    "runs",
    "note",
    "derived",
]
HEADERS: Mapping[Meaning, tuple[str, ...]] = {
    "gpus": ("gpus", "gpu", "n", "n gpus", "number of gpus", "# gpus", "#gpus", "devices", "ranks"),
    "time": (
        *("time", "t", "t(n)", "wall clock", "wall time", "walltime", "runtime", "run time"),
        *("elapsed", "duration", "training time", "epoch time", "seconds", "minutes", "hours"),
    ),
    "throughput": (
        *("throughput", "samples/s", "samples/sec", "samples per s", "samples per second"),
        *("images/s", "images/sec", "images per second", "img/s"),
    ),
    "case": ("case", "model", "workload"),
    "strategy": ("strategy",),
    "batch_per_gpu": ("batch per gpu", "batch/gpu", "local batch", "batch", "batch size"),
    "global_batch": ("global batch", "global batch size", "total batch"),
    "nodes": ("nodes", "n nodes", "number of nodes", "# nodes", "#nodes"),
    "runs": ("runs", "n runs", "number of runs", "repetitions"),
    "note": ("note", "notes", "comment", "remark"),
    "derived": (
        *("speedup", "speed-up", "s(n)", "efficiency", "e(n)", "parallel efficiency"),
        *("scaling efficiency", "ideal"),
    ),
}
"""How a header may be written; case, underscores and the unit behind it do not matter."""
_MEANINGS = {name: meaning for meaning, names in HEADERS.items() for name in names}
_SECONDS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
}
_UNIT = re.compile(r"(.+?)\s*(?:[(\[]\s*(?:in )?([^()\[\]]+?)\s*[)\]]|(?<=[ ])(\w+))")
_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+"
_WHOLE = re.compile(r"\d{1,15}")
_PLAIN = re.compile(_NUMBER)
_CLOCK = re.compile(r"(?:(\d{1,6}):)?(\d{1,6}):(\d{1,2}(?:\.\d*)?)")
_WITH_UNITS = re.compile(rf"(?:(?:{_NUMBER})\s*[a-z]+\s*)+")
_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)")
_LONGEST_HEADER = 80
_SEVERAL = re.compile(r";\s*|,\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    position: int
    header: str
    """As it is written."""
    meaning: Meaning
    seconds: float = 1.0
    """How many of them one unit of a time is."""


def column_of(position: int, header: str) -> Column | None:
    """The column under a header; None where the header is not known.

    Raises:
        DecodeError: a unit that the quantity is not measured in.
    """
    name = re.sub(r"[\s_]+", " ", header.strip().lower())
    if name in _MEANINGS:
        seconds = _SECONDS.get(name, 1.0)
        return Column(position=position, header=header, meaning=_MEANINGS[name], seconds=seconds)
    found = _UNIT.fullmatch(name[:_LONGEST_HEADER])
    meaning = None if found is None else _MEANINGS.get(found[1])
    if found is None or meaning is None:
        return None
    unit = found[2] or found[3]
    if meaning == "time" and unit in _SECONDS:
        return Column(position=position, header=header, meaning=meaning, seconds=_SECONDS[unit])
    if meaning == "throughput" and _MEANINGS.get(unit) == "throughput":
        return Column(position=position, header=header, meaning=meaning)
    if meaning in ("time", "throughput"):
        known = "s, min, h or ms" if meaning == "time" else "samples/s or images/s"
        raise DecodeError(f"column '{header}'", f"the unit {shown(unit)} is not {known}")
    return None


def whole(text: str, bounds: Any) -> int:
    """The whole number in a cell, within the bounds of an annotated type.

    Raises:
        DecodeError: it is none, or out of bounds.
    """
    if _WHOLE.fullmatch(text) is None:
        raise DecodeError("", f"expected a whole number, found {shown(text)}")
    return int(converted(bounds, int(text)))


def rate(text: str) -> float:
    """The throughput in a cell, in samples per second.

    Raises:
        DecodeError: it is no number, or out of bounds.
    """
    if _PLAIN.fullmatch(text.lower()) is None:
        raise DecodeError("", f"expected a number such as 1520.5, found {shown(text)}")
    return float(converted(SamplesPerSecond, float(text)))


def times_s(text: str, seconds: float) -> tuple[float, ...]:
    """The times in a cell, in seconds: one, or repetitions between `;` or `, `.

    Args:
        text: Each as `145`, `2:25`, `5:42:11.9` or `2 min 25 s`.
        seconds: How many one unit of a plain number is.

    Raises:
        DecodeError: something else, or a time out of bounds.
    """
    found = tuple(_time_s(part.strip().lower(), seconds) for part in _SEVERAL.split(text))
    return converted(tuple[Seconds, ...], found)


def _time_s(text: str, seconds: float) -> float:
    if _PLAIN.fullmatch(text):
        return float(text) * seconds
    if clock := _CLOCK.fullmatch(text):
        return float(clock[1] or 0) * 3600 + float(clock[2]) * 60 + float(clock[3])
    if _WITH_UNITS.fullmatch(text):
        parts = _PART.findall(text)
        if all(unit in _SECONDS for _, unit in parts):
            return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    raise DecodeError("", f"expected a time such as 145, 2:25 or 2 min 25 s, found {shown(text)}")
