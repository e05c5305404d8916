"""Makes the tables of docs/format.md from the records: run as a script."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as types

from gpuscale.base.counters import NUMBERS
from gpuscale.records import Baseline, Run
from gpuscale.records.metrics import METRICS
from gpuscale.records.record import Record
from gpuscale.records.run import Header

PAGE = Path(__file__).parent.parent / "docs" / "format.md"
_TABLE = re.compile(r"<!-- (\w+) -->\n.*?\n<!-- end -->", re.DOTALL)
_WORDS: dict[Any, str] = {
    types.IntType: "whole number",
    types.FloatType: "number",
    types.BoolType: "true or false",
    types.StrType: "text",
}


def example(kind: str) -> str:
    """The example of the page that is marked with `kind`: `results` or `baseline`."""
    found = re.search(rf"```\w+ {kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def page_with_tables(page: str) -> str:
    """The page with every table between `<!-- NAME -->` and `<!-- end -->` made anew."""
    made = tables()
    return _TABLE.sub(lambda found: f"<!-- {found[1]} -->\n{made[found[1]]}\n<!-- end -->", page)


def tables() -> dict[str, str]:
    """Every table that the page should have, by its name there."""
    made = {record.__name__: "\n".join(_rows(record)) for record in _records()}
    return {**made, "METRICS": "\n".join(_metric_rows()), "COUNTERS": "\n".join(_counter_rows())}


def tables_on_page(page: str) -> set[str]:
    """The names of the tables that the page has."""
    return {found[1] for found in _TABLE.finditer(page)}


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


def _rows(record: type[Record]) -> Iterator[str]:
    meanings = _meanings(record)
    described: Any = types.type_info(record)
    yield "| field | type | meaning |\n|---|---|---|"
    for field in described.fields:
        optional = "" if field.required else ", optional"
        meaning = meanings.get(field.name, "")
        default = field.default
        if default not in (msgspec.NODEFAULT, None, (), "") and not isinstance(default, Record):
            meaning = f"{meaning} (default {default})".strip()
        yield f"| `{field.encode_name}` | {_type_words(field.type)}{optional} | {meaning} |"


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


def _metric_rows() -> Iterator[str]:
    yield "| name | from | to | better | meaning |\n|---|---|---|---|---|"
    for metric in METRICS:
        low, high = (f"{bound:.3g}" for bound in metric.bounds)
        better = "more" if metric.more_is_better else "less"
        yield f"| `{metric.name}` | {low} | {high} | {better} | {metric.words} |"


def _counter_rows() -> Iterator[str]:
    yield "| counter | unit | from | to | in windows | meaning |\n|---|---|---|---|---|---|"
    for name, counter in NUMBERS.items():
        kind = counter.quantity
        bounds = f"{kind.low:g} | {kind.high:.3g}"
        in_windows = "yes" if counter.in_windows else ""
        unit = kind.unit or "whole number"
        yield f"| `{name}` | {unit} | {bounds} | {in_windows} | {counter.meaning} |"


def _type_words(described: Any) -> str:
    if isinstance(described, types.Metadata):
        return _type_words(described.type)
    if isinstance(described, types.UnionType):
        return " or ".join(
            _type_words(each) for each in described.types if not isinstance(each, types.NoneType)
        )
    if isinstance(described, types.StructType):
        return f"object, see {described.cls.__name__}"
    if isinstance(described, types.VarTupleType):
        return f"list of {_type_words(described.item_type)}"
    if isinstance(described, types.DictType):
        return f"object by name of {_type_words(described.value_type)}"
    if isinstance(described, types.LiteralType):
        return " or ".join(f'`"{value}"`' for value in described.values)
    return _WORDS[type(described)] + _bounds(described)


def _bounds(described: Any) -> str:
    low, high = getattr(described, "ge", None), getattr(described, "le", None)
    if low is None and high is None:
        return ""
    return f" from {low:g}" + ("" if high is None else f" to {high:g}")


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
