"""The one way in for JSON text, which may come from anywhere."""

import json

from gpuscale.errors import DecodeError
from gpuscale.formats.text import shown

_LONGEST_WHOLE_NUMBER = 30


def parse_json(text: str, *, line: int | None = None) -> object:
    """The JSON value of a text; whatever the text holds, only `DecodeError` is raised.

    Args:
        text: One JSON document.
        line: The number of the line that the text is, where it is one line of a file:
            every problem is then placed at that line.

    Raises:
        DecodeError: not JSON, nested too deeply, or an object with a key twice.
    """
    place = "" if line is None else f"line {line}"
    if text.startswith("\ufeff"):
        raise DecodeError(place, "starts with a byte-order mark; save it as UTF-8 without one")
    try:
        value: object = json.loads(
            text, object_pairs_hook=_object_without_duplicates, parse_int=_number
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno if line is None else line}, column {error.colno}"
        raise DecodeError(where, f"this is not JSON: {error.msg}") from None
    except RecursionError:
        raise DecodeError(place, "nested too deeply; no gpuscale file is") from None
    except DecodeError as error:
        raise DecodeError(place, error.problem) from None
    return value


def _object_without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DecodeError(
                    "", f"the field {shown(key).removeprefix('text ')} stands twice in one object"
                )
            seen.add(key)
    return value


def _number(digits: str) -> int | float:
    # Python converts long runs of digits in quadratic time, and refuses above 4300 of them;
    # as a float it meets the decoder's own bounds, which name the place.
    return int(digits) if len(digits) <= _LONGEST_WHOLE_NUMBER else float(digits)
