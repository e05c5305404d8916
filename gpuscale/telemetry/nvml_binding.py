"""NVML's binding, asked in newer and older forms, and what takes more than one call of it."""

from collections.abc import Callable, Mapping
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

_MOST_XIDS = 100  # of a device between two ticks: more say nothing new
_HOPPER_FIELDS = {
    "replay": "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY",
    "recovery": "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
    "crc": "NVML_FI_DEV_NVLINK_ERROR_DL_CRC",
}
_BLACKWELL_FIELDS = {
    "recovery": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
    # Packets with errors that are left after forward error correction, which always has some to do.
    "effective": "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS",
}


class Forms(Generic[_T]):
    """One question in several forms, the newest first; the first that is answered is kept."""

    def __init__(self, *forms: Callable[[], _T]) -> None:
        self._forms = forms
        self.number = 0
        """Of the form that is asked now; 0 is the newest."""

    def __call__(self) -> _T:
        """The answer to the newest form that is offered."""
        while self.number < len(self._forms) - 1:
            try:
                return self._forms[self.number]()
            except NEVER_OFFERED:
                self.number += 1
        return self._forms[self.number]()


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


class NvLinks:
    """The NVLinks of one GPU."""

    def __init__(self, gpu: Handle) -> None:
        self._gpu = gpu
        self._count = 0
        # Hopper and Blackwell count in fields, each in its own; before, each counter had a call.
        self._errors = Forms(
            lambda: self._in_fields(_HOPPER_FIELDS),
            lambda: self._in_fields(_BLACKWELL_FIELDS),
            self._in_counters,
        )

    def active(self) -> tuple[bool, ...]:
        """Of each link, in the order of their numbers."""
        states: list[bool] = []
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                states.append(bool(pynvml.nvmlDeviceGetNvLinkState(self._gpu, link)))
            except (pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_NotSupported):
                # The first number that no link has; without link 0 there is no NVLink.
                if not states:
                    raise
                break
        self._count = len(states)
        return tuple(states)

    def errors(self) -> Mapping[str, int]:
        """Counters by kind, over all links."""
        if not self._count:
            self.active()
        return self._errors()

    def _in_fields(self, names: Mapping[str, str]) -> Mapping[str, int]:
        fields = {kind: int(named(name)) for kind, name in names.items()}
        asked = [(field, link) for field in fields.values() for link in range(self._count)]
        answers = dict(zip(asked, pynvml.nvmlDeviceGetFieldValues(self._gpu, asked), strict=True))

        def count(field: int, link: int) -> int:
            return int(field_value(answers[field, link]))

        return {kind: self._over_links(count, field) for kind, field in fields.items()}

    def _in_counters(self) -> Mapping[str, int]:
        def count(counter: int, link: int) -> int:
            return int(pynvml.nvmlDeviceGetNvLinkErrorCounter(self._gpu, link, counter))

        flit = self._over_links(count, pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT)
        return {
            "replay": self._over_links(count, pynvml.NVML_NVLINK_ERROR_DL_REPLAY),
            "recovery": self._over_links(count, pynvml.NVML_NVLINK_ERROR_DL_RECOVERY),
            "crc": flit + self._over_links(count, pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA),
        }

    def _over_links(self, count: Callable[[int, int], int], kind: int) -> int:
        """The sum over the links that count errors of a kind; an inactive one may not."""
        counts: list[int] = []
        for link in range(self._count):
            try:
                counts.append(count(kind, link))
            except NEVER_OFFERED:
                # As long as any link may count, this is no answer of the device.
                if not counts and link == self._count - 1:
                    raise
        return sum(counts)


class XidEvents:
    """The driver's error events of one GPU."""

    def __init__(self, gpu: Handle) -> None:
        self._gpu = gpu
        self._events: Any = None

    def new(self) -> tuple[int, ...]:
        """The numbers of those since the last time, of which the first only starts them."""
        if self._events is None:
            self._events = self._register()
        found: list[int] = []
        while len(found) < _MOST_XIDS:
            try:
                found.append(int(pynvml.nvmlEventSetWait_v2(self._events, 0).eventData))
            except pynvml.NVMLError_Timeout:
                break
            except pynvml.NVMLError:
                # What was taken out of the set is told only now; the next time fails as well.
                if not found:
                    raise
                break
        return tuple(found)

    def _register(self) -> Any:
        # A set for each device tells whose event it is; NVML's shutdown frees them.
        events = pynvml.nvmlEventSetCreate()
        try:
            pynvml.nvmlDeviceRegisterEvents(self._gpu, pynvml.nvmlEventTypeXidCriticalError, events)
        except pynvml.NVMLError:
            pynvml.nvmlEventSetFree(events)
            raise
        return events
