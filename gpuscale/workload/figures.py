"""Figures that a command prints: how they are read from its lines, and as which metrics."""

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from gpuscale.base.errors import CaseError
from gpuscale.base.strategies import STRATEGIES
from gpuscale.records.metrics import METRICS_BY_NAME, OpenMetric, described
from gpuscale.workload.benchmark_output import Mlperf, NcclTests

FigureReader = Callable[[str], Mapping[str, str | float]]
"""Function that takes the lines of a process in turn; it returns each line's figures by metric."""


class KnownFigures(NamedTuple):
    """How to read the figures of a benchmark that `--figure` accepts by name: `nccl-tests`."""

    metrics: tuple[str, ...]
    """Metrics that every run prints; the output names any further metrics."""
    new_reader: Callable[[], FigureReader]


_NCCL_TESTS = KnownFigures(("busbw_gb_s",), lambda: NcclTests().figures)
KNOWN_FIGURES = {
    "nccl-tests": _NCCL_TESTS,
    "rccl-tests": _NCCL_TESTS,
    "mlperf": KnownFigures(("time_to_train_s",), lambda: Mlperf().figures),
}
"""Figures of benchmarks, by names that `--figure` accepts instead of a regular expression."""
_EXAMPLE = r"--figure 'Images/sec: (?P<images_per_s>[\d.]+)'"


def new_reader(figure: str) -> FigureReader:
    """Return the reader of a known benchmark, or of a regular expression with named groups."""
    if (known := KNOWN_FIGURES.get(figure)) is not None:
        return known.new_reader()
    pattern = re.compile(figure)

    def read(line: str) -> dict[str, str | float]:
        found = (each for match in pattern.finditer(line) for each in match.groupdict().items())
        return {name: text for name, text in found if text is not None}

    return read


def metrics_of(
    figure: str, better: Mapping[str, str], scaling: Literal["weak", "strong"] | None
) -> tuple[OpenMetric, ...]:
    """Return a metric for each named group; raise a CaseError if one has no known direction."""

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
        name: described(
            name,
            more_is_better=better[name] == "more" if name in better else None,
            of_work=scaling,
        )
        for name in names
    }
    metrics = tuple(metric for metric in found.values() if metric is not None)
    if len(metrics) < len(names):
        open_names = [name for name, metric in found.items() if metric is None]
        options = " ".join(f"--better {name}=more|less" for name in open_names)
        raise refused(
            f"nothing says whether more or less is better of {', '.join(open_names)}; give "
            f"{options}, or a name that ends in a unit, such as _s or _gb_s"
        )
    if scaling is not None and not any(metric.scaling == scaling for metric in metrics):
        raise refused(f"--scaling {scaling}: no group is a time of known work, such as epoch_s")
    return metrics
