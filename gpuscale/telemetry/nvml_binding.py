"""What all questions to NVML's binding share: older and newer forms of them, and their answers."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pynvml  # type: ignore[import-untyped]

_T = TypeVar("_T")
Handle = Any  # an opaque ctypes pointer, in a binding without types

NEVER_OFFERED = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLError_InvalidArgument,
    pynvml.NVMLError_ArgumentVersionMismatch,
)
"""Answers that will be the same at the next tick, so the question is not put again."""


class Forms(Generic[_T]):
    """One question in several forms, the newest first; the first that is answered is kept."""

    def __init__(self, newest: Callable[[], _T], *older: Callable[[], _T]) -> None:
        self._left = [newest, *older]
        self._known = len(self._left)

    @property
    def uses_older(self) -> bool:
        """Whether the newest form was asked and is not offered."""
        return len(self._left) < self._known

    def __call__(self) -> _T:
        """The answer to the newest form that is offered."""
        while len(self._left) > 1:
            try:
                return self._left[0]()
            except NEVER_OFFERED:
                del self._left[0]
        return self._left[0]()


def named(name: str) -> Any:
    """A call or constant of the binding, which an older release may lack as a driver may."""
    found = getattr(pynvml, name, None)
    if found is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return found


def field_value(field: Any) -> float:
    """The number in an answer of nvmlDeviceGetFieldValues."""
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(field.nvmlReturn)
    return member(field.value, field.valueType)


def member(value: Any, value_type: int) -> float:
    """The number in NVML's union of number types."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    number: float = getattr(value, members[value_type])
    return number


def or_none(query: Callable[[], _T]) -> _T | None:
    """The answer, or None for an error."""
    try:
        return query()
    except pynvml.NVMLError:
        return None
