"""Format commands, error messages and numbers with units; make text safe to print."""

import codecs
import io
import math
import re
import shlex
from argparse import ArgumentTypeError
from collections.abc import Callable, Container, Iterable
from typing import TextIO

_MOST_MORE_DIGITS = 3
LINE_LIMIT = 10_000
"""Maximum length of a one-line string, in characters."""
DETAIL_LIMIT = 200_000
"""Maximum length of a multi-line string, such as a traceback, in characters."""
_LONGEST_SHOWN = 40
_MOST_COUNT = 100_000

# Control characters (including terminal escapes), line and paragraph separators,
# bidirectional overrides, and lone surrogates, which no terminal or file can encode.
_UNSAFE = r"\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
UNPRINTABLE = rf"\x00-\x0a{_UNSAFE}"
UNPRINTABLE_IN_LINES = rf"\x00-\x08{_UNSAFE}"
"""Unprintable characters, except line breaks and tabs, for the `[…]` of a regular expression."""
# No replacement contains quotes or backslashes, since the text may be JSON.
_IN_ASCII = {
    **dict.fromkeys("−–—━", "-"),
    **dict.fromkeys("█▌", "#"),
    **dict.fromkeys("°✅\ufe0f", ""),
    "\u00a0": " ",
    "·": "*",
    "×": "x",
    "⁹": "^9",
    "₂": "2",
    "²": "^2",
    "±": "+-",
    "→": "->",
    "↑": "^",
    "↓": "v",
    "…": "...",
    "µ": "u",
    "░": ".",
    "⚠": "!",
    "❌": "x",
}
SPELT_OUT = "gpuscale-spelt-out"
"""Name of the codec error handler that `spell_out` sets for streams."""
_SAFE_IN_SHELL = re.compile(r"[\w@%+=:,./{}-]+", re.ASCII)
_LINE_BREAK = re.compile(r" *[\t\n\v\f\r\x85\u2028\u2029]\s*")


def counted(count: int, word: str) -> str:
    """Return a count and its noun, in the plural if needed: `1 run`, `2 runs`, `2 entries`."""
    if count != 1:
        word = f"{word[:-1]}ies" if word.endswith("ry") else f"{word}s"
    return f"{count} {word}"


def format_seconds(seconds: float, digits: int = 3) -> str:
    """Format a duration to `digits` significant digits: `41.2 ms`, `4.12 s`, `6 min 52 s`."""
    if round(seconds) >= 36000:
        hours, rest = divmod(round(seconds / 60), 60)
        return f"{hours} h {rest} min"
    if round(seconds) >= 120:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    # The rounded number determines the unit: 0.9996 s becomes 1.00 s, not 1000 ms.
    rounded = float(f"{seconds:.{digits}g}")
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if rounded * factor >= 1:
            return f"{significant(seconds * factor, digits)} {unit}"
    return f"{significant(seconds * 1e6, digits)} µs"


def format_bytes(count: float) -> str:
    """Format a number of bytes in binary units: `512 MiB`, `1.50 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(count) < 1024:
            return f"{significant(count)} {unit}"
        count /= 1024
    return f"{significant(count)} TiB"


def format_percent(fraction: float, *, signed: bool = False, decimals: int = 1) -> str:
    """Format a fraction as a percentage: `9.1 %` (`+9.1 %` if `signed`) or `−9.1 %`."""
    text = f"{abs(fraction) * 100:.{decimals}f} %"
    if fraction < 0 and text.strip("0. %"):
        return f"−{text}"
    return f"+{text}" if signed else text


def whole_percent(fraction: float) -> str:
    """Format a fraction as a percentage without decimals: `83 %`."""
    return f"{round(fraction * 100)} %"


def rough_percent(fraction: float, more: int = 0) -> str:
    """Format a fraction as a percentage with two significant digits: `7.0 %`, `12 %`.

    `more` is the number of extra digits. A fraction just below 1 gets further digits if it
    would be rounded to 100 %: `99.7 %`. A fraction above 10 becomes `over 1000 %`.
    """
    if fraction > 10:
        return "over 1000 %"
    text = significant(fraction * 100, 2 + more)
    if float(text) == 100 and fraction < 1 and more < _MOST_MORE_DIGITS:
        return rough_percent(fraction, more + 1)
    return f"{text} %"


def format_distinct(form: Callable[[float, int], str], *values: float) -> list[str]:
    """Format values with `form(value, extra_digits)`; add up to 2 digits until the texts differ."""
    for more in range(_MOST_MORE_DIGITS):
        texts = [form(value, more) for value in values]
        if len(set(texts)) == len({round(value, 5) for value in values}):
            break
    return texts


def significant(number: float, digits: int = 3) -> str:
    """Format a positive number to `digits` significant digits, without an exponent: `0.0412`."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    # The rounded number determines the decimals: 99.96 becomes 100, not 100.0.
    exponent = int(f"{number:.{digits - 1}e}".partition("e")[2])
    return f"{number:.{max(0, digits - 1 - exponent)}f}"


