"""Base class of all records, bounded types for their fields, and conversion to and from JSON."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from gpuscale.base.errors import DecodeError, FieldError
from gpuscale.base.text import (
    DETAIL_LIMIT,
    LINE_LIMIT,
    UNPRINTABLE,
    UNPRINTABLE_IN_LINES,
    clean,
    escaped,
)

T = TypeVar("T")

_ENCODER = msgspec.json.Encoder(order="deterministic")
_UNKNOWN = re.compile("Object contains unknown field `(.*)`", re.DOTALL)
_LONGEST_SHOWN = 200
# `$` would also match before a line break at the end.
_END = r"(?![\s\S])"
NAME_LIMIT = 200
FORMS: dict[str, str] = {}
"""Descriptions of text formats for error messages, keyed by pattern as msgspec prints it."""


def matching(pattern: str, description: str) -> Meta:
    """Return a pattern constraint for a text field; error messages use the description."""
    FORMS[repr(pattern)] = description
    return Meta(pattern=pattern, description=description)


class Record(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,
):
    """Base class of stored values, which msgspec validates when they are read or written.

    Field bounds exclude unit errors, such as step times below 1 ns, so that all quotients and
    logarithms of valid records are finite. Python's garbage collector ignores records, which form
    no reference cycles; visiting them would take a third of the time of a large comparison.
    """


Line = Annotated[str, Meta(max_length=LINE_LIMIT, pattern=f"^[^{UNPRINTABLE}]*{_END}")]
"""Printable text on a single line."""
Lines = Annotated[str, Meta(max_length=DETAIL_LIMIT, pattern=f"^[^{UNPRINTABLE_IN_LINES}]*{_END}")]
"""Printable text that may have line breaks and tabs."""
Name = Annotated[
    str,
    Meta(min_length=1, max_length=NAME_LIMIT, pattern=rf"^(?!\s)[^{UNPRINTABLE}]*(?<!\s){_END}"),
]
"""Non-empty text that identifies something in tables, without spaces at either end."""
Seconds = Annotated[float, Meta(ge=1e-9, le=1e9)]
Duration = Annotated[float, Meta(ge=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]
UnixTime = Annotated[float, Meta(ge=0, le=1e11)]
Count = Annotated[int, Meta(ge=0, le=10**9)]
PositiveCount = Annotated[int, Meta(ge=1, le=10**9)]
Gpus = Annotated[int, Meta(ge=1, le=10**6)]
Number = Annotated[int, Meta(ge=0, le=10**6)]
"""Number of a rank or device, counted from 0."""
Bytes = Annotated[int, Meta(ge=0, le=2**60)]
SamplesPerSecond = Annotated[float, Meta(ge=1e-9, le=1e15)]
Shape = Annotated[tuple[PositiveCount, ...], Meta(min_length=1, max_length=16)]
"""Shape of one sample, without the batch dimension."""
Moment = Annotated[
    str,
    Meta(max_length=40),
    matching(
        r"^\d{4}-\d\d-\d\d[T ][\d:.,]+(Z|[+-][\d:]+)$",
        "a date and time with offset, such as 2026-11-21T03:30:15+00:00",
    ),
]
Day = Annotated[str, matching(rf"^\d{{4}}-\d\d-\d\d{_END}", "a date such as 2027-05-01")]


def to_json(record: msgspec.Struct) -> str:
    """Encode a record as one line of JSON; unprintable characters become visible escapes.

    Raise a `DecodeError` if a value is outside the bounds of its field.
    """
    try:
        encoded = _ENCODER.encode(record)
        msgspec.json.decode(encoded, type=type(record))
    except (msgspec.DecodeError, UnicodeEncodeError):
        # A traceback with terminal colours must not make the file unreadable.
        encoded = _ENCODER.encode(_cleaned(msgspec.to_builtins(record)))
        from_json(type(record), encoded.decode())
    return encoded.decode()


def document_text(format_name: str, **fields: object) -> str:
    """Return a JSON document in version 1 of the named format; `fields` may contain records."""
    document = msgspec.to_builtins({"format": format_name, "version": 1, **fields})
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def from_json(kind: type[T], text: str) -> T:
    """Decode a JSON text to a value of type `kind`; raise a `DecodeError` if it is invalid."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        # msgspec reports a wrong field before a text that breaks off behind it, or is no JSON.
        _validate_json(text)
        raise _problem(error) from None
    except msgspec.DecodeError as error:
        _validate_json(text)
        raise DecodeError("", f"this is not JSON: {error}") from None
    except RecursionError:
        raise DecodeError("", "nested too deeply for a file of gpuscale") from None


def from_builtins(kind: type[T], value: object, *, strict: bool = True) -> T:
    """Convert parsed data, such as TOML, to type `kind`; raise a `DecodeError` if it is invalid.

    If `strict` is False, numbers may be given as strings.
    """
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _problem(error) from None


def is_json(text: str | bytes) -> bool:
    """True if a text is one complete JSON document."""
    with suppress(ValueError, RecursionError):
        json.loads(text)
        return True
    return False


def validate_unique_keys(text: str) -> None:
    """Raise a `DecodeError` if an object in a JSON document repeats a key."""

    def check(pairs: list[tuple[str, object]]) -> None:
        if len(dict(pairs)) < len(pairs):
            (repeated, _), *_ = Counter(name for name, _ in pairs).most_common(1)
            field = escaped(repeated[:_LONGEST_SHOWN])
            raise DecodeError("", f"the field '{field}' occurs twice in one object")

    _validate_json(text, object_pairs_hook=check, parse_int=str)


def _cleaned(value: object, *, multiline: bool = False) -> object:
    if isinstance(value, str):
        return clean(value, multiline=multiline)
    if isinstance(value, Mapping):
        return {
            clean(key): _cleaned(item, multiline=key in ("message", "detail"))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value


def _validate_json(text: str, **how: Any) -> None:
    """Raise a `DecodeError` if a text is not valid JSON; `how` is passed to `json.loads`."""
    if text.startswith("\ufeff"):
        raise DecodeError("", "starts with a byte-order mark; save it as UTF-8 without one")
    try:
        json.loads(text, **how)
    except json.JSONDecodeError as error:
        place, problem = f"column {error.colno}", f"this is not JSON: {error.msg}"
        raise DecodeError(place, problem, line=error.lineno) from None
    except (ValueError, RecursionError) as error:
        raise DecodeError("", f"this is not JSON: {error}") from None


def _problem(error: msgspec.ValidationError) -> DecodeError:
    """Convert msgspec's error to a `DecodeError` that names the field, like `runs[2].measured`."""
    text, _, path = str(error).partition(" - at `")
    place = path.rpartition("$")[2].strip("`.")
    if isinstance(error.__cause__, FieldError):
        own = error.__cause__
        return DecodeError(".".join(filter(None, (place, own.place))), own.problem)
    if unknown := _UNKNOWN.fullmatch(text):
        name = escaped(unknown[1][:_LONGEST_SHOWN])
        place = ".".join(filter(None, (place, name)))
        return DecodeError(place, "unknown field; correct its name, or remove it")
    if "matching regex" in text:
        form = next((words for shown, words in FORMS.items() if shown in text), "printable text")
        return DecodeError(place, f"expected {form}, without blanks at its ends")
    text = escaped(text[:_LONGEST_SHOWN]).replace("`", "'")
    return DecodeError(place, f"{text[0].lower()}{text[1:]}")
