"""The decoder: JSON values to dataclasses by their type hints, and what it says when it refuses."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from gpuscale.errors import DecodeError
from gpuscale.formats.decode import Decoder, Rules
from gpuscale.formats.encode import encode
from gpuscale.formats.json_text import parse_json
from gpuscale.formats.text import LINE_LIMIT, clean, text_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    length_m: float
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    name: str
    wheels: int
    ready: bool
    colour: Literal["red", "blue"]
    parts: tuple[Part, ...]
    weight_kg: float | None
    tolerance: float = 0.1
    notes: Mapping[str, str] = field(default_factory=dict)
    log: str = ""


VALID: dict[str, Any] = {
    "name": "crane",
    "wheels": 4,
    "ready": True,
    "colour": "red",
    "parts": [{"length_m": 2, "labels": ["a", "b"]}, {"length_m": 0.5}],
    "weight_kg": None,
    "notes": {"k": "v"},
}
RULES = Rules(multiline=frozenset({(Machine, "log")}))


def refusal(change: Mapping[str, Any]) -> str:
    with pytest.raises(DecodeError) as caught:
        Decoder(RULES).decode({**VALID, **change}, Machine, place="machine")
    return str(caught.value)


def test_every_kind_of_field_is_decoded() -> None:
    machine = Decoder().decode(VALID, Machine)
    assert machine == Machine(
        name="crane",
        wheels=4,
        ready=True,
        colour="red",
        parts=(Part(length_m=2.0, labels=("a", "b")), Part(length_m=0.5)),
        weight_kg=None,
        notes={"k": "v"},
    )
    assert isinstance(machine.parts[0].length_m, float)


def test_what_is_encoded_is_decoded_to_the_same_record() -> None:
    machine = Decoder(RULES).decode({**VALID, "log": "one\n\ttwo"}, Machine)
    encoded = json.loads(json.dumps(encode(machine, RULES)))
    assert Decoder(RULES).decode(encoded, Machine) == machine


def test_defaults_that_are_nothing_are_left_out_and_others_are_written() -> None:
    encoded = encode(Decoder().decode(VALID, Machine), RULES)
    assert isinstance(encoded, dict)
    assert encoded["tolerance"] == 0.1
    assert encoded["weight_kg"] is None
    assert encoded["parts"] == [{"length_m": 2.0, "labels": ["a", "b"]}, {"length_m": 0.5}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wheels": True}, "machine.wheels: expected a whole number, found true"),
        ({"wheels": 4.0}, "machine.wheels: expected a whole number, found 4.0"),
        ({"weight_kg": False}, "machine.weight_kg: expected a number, found false"),
        ({"weight_kg": "abc"}, "machine.weight_kg: expected a number, found text 'abc'"),
        ({"weight_kg": math.nan}, "machine.weight_kg: expected a finite number, found nan"),
        ({"weight_kg": -math.inf}, "machine.weight_kg: expected a finite number, found -inf"),
        ({"ready": 1}, "machine.ready: expected true or false, found 1"),
        ({"name": None}, "machine.name: expected text, found null"),
        ({"colour": "green"}, "machine.colour: expected 'red' or 'blue', found text 'green'"),
        ({"colour": []}, "machine.colour: expected 'red' or 'blue', found a list"),
        ({"parts": {}}, "machine.parts: expected a list, found an object"),
        ({"parts": [{"length_m": 1}, 3]}, "machine.parts[1]: expected an object, found 3"),
        (
            {"parts": [{"length_m": 1, "labels": ["a", 2]}]},
            "machine.parts[0].labels[1]: expected text, found 2",
        ),
        ({"parts": [{}]}, "machine.parts[0]: missing field 'length_m'"),
        ({"notes": {"a b": 1}}, "machine.notes['a b']: expected text, found 1"),
        ({"tolerence": 1}, "machine: unknown field 'tolerence'; did you mean 'tolerance'?"),
    ],
)
def test_a_refusal_names_place_and_problem(change: dict[str, Any], message: str) -> None:
    assert refusal(change) == message


def test_an_unknown_field_unlike_any_other_comes_with_the_known_ones() -> None:
    assert "unknown field 'xyz'; known are name, wheels, ready" in refusal({"xyz": 1})


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(refusal({"wheels": "x" * 100_000})) < 150
    assert len(refusal({"wheels" * 10_000: 1})) < 250


@pytest.mark.parametrize(
    "text", ["\x1b[31mred", "two\nlines", "nul\0", "\ud800", "\u202eright to left", "a\u2028b"]
)
def test_text_that_cannot_be_printed_on_one_line_is_refused(text: str) -> None:
    message = refusal({"name": text})
    assert message.startswith("machine.name: text with the unprintable character \\")
    assert message.isprintable()


def test_text_of_many_lines_is_accepted_only_where_the_rules_say_so() -> None:
    machine = Decoder(RULES).decode({**VALID, "log": "one\n\ttwo"}, Machine)
    assert machine.log == "one\n\ttwo"
    assert "\\x1b" in refusal({"log": "one\x1b[0m"})


def test_a_check_places_its_problem_inside_the_field() -> None:
    def refuse_short(part: Part) -> None:
        if part.length_m < 1:
            raise DecodeError("length_m", "too short")

    rules = Rules(records={Part: refuse_short})
    with pytest.raises(DecodeError, match=r"^parts\[1\]\.length_m: too short$"):
        Decoder(rules).decode(VALID, Machine)


def test_text_is_cleaned_so_that_it_can_be_read_back() -> None:
    hostile = "\x1b[31mCUDA error:\r\n  out of memory\ud800 \u202e" + "x" * 2 * LINE_LIMIT
    for multiline in (False, True):
        cleaned = clean(hostile, multiline=multiline)
        assert text_problem(cleaned, multiline=multiline) is None
        assert clean(cleaned, multiline=multiline) == cleaned
    assert clean(hostile).startswith("\\x1b[31mCUDA error: out of memory\\ud800 \\u202e")
    assert "characters left out" in clean(hostile)


def test_text_without_a_problem_is_not_touched_by_cleaning() -> None:
    text = "  4× Tesla V100,  „Jülich“ → 中文 "
    assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,}', "line 1: column "),
        ('{\n"a" 1}', "line 2: column 5: this is not JSON: Expecting ':' delimiter"),
        ('{"a": 1, "a": 2}', "line 1: the field 'a' stands twice in one object"),
        ('{"b": ["a:", {"a": 1,\n"\\u0061": 2}]}', "line 2: the field 'a' stands twice in one"),
        ("[" * 100_000, "nested too deeply; no gpuscale file is"),
        ('{"a":' * 100_000, "nested too deeply; no gpuscale file is"),
        ("\ufeff{}", "starts with a byte-order mark; save it as UTF-8 without one"),
        ('{"a": "\x01"}', "line 1: column 8: this is not JSON: Invalid control character at"),
    ],
)
def test_text_that_is_not_strict_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(DecodeError) as caught:
        parse_json(text)
    assert str(caught.value).startswith(message)


def test_a_number_of_a_million_digits_is_refused_as_a_number() -> None:
    value = parse_json('{"length_m": ' + "9" * 1_000_000 + "}")
    with pytest.raises(DecodeError, match="length_m: expected a finite number, found inf"):
        Decoder().decode(value, Part)


def test_a_problem_in_a_line_of_a_file_is_placed_at_that_line() -> None:
    with pytest.raises(DecodeError, match="line 7: column 3: this is not JSON"):
        parse_json("{ 1}", line=7)
    with pytest.raises(DecodeError, match="line 7: the field 'a' stands twice"):
        parse_json('{"a": 1, "a": 2}', line=7)
