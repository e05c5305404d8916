"""The bounds that type hints do not carry, as small checks for the tables of both formats."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from gpuscale.errors import DecodeError
from gpuscale.formats.decode import Bounds, Check, inside
from gpuscale.formats.text import shown
from gpuscale.records import Configuration, Run

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


def moment(value: str) -> None:
    """Checks a date and time with its offset from UTC."""
    try:
        offset = datetime.fromisoformat(value).utcoffset()
    except ValueError:
        offset = None
    if offset is None:
        example = "such as 2026-11-21T03:30:15+00:00"
        raise DecodeError(
            "", f"expected a date and time with offset {example}, found {shown(value)}"
        )


def day(value: str) -> None:
    """Checks a date of the calendar, written as `2027-05-01`."""
    try:
        found = date.fromisoformat(value).isoformat()
    except ValueError:
        found = None
    # Python also reads 20270501 and 2027-W17-6, which people do not.
    if found != value:
        raise DecodeError("", f"expected a date such as 2027-05-01, found {shown(value)}")


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

CONFIGURATION: Mapping[str, Check] = {
    "case": name,
    "size": name,
    "threads_per_rank": positive_count,
    "data_workers": count,
}


def expected_ranks(run: Run) -> int:
    """How many processes a run has: `dp` is one process with all devices."""
    return 1 if run.configuration.strategy == "dp" else run.gpus


def no_duplicates(place: str, labels: list[object], remedy: str) -> None:
    """Checks that no two items of a list stand for the same thing.

    Raises:
        DecodeError: naming the first item that repeats an earlier one, by position.
    """
    first: dict[object, int] = {}
    for position, label in enumerate(labels):
        if label in first:
            problem = f"the same entry as {place}[{first[label]}]"
            raise DecodeError(f"{place}[{position}]", f"{problem}; {remedy}")
        first[label] = position


def check_device(place: str, configuration: Configuration, device: str, owner: str) -> None:
    """Checks that a configuration was measured on the device that its file declares."""
    if configuration.device != device:
        problem = f"measured on '{configuration.device}', but {owner} says '{device}'"
        raise DecodeError(f"{place}configuration.device", f"{problem}; correct one of the two")
