"""The one way in for JSON text, which may come from anywhere."""

import json

from gpuscale.errors import DecodeError
from gpuscale.formats.positions import line_of_repeated_key, whole_number
from gpuscale.formats.text import shown


def parse_json(text: str, *, line: int | None = None) -> object:
    """The JSON value of a text; whatever the text holds, only `DecodeError` is raised.

    Args:
        text: One JSON document.
        line: The number of the line that the text is, where it is one line of a file:
            every problem is then placed at that line.

    Raises:
        DecodeError: not JSON, nested too deeply, or an object with a key twice.
    """
    if text.startswith("\ufeff"):
        problem = "starts with a byte-order mark; save it as UTF-8 without one"
        raise DecodeError("", problem, line=line)
    try:
        value: object = json.loads(
            text, object_pairs_hook=_object_without_duplicates, parse_int=whole_number
        )
    except json.JSONDecodeError as error:
        where = error.lineno if line is None else line
        raise DecodeError(
            f"column {error.colno}", f"this is not JSON: {error.msg}", line=where
        ) from None
    except RecursionError:
        raise DecodeError("", "nested too deeply; no gpuscale file is", line=line) from None
    except DecodeError as error:
        repeated = line_of_repeated_key(text) if line is None else line
        raise DecodeError("", error.problem, line=repeated) from None
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
