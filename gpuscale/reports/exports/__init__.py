"""Exports of results to other tools.

To add an export, write a module here with `write(target, results)` and list it in `EXPORTS`.
"""

from typing import NamedTuple


class Export(NamedTuple):
    """Description of an export for the command line."""

    what: str
    ending: str = ""
    """Suffix of the file that the export writes; empty if it writes a folder."""
    of_nights: bool = False
    """True if the export takes folders of nightly results."""


EXPORTS = {
    "tensorboard": Export("the windows of each run as scalars, for TensorBoard"),
    "otava": Export("the step times of many nights, for Apache Otava", ".csv", of_nights=True),
    "trace": Export("the windows of each rank in time, for Perfetto or chrome://tracing", ".json"),
}
"""Exports, keyed by module name."""
