"""The line of a JSON text that a place such as `measured[2].runs[0]` stands on."""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from gpuscale.printable import shown

_LONGEST_WHOLE_NUMBER = 30
_SPACE = re.compile(r"[ \t\n\r]*")
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:]', re.DOTALL)
_AFTER_A_STEP = ("", ".", "[")


def whole_number(digits: str) -> int | float:
    """A JSON number without a point; as a float where it is too long to be one of ours.

    Python converts long runs of digits in quadratic time, and refuses above 4300 of them; as a
    float it meets the decoder's own bounds, which name the place.
    """
    return int(digits) if len(digits) <= _LONGEST_WHOLE_NUMBER else float(digits)


class _Member(NamedTuple):
    steps: tuple[str, ...]
    """How a place may name it, seen from what holds it."""
    key_at: int
    value_at: int


def line_of(text: str, place: str, key: str | None = None) -> int:
    """The line, from 1, of a place; where it does not exist, of the deepest part that does.

    Args:
        text: A JSON document.
        place: As in a `DecodeError`.
        key: A field of the object at `place`, whose line is wanted instead.
    """
    at = value_at = _after_space(text, 0)
    rest = place
    try:
        while rest and (found := _step(text, value_at, rest)) is not None:
            member, rest = found
            at, value_at = member.key_at, member.value_at
        if key is not None and not rest:
            of_key = (m for m in _members(text, value_at) if m.steps[0] == key)
            at = next((member.key_at for member in of_key), at)
    except RecursionError:
        # It was parsed a few calls further out: the deepest part that was reached will do.
        pass
    return text.count("\n", 0, at) + 1


def line_of_repeated_key(text: str) -> int | None:
    """The line of the first key that its object had before; None where there is none."""
    objects: list[set[str]] = []
    text_token: re.Match[str] | None = None
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign == ":" and text_token is not None and objects:
            key = json.loads(text_token[0])
            if key in objects[-1]:
                return text.count("\n", 0, text_token.start()) + 1
            objects[-1].add(key)
        elif sign in "{[":
            objects.append(set())
        elif sign in "}]" and objects:
            objects.pop()
        text_token = token if sign.startswith('"') else None
    return None


def _step(text: str, value_at: int, rest: str) -> tuple[_Member, str] | None:
    """The member that the place goes on with, and what is left of the place behind it."""
    for member in _members(text, value_at):
        for step in member.steps:
            behind = rest[len(step) :]
            if rest.startswith(step) and behind[:1] in _AFTER_A_STEP:
                return member, behind
    return None


def _members(text: str, value_at: int) -> Iterator[_Member]:
    """The members of the object or list that begins there; nothing of any other value."""
    if text[value_at : value_at + 1] not in ("{", "["):
        return
    is_object = text[value_at] == "{"
    at = _after_space(text, value_at + 1)
    position = 0
    while text[at : at + 1] not in ("}", "]", ""):
        key_at = at
        steps: tuple[str, ...] = (f"[{position}]",)
        if is_object:
            key, at = _DECODER.raw_decode(text, at)
            at = _after_space(text, _after_space(text, at) + 1)
            steps = (key, f".{key}", f"[{shown(key).removeprefix('text ')}]")
        yield _Member(steps, key_at, at)
        _, at = _DECODER.raw_decode(text, at)
        at = _after_space(text, at)
        if text[at : at + 1] == ",":
            at = _after_space(text, at + 1)
        position += 1


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


_DECODER = json.JSONDecoder(parse_int=whole_number)
