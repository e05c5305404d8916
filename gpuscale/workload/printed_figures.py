"""Parsers for the figures that benchmarks print or log, and the metrics that these figures give."""

import math
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

import msgspec

from gpuscale.base.errors import CaseError
from gpuscale.base.strategies import STRATEGIES
from gpuscale.base.text import format_bytes
from gpuscale.records.metrics import METRICS_BY_NAME, OpenMetric, metric_from_name

_SMALLEST_BYTES = 1 << 20
"""Smallest message, in bytes, whose bandwidth is read; smaller messages measure latency."""
_COLLECTIVE = re.compile(r"#\s+Collective test starting:\s*(\w+)|\b(\w+)_perf\b")
_ROW = re.compile(r"\s*(\d+)\s+\d+\s+\w+\s+(?:\w+\s+)?(?:-?\d+\s+)?(.*)")
_SIZE = re.compile(r"(?:\.0+)? (?=[KMGT]iB)")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*(\S+)")
_NUMBERS_OF_PASS = 4
"""Number of values for each pass: time, algorithm bandwidth, bus bandwidth, wrong values."""
_MLPERF = ":::MLLOG "


def positive(value: object) -> float | None:
    """Convert a measured value to a float; return None unless it is finite and above 0."""
    with suppress(ValueError, OverflowError):
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return found if 0 < (found := float(value)) < math.inf else None
    return None


class NcclTests:
    """Parser for the output of nccl-tests and rccl-tests; lines must be passed in order."""

    metrics = ("busbw_gb_s",)
    """Metrics that every run prints; the output names any further metrics."""

    def __init__(self) -> None:
        self.collective = ""
        """Name of the current collective; empty if unknown, since older versions omit it."""

    def figures(self, line: str) -> dict[str, str | float]:
        """Return a line's bus bandwidths by metric name (an average as text); empty if none."""
        if average := _AVERAGE.search(line):
            return {"busbw_gb_s": average[1]}
        if header := _COLLECTIVE.search(line):
            self.collective = (header[1] or header[2]).removesuffix("_perf")
        if (row := _ROW.fullmatch(line)) is None or int(row[1]) < _SMALLEST_BYTES:
            return {}
        figures: dict[str, str | float] = {}
        size, numbers = _SIZE.sub("", format_bytes(int(row[1]))), row[2].split()
        # The first pass is out of place.
        for place, how in enumerate(("", " in place")):
            of_pass = numbers[place * _NUMBERS_OF_PASS :][:_NUMBERS_OF_PASS]
            if len(of_pass) == _NUMBERS_OF_PASS and (bandwidth := positive(of_pass[2])):
                figures[f"{self.collective} {size}{how} gb_s".strip().replace(" ", "_")] = bandwidth
        return figures


class _Event(msgspec.Struct):
    key: str
    time_ms: float
    value: Any = None
    metadata: dict[str, Any] = {}


class Mlperf:
    """Parser for the `:::MLLOG` lines of one training run; lines must be passed in order."""

    metrics = ("time_to_train_s",)

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        """The last printed value of each key, as text."""
        self.began_at_s: float | None = None
        self.status = "not ended"

    def figures(self, line: str) -> dict[str, str | float]:
        """Return the time to train if the line ends a successful run; else an empty dictionary."""
        _, mark, rest = line.partition(_MLPERF)
        # The output of several ranks may be mixed up within a line.
        with suppress(msgspec.DecodeError):
            event = msgspec.json.decode(rest if mark else "", type=_Event)
            if event.value:
                self.values[event.key] = str(event.value)
            if event.key == "run_start":
                self.began_at_s = event.time_ms / 1e3
            elif event.key == "run_stop" and self.began_at_s is not None:
                self.status = str(event.metadata.get("status", "not ended"))
                if self.status == "success":
                    return {"time_to_train_s": event.time_ms / 1e3 - self.began_at_s}
        return {}


FigureParser = Callable[[str], Mapping[str, str | float]]
"""Function that returns a line's figures by metric; pass it all lines of a process in order."""
KNOWN_FIGURES: Mapping[str, type[NcclTests] | type[Mlperf]] = {
    "nccl-tests": NcclTests,
    "rccl-tests": NcclTests,
    "mlperf": Mlperf,
}
"""Parsers of known benchmarks, keyed by the names that `--figure` accepts."""
_EXAMPLE = r"--figure 'Images/sec: (?P<images_per_s>[\d.]+)'"


def new_parser(figure: str) -> FigureParser:
    """Return a parser for `figure`: the name of a known benchmark or else a regular expression."""
    if (known := KNOWN_FIGURES.get(figure)) is not None:
        return known().figures
    pattern = re.compile(figure)

    def read(line: str) -> dict[str, str | float]:
        found = (each for match in pattern.finditer(line) for each in match.groupdict().items())
        return {name: text for name, text in found if text is not None}

    return read


def metrics_of(
    figure: str, better: Mapping[str, str], scaling: Literal["weak", "strong"] | None
) -> tuple[OpenMetric, ...]:
    """Return the metrics that `figure`, a regex or the name of a benchmark, reads from output.

    Raise a CaseError for an invalid argument, or if it is unknown whether higher is better.
    """

    def refused(problem: object) -> CaseError:
        return CaseError(f"--figure {shlex.quote(figure)}: {problem}")

    known_figures = KNOWN_FIGURES.get(figure)
    try:
        names = known_figures.metrics if known_figures else tuple(re.compile(figure).groupindex)
    except re.error as error:
        raise refused(error) from error
    if not names:
        known = ", ".join(KNOWN_FIGURES)
        raise refused(f"names no group, as in {_EXAMPLE}; known names are {known}")
    if taken := sorted({*METRICS_BY_NAME, *STRATEGIES}.intersection(names)):
        raise refused(f"{taken[0]} is a name of gpuscale's own; choose another for the group")
    if unknown := sorted(better.keys() - {*names}):
        raise refused(f"has no group {unknown[0]}, which --better names")
    if wrong := [f"{name}={way}" for name, way in better.items() if way not in ("more", "less")]:
        raise refused(f"--better {wrong[0]}: it takes more or less")
    found = {
        name: metric_from_name(
            name,
            more_is_better=better[name] == "more" if name in better else None,
            time_scaling=scaling,
        )
        for name in names
    }
    if open_names := [name for name, metric in found.items() if metric is None]:
        options = " ".join(f"--better {name}=more|less" for name in open_names)
        raise refused(
            f"nothing says whether more or less is better of {', '.join(open_names)}; give "
            f"{options}, or a name that ends in a unit, such as _s or _gb_s"
        )
    metrics = tuple(filter(None, found.values()))
    if scaling is not None and not any(metric.scaling == scaling for metric in metrics):
        raise refused(f"--scaling {scaling}: no group is a time of known work, such as epoch_s")
    return metrics
