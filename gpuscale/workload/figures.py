"""Figures that a command prints: the pattern that reads them, and the metrics that they are."""

import re
import shlex
from collections.abc import Mapping
from typing import Literal

from gpuscale.base.errors import CaseError
from gpuscale.base.strategies import STRATEGIES
from gpuscale.records.metrics import METRICS_BY_NAME, OpenMetric, described

_NCCL_TESTS = r"Avg bus bandwidth\s*:\s*(?P<busbw_gb_s>\S+)"
KNOWN_FIGURES = {"nccl-tests": _NCCL_TESTS, "rccl-tests": _NCCL_TESTS}
"""Patterns for the figures of benchmarks, by names that `--figure` takes too."""
_EXAMPLE = r"--figure 'Images/sec: (?P<images_per_s>[\d.]+)'"


def pattern_of(figure: str) -> str:
    """Return the pattern of a known name, or the pattern itself."""
    return KNOWN_FIGURES.get(figure, figure)


def metrics_of(
    figure: str, better: Mapping[str, str], scaling: Literal["weak", "strong"] | None
) -> tuple[OpenMetric, ...]:
    """Return a metric for each named group; raise a CaseError if one is not described."""

    def refused(problem: object) -> CaseError:
        return CaseError(f"--figure {shlex.quote(figure)}: {problem}")

    try:
        compiled = re.compile(pattern_of(figure))
    except re.error as error:
        raise refused(error) from error
    names = tuple(compiled.groupindex)
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
