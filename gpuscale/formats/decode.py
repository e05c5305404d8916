"""JSON values to frozen dataclasses, strictly, by their type hints alone."""

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from gpuscale.errors import DecodeError
from gpuscale.printable import shown, text_problem

T = TypeVar("T")
Check = Callable[[Any], None]
"""Raises `DecodeError` for a value it refuses, with the place inside that value."""
_Decode = Callable[[object], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A check that a number lies between two bounds, both included."""

    low: float
    high: float
    what: str

    def __call__(self, value: float) -> None:
        """Raises `DecodeError` for a number beyond the bounds."""
        if not self.low <= value <= self.high:
            bounds = f"between {self.low:.12g} and {self.high:.12g}"
            raise DecodeError("", f"expected {self.what} {bounds}, found {shown(value)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What type hints do not say of records: bounds, cross-field checks, long texts."""

    fields: Mapping[type, Mapping[str, Check]] = field(default_factory=dict)
    """Checks of single fields; null is never checked."""
    records: Mapping[type, Check] = field(default_factory=dict)
    """Checks of a whole record, after its fields."""
    multiline: frozenset[tuple[type, str]] = frozenset()
    """The string fields that may hold line breaks."""


class Decoder:
    """Decodes JSON values into dataclasses whose hints are made of what JSON can say.

    Understood are str, int, float, bool, `X | None`, Literal, `tuple[X, ...]`,
    `Mapping[str, X]` and dataclasses. An int is accepted for a float, a bool never for a
    number; numbers are finite, strings printable; unknown and missing fields are errors.
    """

    def __init__(self, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()
        self._records: dict[type, _Decode] = {}

    def decode(self, value: object, kind: type[T], *, place: str = "") -> T:
        """The record that a JSON value stands for.

        Args:
            value: What `parse_json` returned.
            kind: The dataclass to build.
            place: Where the value stands; the place of every error starts with it.

        Raises:
            DecodeError: with a place such as `runs[3].windows[0].time_s`.
        """
        try:
            record: T = self._record(kind)(value)
        except DecodeError as error:
            raise inside(place, error) from None
        return record

    def _record(self, kind: type) -> _Decode:
        if kind not in self._records:
            self._records[kind] = self._build_record(kind)
        return self._records[kind]

    def _build_record(self, kind: type) -> _Decode:
        hints = get_type_hints(kind)
        decoders = {f.name: self._field(kind, f.name, hints[f.name]) for f in fields(kind)}
        required = [
            f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING
        ]
        check = self._rules.records.get(kind)

        def decode(value: object) -> Any:
            if not isinstance(value, dict):
                _refuse("an object", value)
            _refuse_unknown(value, decoders)
            for name in required:
                if name not in value:
                    raise DecodeError("", f"missing field '{name}'")
            arguments = {}
            for name, item in value.items():
                try:
                    arguments[name] = decoders[name](item)
                except DecodeError as error:
                    raise inside(name, error) from None
            record = kind(**arguments)
            if check is not None:
                check(record)
            return record

        return decode

    def _field(self, kind: type, name: str, hint: Any) -> _Decode:
        decode = _multiline if (kind, name) in self._rules.multiline else self._of(hint)
        check = self._rules.fields.get(kind, {}).get(name)
        if check is None:
            return decode

        def checked(value: object) -> Any:
            decoded = decode(value)
            if decoded is not None:
                check(decoded)
            return decoded

        if isinstance(check, Bounds):
            return _bounded(check, _number_kind(hint), checked)
        return checked

    def _of(self, hint: Any) -> _Decode:
        if is_dataclass(hint) and isinstance(hint, type):
            return self._record(hint)
        if hint in _SCALARS:
            return _SCALARS[hint]
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Literal:
            return _literal(arguments)
        if origin is tuple and arguments[1:] == (...,):
            return _sequence(self._of(arguments[0]))
        if origin is Mapping:
            return _mapping(self._of(arguments[1]))
        if (
            origin in (Union, types.UnionType)
            and len(arguments) == 2
            and arguments[1] is type(None)
        ):
            return _optional(self._of(arguments[0]))
        raise TypeError(f"no decoder for the type hint {hint}")


def _number_kind(hint: Any) -> Any:
    """The type that a number must have: that of the hint, or of the hint without None."""
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
    return kinds[0]


def _bounded(bounds: Bounds, kind: Any, checked: _Decode) -> _Decode:
    """The same, faster for what nearly every number of a file is: of its kind, and within."""
    low, high = bounds.low, bounds.high

    def decode(value: object) -> Any:
        if type(value) is kind and low <= value <= high:  # type: ignore[operator]
            return value
        return checked(value)

    return decode


def inside(part: str, error: DecodeError) -> DecodeError:
    """The error as seen from one level further out: `time_s` becomes `windows[0].time_s`."""
    joint = "" if not part or not error.place or error.place.startswith("[") else "."
    place = f"{part}{joint}{error.place}"
    return DecodeError(place, error.problem, line=error.line, key=error.key)


def _refuse(expected: str, value: object) -> NoReturn:
    raise DecodeError("", f"expected {expected}, found {shown(value)}")


def _refuse_unknown(value: dict[str, object], known: Mapping[str, object]) -> None:
    for name in value:
        if name in known:
            continue
        # Needed only on the way to an error; a long name would make the search slow.
        from difflib import get_close_matches

        close = get_close_matches(name[:60], known, n=1)
        remedy = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(known)}"
        found = shown(name).removeprefix("text ")
        raise DecodeError("", f"unknown field {found}; {remedy}", key=name)


def _whole_number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse("a whole number", value)
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse("a number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        _refuse("a finite number", value)
    return number


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        _refuse("true or false", value)
    return value


def _text(value: object, *, multiline: bool = False) -> str:
    if not isinstance(value, str):
        _refuse("text", value)
    problem = text_problem(value, multiline=multiline)
    if problem is not None:
        raise DecodeError("", problem)
    return value


def _multiline(value: object) -> str:
    return _text(value, multiline=True)


def _literal(choices: tuple[str, ...]) -> _Decode:
    def decode(value: object) -> Any:
        if not isinstance(value, str) or value not in choices:
            _refuse(" or ".join(f"'{choice}'" for choice in choices), value)
        return value

    return decode


def _optional(decode: _Decode) -> _Decode:
    return lambda value: None if value is None else decode(value)


def _sequence(decode_item: _Decode) -> _Decode:
    def decode(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            _refuse("a list", value)
        items: list[Any] = []
        try:
            for item in value:
                items.append(decode_item(item))  # a loop, since its progress places an error
        except DecodeError as error:
            raise inside(f"[{len(items)}]", error) from None
        return tuple(items)

    return decode


def _mapping(decode_item: _Decode) -> _Decode:
    def decode(value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            _refuse("an object", value)
        items = {}
        for key, item in value.items():
            try:
                items[_text(key)] = decode_item(item)
            except DecodeError as error:
                raise inside(f"[{shown(key).removeprefix('text ')}]", error) from None
        return items

    return decode


_SCALARS: Mapping[Any, _Decode] = {
    str: _text,
    int: _whole_number,
    float: _number,
    bool: _flag,
}
