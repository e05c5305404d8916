"""Read the counters of a device, each by the newest call that its driver supports."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpuscale.base.counters import MOMENTS, Field, Query, Reading, clock_events
from gpuscale.base.errors import DeviceGoneError, NeverOfferedError, QueryError
from gpuscale.measure.smi import Smi

_AT_EVERY_TICK = [moment for moment, field in MOMENTS.items() if field.when == "windows"]
# A counter is set against the time, so it is read as soon as the clock was.
_AT_EVERY_TICK.sort(key=lambda moment: MOMENTS[moment].reduce != "increase")
_SELDOM = [moment for moment in MOMENTS if moment not in _AT_EVERY_TICK]


class Device:
    """A GPU or a partition of one; name and UUID are None if the driver does not report them."""

    name: str | None
    uuid: str | None
    firmware: str | None = None
    pci_address: str | None = None

    def __init__(self, smi: Smi, handle: Any, own: Mapping[str, Callable[[], Any]]) -> None:
        """Prepare to read the counters; `own` has methods for counters that no query reads."""
        self._smi, self._handle = smi, handle
        self._never_offered: dict[str, str] = {}
        self._gone: str | None = None
        self.queries = {
            moment: queries
            for moment, field in MOMENTS.items()
            if (queries := [query for query in field.queries if query.is_of_amd is self.is_of_amd])
        }
        self.forms = {
            moment: Forms(*(partial(self.number, MOMENTS[moment], query) for query in queries))
            for moment, queries in self.queries.items()
        }
        self._questions: Mapping[str, Callable[[], Any]] = {**self.forms, **own}

    is_of_amd = False
    """True if the device is queried by AMD SMI, False if by NVML."""

    compute_processes: Callable[[], int]
    """Method that returns the number of processes that are computing on the device."""

    def read(self) -> Reading:
        """Read the fast-changing counters; give a reason for each that cannot be read."""
        return self._read(_AT_EVERY_TICK)

    def inspect(self, reading: Reading) -> Reading:
        """Return the given reading plus slowly changing counters and the driver's own samples."""
        seldom = self._read(_SELDOM)
        return Reading(
            answers=reading.answers | seldom.answers,
            absent=reading.absent | seldom.absent,
            buffered=self.samples(),
        )

    def samples(self) -> dict[str, list[tuple[float, float]]]:
        """Return the samples that the driver took since the last call, by buffer."""
        return {}

    def asked(self, field: Field) -> Any:
        """Return the handle to ask for a counter."""
        return self._handle

    def number(self, field: Field, query: Query) -> Any:
        """Ask the device for a field by one of its queries; return it in the field's unit."""
        answer = self._smi.answer(query, self.asked(field))
        if field.reduce == "shares":
            return clock_events(int(answer))
        return int(answer) if field.quantity.whole else float(answer) / query.divisor

    def never_ask(self, reason: str, is_wrong: Callable[[Field], Any]) -> None:
        """Report this reason instead of the values of counters for which `is_wrong` is true."""
        for moment, field in MOMENTS.items():
            if is_wrong(field):
                buffers = [query.buffer for query in field.queries if query.buffer]
                self._never_offered |= dict.fromkeys((moment, *buffers), reason)

    def ask(self, name: str, question: Callable[[], Any], into: Reading) -> None:
        """Put the answer to a question, or the reason why there is none, into a reading."""
        # Events come from the driver and not from the device, and one says that a GPU is lost.
        gone = None if name == "xids" else self._gone
        reason = gone or self._never_offered.get(name)
        if reason is None:
            try:
                into.answers[name] = question()
                return
            except QueryError as error:
                reason = str(error)
                if isinstance(error, DeviceGoneError):
                    self._gone = reason
                elif isinstance(error, NeverOfferedError):
                    self._never_offered[name] = reason
        into.absent[name] = reason

    def _read(self, moments: Sequence[str]) -> Reading:
        reading = Reading()
        for moment in moments:
            if moment in self._questions:
                self.ask(moment, self._questions[moment], reading)
        return reading


class Forms:
    """Alternative calls, newest first, of which the first that works is used."""

    def __init__(self, *forms: Callable[[], Any]) -> None:
        self._forms = forms
        self.number = 0
        """Index of the call in use; 0 is the newest."""

    def __call__(self) -> Any:
        """Return the answer of the newest call that is offered."""
        while self.number < len(self._forms) - 1:
            try:
                return self._forms[self.number]()
            except NeverOfferedError:
                self.number += 1
        return self._forms[self.number]()
