"""Any record as JSON and back: msgspec checks them, and problems are told in words, with places.

`gpuscale.store` puts the formats of files together from this, and a launcher and its ranks
exchange such texts.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec.inspect import Metadata, NoneType, UnionType

from gpuscale.base.errors import DecodeError, nearest
from gpuscale.base.printable import clean, shown, text_problem

T = TypeVar("T")

_WHERE = re.compile(r"(.*?)(?: - at (?:`(key)` in )?`\$([^`]*)`)?", re.DOTALL)
_OWN_PLACE = re.compile(r"([a-z_]+(?:\[\d+\])?(?:\.[a-z_]+(?:\[\d+\])?)*): (.*)", re.DOTALL)
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
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

    A value that breaks the record's own bounds, so that nobody could read it, is a `DecodeError`.
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
    """A document for scripts, in its version 1: these fields, whatever records are in them."""
    document = msgspec.to_builtins({"format": format_name, "version": 1, **fields})
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def from_json(kind: type[T], text: str) -> T:
    """The value that a text stands for; whatever it holds, only `DecodeError` is raised."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        _refuse_value(kind, _parsed(text), str(error))
    except msgspec.DecodeError as error:
        _parsed(text)
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


def is_json(text: str | bytes) -> bool:
    """True where a text is one whole JSON document, and not cut short, for instance."""
    with suppress(ValueError, RecursionError):
        json.loads(text)
        return True
    return False


def line_of(text: str, place: str, key: str | None = None) -> int:
    """The line, from 1, of a place, or of a key at it; of the deepest part of it that exists."""
    steps = [name or position for name, position in _STEP.findall(place)]
    steps += [] if key is None else [key]
    depth = found_at = 0
    for path, at in _members(text):
        if len(path) == depth + 1 and list(path) == steps[: depth + 1]:
            depth, found_at = depth + 1, at
        if depth == len(steps):
            break
    return text.count("\n", 0, found_at) + 1


def refuse_repeated_keys(text: str) -> None:
    """Refuses a JSON document where an object has a key twice, with the line of the second."""

    def check(pairs: list[tuple[str, object]]) -> None:
        if len(dict(pairs)) == len(pairs):
            return
        seen = set()
        for path, at in _members(text):
            if path in seen:
                problem = f"the field {_quoted(path[-1])} stands twice in one object"
                raise DecodeError("", problem, line=text.count("\n", 0, at) + 1)
            seen.add(path)

    _parsed(text, object_pairs_hook=check, parse_int=str)


def _members(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """The keys and positions that lead to each member of a JSON document, and where it begins."""
    path: list[str] = []
    positions: list[int | None] = []
    before = ""
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if before in ("{", "[", ",") and sign not in ("}", "]"):
            position = positions[-1]
            path[-1] = json.loads(sign) if position is None else str(position)
            positions[-1] = None if position is None else position + 1
            yield tuple(path), token.start()
        if sign in ("{", "["):
            path.append("")
            positions.append(None if sign == "{" else 0)
        elif sign in ("}", "]"):
            path.pop()
            positions.pop()
        before = sign


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


def _parsed(text: str, **how: Any) -> object:
    """The document of a text, read by `json.loads`, which tells lines where msgspec tells bytes."""
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


def _refuse_value(kind: Any, document: object, message: str) -> NoReturn:
    """Raises what msgspec says of a value, in the words of people, with the value."""
    match = _WHERE.fullmatch(message)
    assert match is not None
    problem, place = match[1], (match[3] or "").lstrip(".")
    steps = _STEP.findall(place)
    field = re.search(r"(?:unknown|required) field `(.*)`", problem, re.DOTALL)
    if field is not None and "missing" in problem:
        raise DecodeError(place, f"missing field '{field[1]}'")
    if field is not None:
        raise DecodeError(place, _unknown_field(_type_at(kind, steps), field[1]), key=field[1])
    if match[2]:
        wanted = _described(_bare(_type_at(kind, steps).key_type), "printable text")
        raise DecodeError(place, f"expected {wanted} as each name in it; correct what is not")
    if problem.startswith(("Expected", "Invalid", "Number out")):
        value = _value_at(document, steps)
        raise DecodeError(place, _refusal(problem, value, _type_at(kind, steps)))
    own = _OWN_PLACE.fullmatch(problem)
    if own is None:
        raise DecodeError(place, problem)
    raise DecodeError(f"{place}.{own[1]}" if place else own[1], own[2])


def _refusal(problem: str, value: object, wanted_type: Any) -> str:
    found = f"found {shown(value)}"
    if "matching regex" in problem or "length" in problem:
        why = text_problem(value) if isinstance(value, str) else None
        usual = "text that is not empty and has no spaces around it, or a list of the right length"
        return why or f"expected {_described(wanted_type, usual)}, {found}"
    if problem.startswith("Invalid enum"):
        choices = " or ".join(f"'{choice}'" for choice in wanted_type.values)
        return f"expected {choices}, {found}"
    if problem.startswith("Number out"):
        return f"expected a smaller number, {found}"
    wanted = problem.removeprefix("Expected ").partition(", got")[0]
    for types in re.findall(r"`([^`]*)`", wanted):
        words = " or ".join(_TYPES.get(name, name) for name in types.split(" | "))
        wanted = wanted.replace(f"`{types}`", words)
    return f"expected {wanted.replace('>=', 'from').replace('<=', 'up to')}, {found}"


def _unknown_field(holder: Any, name: str) -> str:
    known = (field.encode_name for field in getattr(holder, "fields", ()))
    return f"unknown field {_quoted(name)}; {nearest(name, known, 'known are')}"


def _quoted(name: str) -> str:
    return shown(name).removeprefix("text ")


def _type_at(kind: Any, steps: Sequence[tuple[str, str]]) -> Any:
    """The description of the type at a place inside a type; None where there is no such place."""
    found = _bare(msgspec.inspect.type_info(kind))
    for name, position in steps:
        fields = {field.encode_name: field.type for field in getattr(found, "fields", ())}
        inner = "item_type" if position else "value_type"
        found = _bare(fields.get(name) if fields else getattr(found, inner, None))
    return found


def _bare(described: Any) -> Any:
    """The type without its bounds, unless they are described, and without None beside it."""
    if isinstance(described, Metadata) and not described.extra_json_schema:
        return _bare(described.type)
    if isinstance(described, UnionType):
        return _bare(next(t for t in described.types if not isinstance(t, NoneType)))
    return described


def _described(bounds: Any, otherwise: str) -> str:
    """What a type is to hold, in the words of its `Meta`."""
    schema = getattr(bounds, "extra_json_schema", None) or {}
    return str(schema.get("description", otherwise))


def _value_at(document: Any, steps: Sequence[tuple[str, str]]) -> object:
    try:
        for name, position in steps:
            document = document[int(position)] if position else document[name]
    except (LookupError, TypeError):
        return None
    return document