def clean(text: str, *, multiline: bool = False) -> str:
    """Replace or cut out what records must not contain; other text is returned unchanged.

    Line breaks become spaces (unless `multiline`), other unprintable characters become visible
    escapes, and the middle of an overlong text is cut out.
    """
    text = re.sub(r"\r\n?", "\n", text) if multiline else _LINE_BREAK.sub(" ", text)
    text = visible(text, multiline=multiline)
    limit = DETAIL_LIMIT if multiline else LINE_LIMIT
    if len(text) <= limit:
        return text
    half = limit // 2 - 50
    return f"{text[:half]} … ({len(text) - 2 * half} characters left out) … {text[-half:]}"


def visible(text: str, *, multiline: bool = False) -> str:
    r"""Escape all `UNPRINTABLE` characters; keep line breaks and tabs if `multiline`."""
    unprintable = UNPRINTABLE_IN_LINES if multiline else UNPRINTABLE
    return re.sub(f"[{unprintable}]", lambda found: escaped(found[0]), text)


def escaped(text: str) -> str:
    r"""Escape all characters that Python considers unprintable, including line breaks."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def shown(text: str) -> str:
    """Quote a text for an error message, as in `text 'abc'`; long texts are shortened."""
    return f"text {text[:_LONGEST_SHOWN]!r}{'…' if len(text) > _LONGEST_SHOWN else ''}"


def parse_count(text: str, at_least: int = 1) -> int:
    """Parse a whole number from `at_least` to 100000; raise ArgumentTypeError for other text."""
    number = int(text) if text.strip().isdecimal() and len(text) < 10 else -1
    if not at_least <= number <= _MOST_COUNT:
        raise ArgumentTypeError(f"'{text}' is not a whole number from {at_least} to {_MOST_COUNT}")
    return number


def joined(words: Iterable[str]) -> str:
    """Join words into a shell command line, quoted where necessary; `{gpus}` is not quoted."""
    quoted = (word if _SAFE_IN_SHELL.fullmatch(word) else shlex.quote(word) for word in words)
    return " ".join(quoted)


def without_options(words: Iterable[str], names: Container[str]) -> list[str]:
    """Return a command's words without the options in `names` and without their values."""
    kept, rest = list[str](), iter(words)
    for word in rest:
        name, is_value_in_word, _ = word.partition("=")
        if word == "--":
            return [*kept, word, *rest]
        if name not in names:
            kept.append(word)
        elif not is_value_in_word:
            next(rest, None)
    return kept


def suggestion(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ` (did you mean 'record'?)`; empty if no known word reaches similarity `cutoff`."""
    # Imported here, since every command would take longer to start.
    from difflib import get_close_matches

    near = get_close_matches(word, [*known], 1, cutoff)
    return f" (did you mean '{near[0]}'?)" if near else ""


def no_such(word: str, known: Iterable[str], kind: str = "") -> str:
    """Return text like `there is no {kind} 'jsn' (did you mean 'json'?); choose from csv, json`."""
    named = f"{kind} '{visible(word)}'".strip()
    return f"there is no {named}{suggestion(word, known)}; choose from {', '.join(known)}"


def spell_out(*streams: TextIO | None) -> None:
    r"""Make streams replace characters that they cannot encode: `µ` by `u`, `Ж` by `\u0416`."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=SPELT_OUT)


def _spelt_out(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    sign = error.object[error.start]
    return _IN_ASCII.get(sign, ascii(sign)[1:-1]), error.start + 1


codecs.register_error(SPELT_OUT, _spelt_out)
