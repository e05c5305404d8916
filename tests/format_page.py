"""Makes the lists of fields of docs/format.md from the records: run as a script."""

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as types

from gpuscale.records import Baseline, Run
from gpuscale.records.gpu_and_port_counters import NUMBERS
from gpuscale.records.metrics import METRICS
from gpuscale.records.record import Record
from gpuscale.records.run import Header

PAGE = Path(__file__).parent.parent / "docs" / "format.md"
_LIST = re.compile(r"<!--(\w+)-->\n.*?\n<!--end-->", re.DOTALL)
_WORDS: dict[Any, str] = {
    types.IntType: "integer",
    types.FloatType: "number",
    types.BoolType: "true or false",
    types.StrType: "text",
}
_UNIT = re.compile(r"_(s|bytes|w|j|mhz|c)$")
_NUMBERS = ("integer", "number")
_NO_DEFAULT = (msgspec.NODEFAULT, None, (), "")


def example(kind: str) -> str:
    """The example of the page that is marked with `kind`: `results` or `baseline`."""
    found = re.search(rf"```\w+ {kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def page_with_lists(page: str) -> str:
    """The page with every list between `<!--NAME-->` and `<!--end-->` made anew."""
    made = lists()
    return _LIST.sub(lambda found: f"<!--{found[1]}-->\n{made[found[1]]}\n<!--end-->", page)


def lists() -> dict[str, str]:
    """Every list that the page should have, by its name there."""
    made = {record.__name__: _lines(record) for record in _records()}
    made |= {"METRICS": _metric_lines(), "COUNTERS": _counter_lines()}
    return {name: "\n".join(lines) for name, lines in made.items()}


def _records() -> list[type[Record]]:
    found: dict[Any, None] = {}

    def visit(described: Any) -> None:
        if isinstance(described, types.StructType):
            if described.cls not in found:
                found[described.cls] = None
                for field in described.fields:
                    visit(field.type)
            return
        for inner in ("type", "item_type", "key_type", "value_type"):
            if hasattr(described, inner):
                visit(getattr(described, inner))
        for choice in getattr(described, "types", ()):
            visit(choice)

    for record in (Header, Run, Baseline):
        visit(types.type_info(record))
    return list(found)


def _lines(record: type[Record]) -> Iterator[str]:
    """A list item a field; neighbours of one type whose names say all share an item."""
    described: Any = types.type_info(record)
    meanings = _meanings(record)
    entries = []
    for field in described.fields:
        name = f"**`{field.encode_name}`**" if field.required else f"`{field.encode_name}`"
        meaning = meanings.get(field.name, "")
        if field.default not in _NO_DEFAULT and not isinstance(field.default, Record):
            meaning = f"{meaning} (default {field.default})".strip()
        entries.append((name, _kind(field), meaning))
    for (kind, meaning), alike in groupby(entries, key=lambda entry: entry[1:]):
        names = [name for name, *_ in alike]
        for shown in [", ".join(names)] if not meaning else names:
            yield f"- {shown}{f' ({kind})' if kind else ''}{f': {meaning}' if meaning else ''}"


def _kind(field: Any) -> str:
    """The type in words, if it is neither text nor a number with its unit in the name."""
    kind = _type_words(field.type)
    return "" if kind == "text" or (kind in _NUMBERS and _UNIT.search(field.encode_name)) else kind


def _meanings(record: type[Record]) -> dict[str, str]:
    """The docstrings of the fields, which Python itself throws away."""
    tree = ast.parse(inspect.getsource(record)).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(words))
            ):
                found[name] = " ".join(words.split())
    return found


def _metric_lines() -> Iterator[str]:
    for metric in METRICS:
        yield f"- `{metric.name}`: {metric.words}"


def _counter_lines() -> Iterator[str]:
    for name, counter in NUMBERS.items():
        yield f"- `{name}`{f': {counter.meaning}' if counter.meaning else ''}"


def _type_words(described: Any) -> str:
    if isinstance(described, types.Metadata):
        return _type_words(described.type)
    if isinstance(described, types.UnionType):
        known = (each for each in described.types if not isinstance(each, types.NoneType))
        return " or ".join(map(_type_words, known))
    if isinstance(described, types.StructType):
        return f"`{described.cls.__name__}`"
    if isinstance(described, types.VarTupleType):
        return f"list of {_type_words(described.item_type)}"
    if isinstance(described, types.DictType):
        return f"by name: {_type_words(described.value_type)}"
    if isinstance(described, types.LiteralType):
        return " or ".join(f'`"{value}"`' for value in described.values)
    return _WORDS[type(described)]


if __name__ == "__main__":
    PAGE.write_text(page_with_lists(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
