"""Check and clean text so that it is safe to print."""

import codecs
import io
import json
import re
from typing import TextIO

LINE_LIMIT = 10_000
"""Maximum length of a one-line string, in characters."""
DETAIL_LIMIT = 200_000
"""Maximum length of a multi-line string, such as a traceback, in characters."""
_LONGEST_SHOWN = 40

# Control characters (terminal escapes among them), line and paragraph separators,
# bidirectional overrides, and lone surrogates, which no terminal or file can encode.
_UNSAFE = r"\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
UNPRINTABLE = rf"\x00-\x0a{_UNSAFE}"
UNPRINTABLE_IN_LINES = rf"\x00-\x08{_UNSAFE}"
"""Unprintable characters in multi-line text, which may contain line breaks and tabs."""
# No replacement contains quotes or backslashes, since the text may be JSON.
_IN_ASCII = {
    **dict.fromkeys("−–—━─│║╸╺\u2011", "-"),
    **dict.fromkeys("█▌▓", "#"),
    **dict.fromkeys("\u2018\u2019\u201c\u201d", "'"),
    **dict.fromkeys("°✅\ufe0f\u200b", ""),
    **dict.fromkeys("\u00a0\u202f\u2009", " "),
    **dict.fromkeys("·•", "*"),
    "×": "x",
    "±": "+-",
    "→": "->",
    "…": "...",
    "µ": "u",
    "░": ".",
    "≤": "<=",
    "≥": ">=",
    "≈": "~",
    "≠": "!=",
    "⚠": "!",
    "❌": "x",
}
# Replacements of equal width in tables: a spread, and an arrow with more columns behind it.
_AS_WIDE = re.compile(r"±([\d.]+) %|→ (?=[^\n]*\S {2,}\S)")
SPELT_OUT = "gpuscale-spelt-out"
"""Name of the codec error handler that `spell_out` sets for streams."""
_LINE_BREAK = re.compile(r" *[\t\n\v\f\r\x85\u2028\u2029]\s*")


def text_problem(text: str) -> str | None:
    """Return why a file must not contain this line of text, and a remedy; None if it may."""
    if len(text) > LINE_LIMIT:
        return f"text of {len(text)} characters is too long; keep it below {LINE_LIMIT}"
    found = re.search(f"[{UNPRINTABLE}]", text)
    return found and f"text with the unprintable character {_escape(found)}; remove it"


def clean(text: str, *, multiline: bool = False) -> str:
    """Return the text in a form that is allowed in a file; allowed text is returned unchanged.

    Line breaks become spaces (unless `multiline`), other unprintable characters become visible
    escapes, and the middle of a text that is too long is cut out.
    """
    text = re.sub(r"\r\n?", "\n", text) if multiline else _LINE_BREAK.sub(" ", text)
    text = visible(text, multiline=multiline)
    limit = DETAIL_LIMIT if multiline else LINE_LIMIT
    if len(text) <= limit:
        return text
    half = limit // 2 - 50
    return f"{text[:half]} … ({len(text) - 2 * half} characters left out) … {text[-half:]}"


def visible(text: str, *, multiline: bool = False) -> str:
    r"""Escape the unprintable characters in the text, as in `\x1b`."""
    return re.sub(f"[{UNPRINTABLE_IN_LINES if multiline else UNPRINTABLE}]", _escape, text)


def escaped(text: str) -> str:
    r"""Escape all characters that have no glyph, as in `\ufeff`."""
    signs = (sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
    return "".join(signs)


def shown(value: object) -> str:
    """Describe a JSON value in an error message; long texts are shortened."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, str):
        cut = value[:_LONGEST_SHOWN]
        return f"text {value!r}" if cut == value else f"text {cut!r}…"
    if isinstance(value, int) and abs(value) >= 10**_LONGEST_SHOWN:
        return "a number of too many digits"
    return f"{value}"


def spell_out(*streams: TextIO | None) -> None:
    r"""Have streams replace characters that they cannot encode: `µ` with `u`, `Ж` with `\u0416`."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=SPELT_OUT)


def _spelt_out(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    if found := _AS_WIDE.match(error.object, error.start):
        return f"+-{found[1]}%" if found[1] else "->", found.end()
    sign = error.object[error.start]
    if sign not in _IN_ASCII:
        # Imported here, since it takes a millisecond and is rarely needed.
        from unicodedata import normalize

        letters = normalize("NFKD", sign).encode("ascii", "ignore").decode()
        escape = f"\\u{ord(sign):04x}" if sign <= "\uffff" else f"\\U{ord(sign):08x}"
        return (letters if letters.isalnum() else escape), error.start + 1
    return _IN_ASCII[sign], error.start + 1


codecs.register_error(SPELT_OUT, _spelt_out)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
