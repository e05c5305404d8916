"""Being asked to end while ranks are running."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_HANDLED = (signal.SIGTERM, signal.SIGHUP)


class RunTerminated(BaseException):
    """This process was asked by a signal to end while ranks were running; they have ended."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


@contextlib.contextmanager
def terminations_raised() -> Iterator[None]:
    """Raise RunTerminated in the main thread when SIGTERM or SIGHUP comes."""

    def end(number: int, _: FrameType | None) -> None:
        raise RunTerminated(number)

    earlier = {number: signal.signal(number, end) for number in _HANDLED}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
