"""Convert records to JSON text and back; msgspec validates them, and errors give the location.

`gpuscale.store` builds file formats on this module; launchers and ranks exchange records with it.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from gpuscale.base.errors import DecodeError, FieldError, nearest
from gpuscale.base.printable import clean, shown, text_problem

T = TypeVar("T")

_TYPES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_ENCODER = msgspec.json.Encoder(order="deterministic")


def to_json(record: msgspec.Struct) -> str:
    """Encode a record as one line of JSON, with unprintable characters made visible.

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
    """Return a JSON document for scripts, in version 1 of a format; fields may contain records."""
    document = msgspec.to_builtins({"format": format_name, "version": 1, **fields})
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def from_json(kind: type[T], text: str) -> T:
    """Decode a JSON text to a value of type `kind`; raise a `DecodeError` if it is invalid."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise _first_problem(kind, _parse(text), "") or DecodeError("", str(error)) from None
    except msgspec.DecodeError as error:
        _parse(text)
        problem = str(error).removeprefix("JSON is malformed: ")
        raise DecodeError("", f"this is not JSON: {problem}") from None
    except RecursionError:
        raise DecodeError("", "nested too deeply; no gpuscale file is") from None
    except UnicodeEncodeError:
        raise DecodeError("", "half of a character (a lone surrogate); remove it") from None


def from_builtins(kind: type[T], value: object) -> T:
    """Convert parsed data, as from TOML, to type `kind`; raise a `DecodeError` if it is invalid."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _first_problem(kind, value, "") or DecodeError("", str(error)) from None


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
            field = shown(repeated).removeprefix("text ")
            raise DecodeError("", f"the field {field} occurs twice in one object")

    _parse(text, object_pairs_hook=check, parse_int=str)


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


def _parse(text: str, **how: Any) -> object:
    """Parse with `json.loads`, since its errors have line numbers; msgspec's have byte offsets."""
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


def _first_problem(kind: Any, value: Any, place: str) -> DecodeError | None:
    """Return the first problem in a value, at the innermost invalid part; None if it is valid."""
    try:
        msgspec.convert(value, kind)
        return None
    except msgspec.ValidationError as error:
        own_rule = error.__cause__
    kind, bounds = _unwrapped(kind)
    fields = _fields_of(kind) if isinstance(value, Mapping) else {}
    unknown = [name for name in value if name not in fields] if fields else []
    if unknown and kind.__struct_config__.forbid_unknown_fields:
        known = nearest(unknown[0], fields, "known are")
        problem = f"unknown field {shown(unknown[0]).removeprefix('text ')}; {known}"
        return DecodeError(place, problem, key=unknown[0])
    for step, part, held in _parts(kind, value):
        if found := _first_problem(part, held, f"{place}{step}".removeprefix(".")):
            return found
    missing = [name for name, field in fields.items() if field.required and name not in value]
    if missing:
        return DecodeError(place, f"missing field '{missing[0]}'")
    if isinstance(own_rule, FieldError):
        return DecodeError(".".join(filter(None, (place, own_rule.place))), own_rule.problem)
    return DecodeError(place, str(own_rule) if own_rule else _problem(kind, bounds, value))


def _fields_of(kind: Any) -> dict[str, msgspec.structs.FieldInfo]:
    """Return the fields of a record type by name; empty for other types."""
    is_record = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return {each.encode_name: each for each in msgspec.structs.fields(kind)} if is_record else {}


def _parts(kind: Any, value: Any) -> Iterator[tuple[str, Any, object]]:
    """For each part of a value, yield its path (`.name` or `[0]`), its expected type and itself."""
    types = get_args(kind)
    if isinstance(value, Mapping):
        fields = _fields_of(kind)
        yield from (
            (f".{name}", fields[name].type, value[name]) for name in fields if name in value
        )
        if get_origin(kind) in (dict, Mapping):
            yield from (("", types[0], name) for name in value)
            yield from (("[...]", types[1], held) for held in value.values())
    elif get_origin(kind) is tuple and isinstance(value, list | tuple):
        yield from ((f"[{position}]", types[0], held) for position, held in enumerate(value))


def _unwrapped(kind: Any) -> tuple[Any, list[Meta]]:
    """Strip bounds and None from a type; return the stripped type and a list of the bounds."""
    bounds: list[Meta] = []
    while (origin := get_origin(kind)) in (Annotated, Union, UnionType):
        first, *others = get_args(kind)
        if origin is Annotated:
            bounds += [each for each in others if isinstance(each, Meta)]
        # The last of `int | float` is any number.
        kind = first if origin is Annotated else [a for a in (first, *others) if a != NoneType][-1]
    return kind, bounds


def _problem(kind: Any, bounds: Sequence[Meta], value: Any) -> str:
    """Describe what is wrong with a value whose parts are all valid."""
    found, wanted = f"found {shown(value)}", _TYPES.get(kind, "an object")
    if get_origin(kind) is Literal:
        wanted = " or ".join(sorted(f"'{choice}'" for choice in get_args(kind)))
    elif get_origin(kind) is tuple:
        wanted = "a list of the right length" if isinstance(value, list | tuple) else "a list"
    if kind is str and isinstance(value, str):
        described = [bound.description for bound in bounds if bound.description]
        wanted = (*described, "text that is not empty and has no spaces around it")[0]
        return text_problem(value) or f"expected {wanted}, {found}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        for bound in bounds:
            if bound.ge is not None and value < bound.ge:
                wanted += f" from {bound.ge:.12g}"
            elif bound.le is not None and value > bound.le:
                wanted += f" up to {bound.le:.12g}"
    return f"expected {wanted}, {found}"
