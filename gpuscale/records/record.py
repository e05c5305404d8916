"""The base of all records, and the bounds that their fields share."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gpuscale.base.printable import DETAIL_LIMIT, LINE_LIMIT, UNPRINTABLE, UNPRINTABLE_IN_LINES

# `$` would let a line break pass at the end.
_END = r"(?![\s\S])"
NAME_LIMIT = 200


class Record(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A value that is stored: immutable, and checked against its bounds when read or written.

    A field that has its default is left out of a file. Bounds are those of the files: a step of
    less than a nanosecond or of more than 30 years is a unit error, and within them every quotient
    and logarithm that judging takes is finite.
    """


Line = Annotated[str, Meta(max_length=LINE_LIMIT, pattern=f"^[^{UNPRINTABLE}]*{_END}")]
"""Printable text of one line."""
Lines = Annotated[str, Meta(max_length=DETAIL_LIMIT, pattern=f"^[^{UNPRINTABLE_IN_LINES}]*{_END}")]
"""Printable text that may have line breaks and tabs."""
Name = Annotated[
    str,
    Meta(min_length=1, max_length=NAME_LIMIT, pattern=rf"^(?!\s)[^{UNPRINTABLE}]*(?<!\s){_END}"),
]
"""Text that tables show and that identifies something, without spaces around it."""
Seconds = Annotated[float, Meta(ge=1e-9, le=1e9)]
Duration = Annotated[float, Meta(ge=0, le=1e9)]
UnixTime = Annotated[float, Meta(ge=0, le=1e11)]
Count = Annotated[int, Meta(ge=0, le=10**9)]
PositiveCount = Annotated[int, Meta(ge=1, le=10**9)]
Gpus = Annotated[int, Meta(ge=1, le=10**6)]
Number = Annotated[int, Meta(ge=0, le=10**6)]
"""Of a rank or a device."""
Bytes = Annotated[int, Meta(ge=0, le=2**60)]
SamplesPerSecond = Annotated[float, Meta(ge=1e-9, le=1e15)]
Shape = Annotated[tuple[PositiveCount, ...], Meta(min_length=1, max_length=16)]
"""Of one sample, without the batch."""
Moment = Annotated[str, Meta(max_length=40, pattern=r"^\d{4}-\d\d-\d\d[T ][\d:.,]+(Z|[+-][\d:]+)$")]
"""Date and time with offset from UTC, such as `2026-11-21T03:30:15+00:00`."""
Day = Annotated[str, Meta(pattern=rf"^\d{{4}}-\d\d-\d\d{_END}")]
"""A date such as `2027-05-01`."""
