"""Metrics of other programs, described by what their names and units say."""

import re
from typing import Literal

from gpuscale.records.metrics import OpenMetric

_TIME = re.compile(r"([num]?s|µs|sec(onds?)?|min(utes?)?|h(ours?)?)", re.IGNORECASE)
_RATE = re.compile(
    r".+/ ?(s|sec|second|h|hour|min)|[kMGTPE]?flops?(/s)?|.*hz|speedup|efficiency", re.IGNORECASE
)
_OVER_ALL_GPUS = re.compile(
    r"(im(a)?g(e)?s?|samples?|tokens?|seq(uence)?s?|it(er(ation)?s?)?|steps?) ?/ ?(s|sec|second)",
    re.IGNORECASE,
)
"""Rates of training, which are over all GPUs; a bandwidth or a latency has no speedup."""

_UNITS = {
    **{unit: unit for unit in ("s", "ms", "us", "ns", "J", "W")},
    **{f"{prefix}b s": f"{prefix.upper()}B/s" for prefix in "kmgt"},
    **{f"{prefix}ib s": f"{prefix.upper()}iB/s" for prefix in "kmgt"},
    **{f"{prefix}flops": f"{prefix.upper()}FLOPS" for prefix in "mgtp"},
}


def unit_of_name(name: str) -> str:
    """Return the unit at the end of a name, `GB/s` of `busbw_gb_s`; empty if there is none."""
    words = name.split("_")
    if words[-2:-1] == ["per"] and len(words) > 2:
        return f"{words[-3]}/{words[-1]}"
    ends = (" ".join(words[-count:]) for count in (2, 1))
    return next((_UNITS[end] for end in ends if end in _UNITS and end != name), "")


def described(
    name: str,
    unit: str = "",
    *,
    more_is_better: bool | None = None,
    of_work: Literal["weak", "strong"] | None = None,
) -> OpenMetric | None:
    """Return the metric of this name; None if nothing says whether more or less is better.

    `of_work` says for a time whether its work is the same on each GPU or in all.
    """
    unit = unit or unit_of_name(name)
    if more_is_better is None:
        if not (_TIME.fullmatch(unit) or _RATE.fullmatch(unit)):
            return None
        more_is_better = _TIME.fullmatch(unit) is None
    scaling: Literal["rate", "weak", "strong"] | None = None
    if more_is_better and _OVER_ALL_GPUS.fullmatch(unit):
        scaling = "rate"
    elif not more_is_better and _TIME.fullmatch(unit):
        scaling = of_work
    return OpenMetric(name=name, unit=unit, more_is_better=more_is_better, scaling=scaling)
