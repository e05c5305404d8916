"""Base class of all records, and types with bounds for their fields."""

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
    """Base class of stored values; they are immutable and validated when read or written.

    Fields with default values are left out of files. The bounds exclude steps shorter than 1 ns or
    longer than 30 years, which can only be unit errors, so that all quotients and logarithms in
    judging are finite.
    """


Line = Annotated[str, Meta(max_length=LINE_LIMIT, pattern=f"^[^{UNPRINTABLE}]*{_END}")]
"""Printable text on a single line."""
Lines = Annotated[str, Meta(max_length=DETAIL_LIMIT, pattern=f"^[^{UNPRINTABLE_IN_LINES}]*{_END}")]
"""Printable text that may have line breaks and tabs."""
Name = Annotated[
    str,
    Meta(min_length=1, max_length=NAME_LIMIT, pattern=rf"^(?!\s)[^{UNPRINTABLE}]*(?<!\s){_END}"),
]
"""Non-empty text that identifies something in tables, without spaces at either end."""
Seconds = Annotated[float, Meta(ge=1e-9, le=1e9)]
Duration = Annotated[float, Meta(ge=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]
UnixTime = Annotated[float, Meta(ge=0, le=1e11)]
Count = Annotated[int, Meta(ge=0, le=10**9)]
PositiveCount = Annotated[int, Meta(ge=1, le=10**9)]
Gpus = Annotated[int, Meta(ge=1, le=10**6)]
Number = Annotated[int, Meta(ge=0, le=10**6)]
"""Number of a rank or device, counted from 0."""
Bytes = Annotated[int, Meta(ge=0, le=2**60)]
SamplesPerSecond = Annotated[float, Meta(ge=1e-9, le=1e15)]
Shape = Annotated[tuple[PositiveCount, ...], Meta(min_length=1, max_length=16)]
"""Shape of one sample, without the batch dimension."""
Moment = Annotated[str, Meta(max_length=40, pattern=r"^\d{4}-\d\d-\d\d[T ][\d:.,]+(Z|[+-][\d:]+)$")]
"""Date and time with offset from UTC, such as `2026-11-21T03:30:15+00:00`."""
Day = Annotated[
    str, Meta(pattern=rf"^\d{{4}}-\d\d-\d\d{_END}", description="a date such as 2027-05-01")
]
