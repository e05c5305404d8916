"""Format numbers and their units for people to read."""

import math
from collections.abc import Callable

_MOST_MORE_DIGITS = 3


def counted(count: int, word: str) -> str:
    """Return a count and its noun, in the plural if needed: `1 run`, `2 runs`, `2 entries`."""
    if count != 1:
        word = f"{word[:-1]}ies" if word.endswith("ry") else f"{word}s"
    return f"{count} {word}"


def format_seconds(seconds: float) -> str:
    """Format a duration to three digits: `412 µs`, `41.2 ms`, `4.12 s`, `6 min 52 s`."""
    if round(seconds) >= 120:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    # The rounded number decides the unit: 0.9996 s are 1.00 s, not 1000 ms.
    rounded = float(f"{seconds:.3g}")
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if rounded * factor >= 1:
            return f"{significant(seconds * factor)} {unit}"
    return f"{significant(seconds * 1e6)} µs"


def format_bytes(count: float) -> str:
    """Format a number of bytes in binary units: `512 MiB`, `1.50 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(count) < 1024:
            return f"{significant(count)} {unit}"
        count /= 1024
    return f"{significant(count)} TiB"


def format_percent(fraction: float, *, signed: bool = False, decimals: int = 1) -> str:
    """Format a fraction as a percentage, by default with one decimal: `−9.1 %`."""
    text = f"{abs(fraction) * 100:.{decimals}f} %"
    if fraction < 0 and text.strip("0. %"):
        return f"−{text}"
    return f"+{text}" if signed else text


def whole_percent(fraction: float) -> str:
    """Format a fraction as a percentage without decimals: `83 %`."""
    return f"{round(fraction * 100)} %"


def rough_percent(fraction: float, more: int = 0) -> str:
    """Format a fraction as a percentage with two significant digits: `7.0 %`, `12 %`.

    `more` is the number of extra digits. A fraction just below 1 gets as many as are needed to
    avoid 100 %: `99.7 %`.
    """
    if fraction > 10:
        return "over 1000 %"
    text = significant(fraction * 100, 2 + more)
    if float(text) == 100 and fraction < 1 and more < _MOST_MORE_DIGITS:
        return rough_percent(fraction, more + 1)
    return f"{text} %"


def format_distinct(form: Callable[[float, int], str], *values: float) -> list[str]:
    """Format values with as few digits as suffice to tell different values apart.

    `form` is called with a value and the number of extra digits, and returns text.
    """
    for more in range(_MOST_MORE_DIGITS):
        texts = [form(value, more) for value in values]
        if len(set(texts)) == len({round(value, 5) for value in values}):
            break
    return texts


def significant(number: float, digits: int = 3) -> str:
    """Format a positive number to `digits` significant digits, without an exponent: `0.0412`."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    # The rounded number decides: 99.96 has three digits as 100, not as 100.0.
    exponent = int(f"{number:.{digits - 1}e}".partition("e")[2])
    decimals = max(0, digits - 1 - exponent)
    return f"{number:.{decimals}f}"
