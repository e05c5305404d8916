"""`gpuscale baseline`: its actions, and the options and texts that several of them share."""

import argparse
import getpass
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from gpuscale.analysis.scaling import Entry
from gpuscale.base.errors import FileError, UsageError
from gpuscale.base.printable import clean
from gpuscale.base.units import rough_percent
from gpuscale.judge.compare import compare
from gpuscale.judge.recording import EntryId, entries_of, results_of
from gpuscale.judge.sides import side_of_baseline
from gpuscale.records import Baseline
from gpuscale.records.environment_diff import listed
from gpuscale.records.record import NAME_LIMIT
from gpuscale.reports.phrases import FOUND
from gpuscale.reports.show.baseline_text import step_time_text
from gpuscale.store import write_baseline
from gpuscale.store.files import file_errors

_ACTIONS = (
    ("record", "make a baseline from measured results"),
    ("show", "print what a baseline holds, and where it comes from"),
    ("diff", "print what differs between two baselines"),
    ("update", "replace or add results, after approval of each change"),
    ("import", "make a baseline from a table kept by hand"),
)
TOO_WEAK = 0.2
"""Smallest detectable loss, as a fraction, above which a baseline is refused; the tolerance for
published figures is no wider."""
MOST_NAMED = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions; the arguments of an action are added only when the user names the action."""
    parser.description = "Make a baseline, show it, and keep it true."
    actions: Any = parser.add_subparsers(
        dest="action", required=True, metavar="ACTION", parser_class=type(parser)
    )
    for name, summary in _ACTIONS:
        module = "show" if name == "show" else f"baseline_{name}"
        actions.add_parser(name, help=summary).module = f"gpuscale.cli.{module}"


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options for a new baseline's file, machine and name."""
    text = "the baseline file to write"
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help=text)
    parser.add_argument("--cluster", required=True, help="the machine's name, such as 'ARC4'")
    parser.add_argument("--name", help="the baseline's name (default: that of FILE)")


def add_expiry(parser: argparse.ArgumentParser) -> None:
    """Add the options for a baseline's expiry."""
    text = "the last day on which it is valid, such as 2027-05-01"
    parser.add_argument("--expires", metavar="DATE", help=text)


def new_baseline(arguments: argparse.Namespace) -> tuple[Path, str]:
    """Return the path and name of a new baseline; raise a FileError if the file exists."""
    output = Path(arguments.output)
    if output.exists():
        raise FileError(output, "exists already; choose another name, or delete it")
    return output, output.stem if arguments.name is None else arguments.name


def write_new(path: Path, baseline: Baseline) -> None:
    """Write a new baseline file, in a new folder if necessary."""
    with file_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_baseline(path, baseline)


def login_name() -> str | None:
    """Return the user's login name; None if the system does not know it, as in some containers."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None
    return clean(name).strip()[:NAME_LIMIT] or None


def last_valid_day(arguments: argparse.Namespace) -> str | None:
    """Return the requested expiry date, if any."""
    try:
        return arguments.expires and date.fromisoformat(arguments.expires).isoformat()
    except ValueError:
        problem = f"'{arguments.expires}' is not a date such as 2027-05-01"
        raise UsageError(f"--expires: {problem}") from None


def measured_entries(baseline: Baseline) -> dict[EntryId, Entry]:
    """Return the measured entries of a baseline, in the order of the baseline."""
    return {
        EntryId(entry.point.configuration, entry.point.key.gpus): entry
        for entry in side_of_baseline(baseline).entries
    }


class SmallestLoss(NamedTuple):
    """Smallest loss in a baseline entry that a repetition with equally many runs would detect."""

    loss: float
    """Smallest detectable loss as a fraction; infinite if no loss could be detected."""
    label: str
    step_time: str

    def __str__(self) -> str:
        limit = _size(self.loss) if math.isinf(self.loss) else f"from {_size(self.loss)}"
        return f"{self.label} {limit} (step time {self.step_time})"


def smallest_losses(baseline: Baseline) -> list[SmallestLoss]:
    """Return the smallest detectable loss of each entry in a baseline, in descending order."""
    runs = entries_of(baseline.runs)
    losses = []
    for entry in compare(baseline, results_of(baseline)).entries:
        if entry.configuration is not None:
            loss = entry.minimum_detectable_loss
            step_time = step_time_text(runs[EntryId(entry.configuration, entry.key.gpus)])
            loss = math.inf if loss is None else loss
            losses.append(SmallestLoss(loss, entry.key.label, step_time))
    return sorted(losses, key=lambda each: -each.loss)


def validate_strength(
    losses: Iterable[SmallestLoss], remedy: str, *, condition: str = "", known: Mapping[str, float]
) -> None:
    """Raise a UsageError if losses above the limit, and above the known ones, would be missed.

    Args:
        losses: The smallest detectable loss in each entry.
        remedy: Advice for the user, such as an option that takes the baseline as it is.
        condition: Text on what makes the baseline weak, with a space at its end.
        known: Losses that already had to be this large to be detected, keyed by label.
    """
    large = [f"{each}" for each in losses if each.loss > max(TOO_WEAK, known.get(each.label, 0.0))]
    if large:
        raise UsageError(
            f"nothing was written: {condition}only losses above {rough_percent(TOO_WEAK)} would be "
            f"{FOUND}: {listed(large, MOST_NAMED)}; {remedy}"
        )


def range_text(losses: Sequence[SmallestLoss]) -> str:
    """Format losses as `4.3 % (mnist_cnn/ddp on 4 GPUs) to 6.2 % (mnist_cnn/ddp on 1 GPU)`."""
    largest, smallest = losses[0], losses[-1]
    if _size(largest.loss) == _size(smallest.loss):
        return _size(smallest.loss)
    return f"{_size(smallest.loss)} ({smallest.label}) to {_size(largest.loss)} ({largest.label})"


def _size(loss: float) -> str:
    return "none" if math.isinf(loss) else rough_percent(loss)
