"""Records as JSON and back: msgspec checks them, and problems are told in words.

`gpuscale.store` puts files together from this, and a launcher and its ranks exchange such texts.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

import msgspec

from gpuscale.errors import DecodeError
from gpuscale.printable import clean, shown, text_problem

T = TypeVar("T")

_WHERE = re.compile(r"(.*?)(?: - at (?:`(key)` in )?`\$([^`]*)`)?", re.DOTALL)
_OWN_PLACE = re.compile(r"([a-z_]+(?:\[\d+\])?(?:\.[a-z_]+(?:\[\d+\])?)*): (.*)", re.DOTALL)
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_TYPES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}
_ENCODER = msgspec.json.Encoder(order="deterministic")


def to_json(record: msgspec.Struct) -> str:
    """The text of a record, on one line; unprintable characters in it are made visible.

    Raises:
        DecodeError: a value breaks the record's own bounds, so that nobody could read it back.
    """
    try:
        encoded = _ENCODER.encode(record)
        msgspec.json.decode(encoded, type=type(record))
    except (msgspec.DecodeError, UnicodeEncodeError):
        # A traceback with terminal colours must not make the file unreadable.
        encoded = _ENCODER.encode(_cleaned(msgspec.to_builtins(record)))
        from_json(type(record), encoded.decode())
    return encoded.decode()


def from_json(kind: type[T], text: str) -> T:
    """The value that a text stands for; whatever it holds, only `DecodeError` is raised.

    Raises:
        DecodeError: with a place such as `ranks[3].host`.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        _refuse_value(kind, parsed(text), str(error))
    except msgspec.DecodeError as error:
        parsed(text)
        problem = str(error).removeprefix("JSON is malformed: ")
        raise DecodeError("", f"this is not JSON: {problem}") from None
    except RecursionError:
        raise DecodeError("", "nested too deeply; no gpuscale file is") from None
    except UnicodeEncodeError:
        raise DecodeError("", "text with half a character (a lone surrogate); remove it") from None


def converted(kind: type[T], value: object) -> T:
    """The record that a parsed document, such as one of TOML, stands for."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        _refuse_value(kind, value, str(error))


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


def parsed(text: str, **how: Any) -> object:
    """The document of a text, read by `json.loads`, which tells lines where msgspec tells bytes.

    Raises:
        DecodeError: it is no JSON.
    """
    if text.startswith("\ufeff"):
        raise DecodeError("", "starts with a byte-order mark; save it as UTF-8 without one")
    try:
        return json.loads(text, **how)
    except json.JSONDecodeError as error:
        place, problem = f"column {error.colno}", f"this is not JSON: {error.msg}"
        raise DecodeError(place, problem, line=error.lineno) from None
    except RecursionError:
        raise DecodeError("", "nested too deeply; no gpuscale file is") from None
    except ValueError as error:
        raise DecodeError("", f"this is not JSON: {error}") from None


def is_json(text: str | bytes) -> bool:
    """True where a text is one whole JSON document, and not cut short, for instance."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_value(kind: Any, document: object, message: str) -> NoReturn:
    """Raises what msgspec says of a value, in the words of people, with the value."""
    match = _WHERE.fullmatch(message)
    assert match is not None
    problem, place = match[1], (match[3] or "").lstrip(".")
    field = re.search(r"(?:unknown|required) field `(.*)`", problem, re.DOTALL)
    if field is not None and "missing" in problem:
        raise DecodeError(place, f"missing field '{field[1]}'")
    if field is not None:
        raise DecodeError(place, _unknown_field(kind, place, field[1]), key=field[1])
    if match[2]:
        raise DecodeError(place, "a name in it is empty or not printable; correct it")
    if problem.startswith(("Expected", "Invalid", "Number out")):
        value = _value_at(document, place)
        raise DecodeError(place, _refusal(problem, value, _type_at(kind, place)))
    own = _OWN_PLACE.fullmatch(problem)
    if own is None:
        raise DecodeError(place, problem)
    raise DecodeError(f"{place}.{own[1]}" if place else own[1], own[2])


def _refusal(problem: str, value: object, wanted_type: Any) -> str:
    if "matching regex" in problem or "length" in problem:
        why = text_problem(value) if isinstance(value, str) else None
        wanted = "text that is not empty and has no spaces around it, or a list of the right length"
        return why or f"expected {wanted}, found {shown(value)}"
    if problem.startswith("Invalid enum"):
        choices = " or ".join(f"'{choice}'" for choice in wanted_type.values)
        return f"expected {choices}, found {shown(value)}"
    if problem.startswith("Number out"):
        return f"expected a smaller number, found {shown(value)}"
    wanted = problem.removeprefix("Expected ").partition(", got")[0]
    words = re.sub(r"`([^`]*)`", lambda types: _type_words(types[1]), wanted)
    return f"expected {words.replace('>=', 'from').replace('<=', 'up to')}, found {shown(value)}"


def _type_words(types: str) -> str:
    return " or ".join(_TYPES.get(name, name) for name in types.split(" | "))


def _unknown_field(kind: Any, place: str, name: str) -> str:
    # Needed only on the way to an error; a long name would make the search slow.
    from difflib import get_close_matches

    known = [field.encode_name for field in getattr(_type_at(kind, place), "fields", ())]
    close = get_close_matches(name[:60], known, n=1)
    remedy = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(known)}"
    return f"unknown field {shown(name).removeprefix('text ')}; {remedy}"


def _type_at(kind: Any, place: str) -> Any:
    """The description of the type at a place inside a type; None where there is no such place."""
    found = _bare(msgspec.inspect.type_info(kind))
    for name, position in _STEP.findall(place):
        if position:
            found = getattr(found, "item_type", None)
        elif hasattr(found, "fields"):
            found = next((field.type for field in found.fields if field.encode_name == name), None)
        else:
            found = getattr(found, "value_type", None)
        found = _bare(found)
    return found


def _bare(described: Any) -> Any:
    """The type without its bounds, and without None beside it."""
    while hasattr(described, "types") or isinstance(described, msgspec.inspect.Metadata):
        if isinstance(described, msgspec.inspect.Metadata):
            described = described.type
        else:
            others = (t for t in described.types if not isinstance(t, msgspec.inspect.NoneType))
            described = next(others)
    return described


def _value_at(document: Any, place: str) -> object:
    try:
        for name, position in _STEP.findall(place):
            document = document[int(position)] if position else document[name]
    except (LookupError, TypeError):
        return None
    return document
