"""Records in the files that a launcher and its ranks exchange, both of one gpuscale version."""

import json
from typing import TypeVar

from gpuscale.formats.decode import Decoder, Rules
from gpuscale.formats.encode import encode
from gpuscale.formats.json_text import parse_json
from gpuscale.records import Failure

T = TypeVar("T")

_RULES = Rules(multiline=frozenset({(Failure, "detail")}))


def to_json(record: object) -> str:
    """The text of a record."""
    return json.dumps(encode(record, _RULES), allow_nan=False)


def from_json(kind: type[T], text: str) -> T:
    """The record that the text stands for.

    Raises:
        DecodeError: the text is not such a record.
    """
    return Decoder(_RULES).decode(parse_json(text), kind)
