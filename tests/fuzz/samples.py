"""Valid files that use every field of their format: where the fuzzing of the readers starts."""

import json
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gpuscale.errors import DecodeError
from gpuscale.formats import decode_baseline, decode_results
from gpuscale.formats.baseline import _RULES as BASELINE_RULES
from gpuscale.formats.decode import Rules
from gpuscale.formats.results import _RULES as RESULTS_RULES
from gpuscale.records import Baseline, Environment, Run

PAGE = Path(__file__).parent.parent.parent / "docs" / "format.md"
TEXTS = ("x", "2027-05-01", "2026-11-21T03:30:15+00:00")
NUMBERS = (1, 0, 0.5, 2)


def samples() -> dict[str, str]:
    """The text of one results file and of one baseline."""
    return {"results": _results(), "baseline": _baseline()}


def _example(kind: str) -> str:
    found = re.search(rf"```\w+ {kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def _results() -> str:
    header, *runs = map(json.loads, _example("results").splitlines())

    def is_read() -> bool:
        try:
            decode_results(_lines(header, *runs))
        except DecodeError:
            return False
        return True

    header["injections"] = ["data=5ms"]
    _Filling(RESULTS_RULES, is_read).fill(header["environment"], Environment)
    for run in runs:
        _Filling(RESULTS_RULES, is_read).fill(run["run"], Run)
    assert is_read()
    return _lines(header, *runs)


def _lines(*documents: object) -> str:
    return "".join(f"{json.dumps(document)}\n" for document in documents)


def _baseline() -> str:
    document = json.loads(_example("baseline"))

    def is_read() -> bool:
        try:
            decode_baseline(json.dumps(document))
        except DecodeError:
            return False
        return True

    _Filling(BASELINE_RULES, is_read).fill(document, Baseline)
    assert is_read()
    return json.dumps(document, indent=2)


class _Filling:
    """Gives the records of a document every field that they may have."""

    def __init__(self, rules: Rules, is_read: Any) -> None:
        self._rules = rules
        self._is_read = is_read

    def fill(self, value: dict[str, Any], kind: type) -> None:
        hints = get_type_hints(kind)
        for field in fields(kind):
            if value.get(field.name) in (None, [], {}, ""):
                self._try(value, kind, field, hints[field.name])
            self._fill_inside(value.get(field.name), hints[field.name])

    def _fill_inside(self, value: Any, hint: Any) -> None:
        inner = _without_none(hint)
        if isinstance(value, dict) and is_dataclass(inner) and isinstance(inner, type):
            self.fill(value, inner)
        elif isinstance(value, list) and get_origin(inner) is tuple:
            for item in value:
                self._fill_inside(item, get_args(inner)[0])
        elif isinstance(value, dict) and get_origin(inner) is Mapping:
            for item in value.values():
                self._fill_inside(item, get_args(inner)[1])

    def _try(self, value: dict[str, Any], kind: type, field: Field[Any], hint: Any) -> None:
        before = value.get(field.name, MISSING)
        for candidate in self._candidates(hint, kind, field.name):
            value[field.name] = candidate
            if self._is_read():
                return
        if before is MISSING:
            del value[field.name]
        else:
            value[field.name] = before

    def _candidates(self, hint: Any, kind: type, name: str) -> Iterator[Any]:
        inner = _without_none(hint)
        if get_origin(inner) is Literal:
            yield from get_args(inner)
        elif get_origin(inner) is tuple:
            for item in self._candidates(get_args(inner)[0], kind, name):
                yield from ([item] * count for count in (1, 2))
        elif get_origin(inner) is Mapping:
            yield from ({"key": i} for i in self._candidates(get_args(inner)[1], kind, name))
        elif isinstance(inner, type) and is_dataclass(inner):
            yield self._record(inner, whole=False)
            # Some records say nothing with their required fields alone, and are refused.
            yield self._record(inner, whole=True)
        elif inner is bool:
            yield True
        else:
            yield from TEXTS if inner is str else NUMBERS

    def _record(self, kind: type, *, whole: bool) -> dict[str, Any]:
        """A record of all its fields, or of those that are required."""
        hints = get_type_hints(kind)
        record = {}
        for field in fields(kind):
            if whole or (field.default is MISSING and field.default_factory is MISSING):
                candidates = self._candidates(hints[field.name], kind, field.name)
                record[field.name] = next(c for c in candidates if self._passes(c, kind, field))
        return record

    def _passes(self, candidate: Any, kind: type, field: Field[Any]) -> bool:
        check = self._rules.fields.get(kind, {}).get(field.name)
        try:
            if check is not None:
                check(candidate)
        except DecodeError:
            return False
        return True


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        return next(each for each in get_args(hint) if each is not type(None))
    return hint
