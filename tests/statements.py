"""The codes of a comparison's statements, independent of their words."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from gpuscale.records import Facts, Statement

_T = TypeVar("_T")


def codes_in(statement: Statement) -> list[str]:
    """The code of a statement, and then those of the statements in it."""
    inner = [fact for fact in statement.facts.values() if isinstance(fact, Statement)]
    return [statement.code, *(code for each in inner for code in codes_in(each))]


def facts_of(notes: Iterable[Statement], code: str) -> Facts:
    """The facts of the only note of that code."""
    (note,) = [note for note in notes if note.code is code]
    return note.facts


def known(value: _T | None) -> _T:
    assert value is not None
    return value


def codes_given(paths: Iterable[Path], *takers: str) -> set[str]:
    """The texts that these calls take in the code of files, and those of what is named a code."""
    found: set[str] = set()
    for node in (node for path in paths for node in ast.walk(ast.parse(path.read_text()))):
        match node:
            case ast.Call() if ast.unparse(node.func) in takers:
                named = (each.value for each in node.keywords if each.arg == "code")
                found.update(*map(_texts, (*node.args, *named)))
            case ast.Assign(targets=[name, *_], value=value) | ast.For(target=name, iter=value):
                found.update(_texts(value) if "code" in ast.unparse(name).lower() else ())
    return found


def _texts(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=chosen, orelse=other):
            yield from (*_texts(chosen), *_texts(other))
        # What is called by its name takes its own texts.
        case ast.Call(func=ast.Name()):
            pass
        case _:
            for each in ast.iter_child_nodes(node):
                yield from _texts(each)
