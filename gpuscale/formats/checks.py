"""The bounds that type hints do not carry, as small checks for the tables of both formats."""

from typing import Any

from gpuscale.errors import DecodeError
from gpuscale.formats.decode import Bounds, Check, inside
from gpuscale.printable import shown

NAME_LIMIT = 200
MOST_GPUS = 1_000_000
MOST_DIMENSIONS = 16


def within(low: float, high: float, what: str) -> Check:
    """A check that a number lies between two bounds, both included."""
    return Bounds(low=low, high=high, what=what)


def each(check_item: Check) -> Check:
    """A check of every item of a list."""

    def check(values: tuple[Any, ...]) -> None:
        for position, value in enumerate(values):
            try:
                check_item(value)
            except DecodeError as error:
                raise inside(f"[{position}]", error) from None

    return check


def name(value: str) -> None:
    """Checks a text that tables show and that identifies something."""
    if not value or value != value.strip():
        raise DecodeError("", f"expected a name without spaces around it, found {shown(value)}")
    if len(value) > NAME_LIMIT:
        raise DecodeError("", f"a name of {len(value)} characters; keep it below {NAME_LIMIT}")


def sentence(value: str) -> None:
    """Checks a text that says something."""
    if not value.strip():
        raise DecodeError("", f"expected words, found {shown(value)}")


def sample_shape(value: tuple[int, ...]) -> None:
    """Checks the shape of one sample: one dimension at least, each at least 1."""
    if not 1 <= len(value) <= MOST_DIMENSIONS:
        problem = f"expected 1 to {MOST_DIMENSIONS} dimensions, found {len(value)}"
        raise DecodeError("", f"{problem}; give the shape of one sample without the batch")
    each(within(1, 1e9, "a dimension"))(value)


# A step of less than a nanosecond or of more than 30 years is a unit error, and with these
# bounds every quotient and logarithm that judging takes is finite.
seconds = within(1e-9, 1e9, "a time in seconds")
duration = within(0, 1e9, "a duration in seconds")
unix_time = within(0, 1e11, "a Unix time in seconds")
gpus = within(1, MOST_GPUS, "a number of GPUs")
batch = within(1, 1e9, "a number of samples")
positive_count = within(1, 1e9, "a count")
count = within(0, 1e9, "a count")
samples_per_s = within(1e-9, 1e15, "samples per second")
size_bytes = within(0, 2**60, "a number of bytes")
number_of_device = within(0, MOST_GPUS, "a number")
