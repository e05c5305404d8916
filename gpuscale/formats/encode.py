"""Frozen dataclasses to JSON values, in the order of their fields."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from gpuscale.formats.decode import Rules
from gpuscale.formats.text import clean


def encode(record: object, rules: Rules) -> object:
    """The JSON value of a record: what a `Decoder` with the same rules reads back.

    A field whose default is nothing (None or an empty tuple) is left out where it is nothing.
    Every other field is written, also where it has its default, so that a file keeps its
    meaning when a default changes. Mappings are sorted by key. Text is cleaned: a traceback
    with terminal colours must not make the file unreadable.
    """
    if isinstance(record, str):
        return clean(record)
    if isinstance(record, tuple | list):
        return [encode(item, rules) for item in record]
    if isinstance(record, Mapping):
        return {clean(key): encode(record[key], rules) for key in sorted(record)}
    if is_dataclass(record) and not isinstance(record, type):
        return _encode_fields(record, rules)
    return record


def _encode_fields(record: object, rules: Rules) -> dict[str, object]:
    encoded: dict[str, object] = {}
    for field in fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        if field.default in (None, ()) and value == field.default:
            continue
        if isinstance(value, str) and (type(record), field.name) in rules.multiline:
            encoded[field.name] = clean(value, multiline=True)
        else:
            encoded[field.name] = encode(value, rules)
    return encoded
