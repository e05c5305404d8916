"""Exports of results to other tools.

An export is a module here, with `write(target, results)`, and its line in `EXPORTS`.
"""

from typing import NamedTuple


class Export(NamedTuple):
    """An export as the command line describes it."""

    what: str
    ending: str = ""
    """Suffix of the file that it writes; empty for a folder."""
    of_nights: bool = False
    """Whether it takes folders of nights."""


EXPORTS = {
    "tensorboard": Export("the windows of each run as scalars, for TensorBoard"),
    "otava": Export("the step times of many nights, for Apache Otava", ".csv", of_nights=True),
    "trace": Export("the windows of each rank in time, for Perfetto or chrome://tracing", ".json"),
}
"""Each export, named as its module."""
