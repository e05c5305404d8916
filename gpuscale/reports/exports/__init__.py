"""Results as files of other tools.

An export is a module here, with `write(target, results)`, and its line in `EXPORTS`.
"""

from typing import NamedTuple


class Export(NamedTuple):
    """What the command line says of an export."""

    what: str
    ending: str = ""
    """Of the file that it writes; none for a folder."""
    of_nights: bool = False
    """Made of many nights, whose folders it takes as well."""


EXPORTS = {
    "tensorboard": Export("the windows of each run as scalars, for TensorBoard"),
    "otava": Export("the step times of many nights, for Apache Otava", ".csv", of_nights=True),
    "trace": Export("the windows of each rank in time, for Perfetto or chrome://tracing", ".json"),
}
"""Each export, named as its module."""
