"""Copies of values with other fields, whether they are records or dataclasses."""

import dataclasses
from typing import Any, TypeVar

import msgspec

from gpuscale.records import Run, with_measured

_T = TypeVar("_T")


def replace(value: _T, /, **changes: Any) -> _T:
    """Return the value with these changes; a run is measured again from its windows."""
    if not isinstance(value, msgspec.Struct):
        return dataclasses.replace(value, **changes)  # type: ignore[type-var] # a dataclass
    changed: Any = msgspec.structs.replace(value, **changes)
    if isinstance(changed, Run) and "measured" not in changes and changed.windows:
        changed = with_measured(changed)
    return changed  # type: ignore[no-any-return] # of the same type
