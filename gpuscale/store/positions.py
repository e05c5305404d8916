"""The line of a JSON text that a place such as `runs[2].measured` stands on."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress

_LONGEST_WHOLE_NUMBER = 30
_SPACE = re.compile(r"[ \t\n\r]*")
_STEP = re.compile(r"[^.\[\]]+")


def whole_number(digits: str) -> int | float:
    """A JSON number without a point; as a float where it is too long to be one of ours.

    Python converts long runs of digits in quadratic time, and refuses above 4300 of them; as a
    float it meets the decoder's own bounds, which name the place.
    """
    return int(digits) if len(digits) <= _LONGEST_WHOLE_NUMBER else float(digits)


_DECODER = json.JSONDecoder(parse_int=whole_number)


def line_of(text: str, place: str, key: str | None = None) -> int:
    """The line, from 1, of a place; where it does not exist, of the deepest part that does.

    Args:
        text: A JSON document.
        place: As in a `DecodeError`.
        key: A field of the object at `place`, whose line is wanted instead.
    """
    at = value_at = _after_space(text, 0)
    steps = _STEP.findall(place) + ([] if key is None else [key])
    # It was parsed a few calls further out: the deepest part that is reached will do.
    with suppress(RecursionError):
        for step in steps:
            found = next((m for m in _members(text, value_at) if m[0] == step), None)
            if found is None:
                break
            _, at, value_at = found
    return text.count("\n", 0, at) + 1


def line_of_repeated_key(text: str, value_at: int = 0) -> int | None:
    """The line of the first key that its object had before; None where none is found."""
    names = set()
    with suppress(RecursionError):
        for name, at, inner_at in _members(text, value_at):
            if name in names:
                return text.count("\n", 0, at) + 1
            names.add(name)
            line = line_of_repeated_key(text, inner_at)
            if line is not None:
                return line
    return None


def _members(text: str, value_at: int) -> Iterator[tuple[str, int, int]]:
    """Key or position of each member of the object or list there, where it begins, and its value.

    Nothing of any other value.
    """
    value_at = _after_space(text, value_at)
    if text[value_at : value_at + 1] not in ("{", "["):
        return
    is_object = text[value_at] == "{"
    at = _after_space(text, value_at + 1)
    position = 0
    while text[at : at + 1] not in ("}", "]", ""):
        name, member_at = str(position), at
        if is_object:
            name, at = _DECODER.raw_decode(text, at)
            at = _after_space(text, _after_space(text, at) + 1)
        yield name, member_at, at
        _, at = _DECODER.raw_decode(text, at)
        at = _after_space(text, at)
        if text[at : at + 1] == ",":
            at = _after_space(text, at + 1)
        position += 1


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()
