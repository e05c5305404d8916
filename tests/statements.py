"""The codes of a comparison's statements, independent of their words."""

from collections.abc import Iterable
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
