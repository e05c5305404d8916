"""Convert values recorded by other tools to results, and save these as nights in a folder."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from gpuscale import __version__
from gpuscale.base.errors import UsageError
from gpuscale.base.host import UNRECORDED
from gpuscale.base.text import visible
from gpuscale.records import Configuration, Environment, PublishedFigure, Results, Run
from gpuscale.records.baseline import Timed, ToleranceOverride
from gpuscale.records.evidence import NodeEvidence
from gpuscale.records.metrics import OpenMetric, metric_from_name
from gpuscale.records.record import from_json, to_json
from gpuscale.store.file_formats import encode_header
from gpuscale.store.files import file_errors, make_folder, read_with, write_report
from gpuscale.store.results import read_results
from gpuscale.workload.printed_figures import positive

_STATE = "import.json"
_FIRST_S = 1e8
"""Smallest number that is read as Unix seconds (in 1973), not as a date such as 20260301."""


class Reference(NamedTuple):
    """Value that another tool expects, with limits as relative deviations (None: no limit)."""

    value: float
    lower: float | None
    upper: float | None

    def tolerance(self, metric: OpenMetric) -> float | None:
        """Return the largest relative loss of speed within the limits; None if unlimited."""
        if metric.more_is_better:
            return None if self.lower is None else -self.lower
        return None if self.upper is None else 1 - 1 / (1 + self.upper)


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """Options for reading a hand-kept table, mostly for facts that it lacks; None if not given."""

    machine: str | None = None
    """Machine whose rows are used, if the table has a column of machines."""
    columns: Mapping[str, str] = {}
    """Meaning of each header that gpuscale does not know: `name`, `skip` or a known header."""
    case: str | None = None
    strategy: str | None = None
    batch_per_gpu: int | None = None
    gpus_per_node: int | None = None
    timed: Timed | None = None


class RecordedValue(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a test, as another tool recorded it; a field is None if it was not recorded."""

    case: str
    metric: str
    value: float
    unit: str = ""
    more_is_better: bool | None = None
    device: str = UNRECORDED
    gpus: int = 1
    """Number of devices, which need not be GPUs."""
    hosts: tuple[str, ...] = ()
    at_s: float | None = None
    published: Reference | PublishedFigure | None = None
    """Reference for a baseline: the value that the tool expects, or a figure from a table."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a tool recorded in one session on one system; imported as one night."""

    key: str
    """The tool's identifier of the session; a session is imported once for each key and start."""
    began_s: float
    """Unix time at which the session began; also used for values without a time."""
    system: str | None = None
    """Name of the system and its partition, such as `lumi:gpu`."""
    host: str | None = None
    revision: str | None = None
    """Version of what was measured, such as a Git hash."""
    values: tuple[RecordedValue, ...]
    without_value: tuple[str, ...] = ()
    """Tests that failed or recorded no usable value, each with the reason."""

    @property
    def began_at(self) -> datetime:
        """The time at which the session began, in UTC."""
        return datetime.fromtimestamp(self.began_s, UTC)


def moment_s(text: str) -> float | None:
    """Convert an ISO 8601 time (default UTC) or Unix seconds to Unix seconds; None if invalid."""
    with suppress(ValueError, OverflowError, OSError):
        seconds = positive(text)
        if seconds is None or seconds < _FIRST_S:
            found = datetime.fromisoformat(text.strip())
            seconds = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        datetime.fromtimestamp(seconds, UTC)
        return seconds
    return None


def add_directions(more_is_better: dict[str, bool], values: Sequence[RecordedValue]) -> None:
    """Add new metrics to `more_is_better`; raise UsageError if unknown whether more is better."""
    unknown: dict[str, RecordedValue] = {}
    for value in values:
        metric = metric_from_name(value.metric, value.unit, more_is_better=value.more_is_better)
        if metric is None:
            unknown.setdefault(value.metric, value)
        else:
            more_is_better.setdefault(value.metric, metric.more_is_better)
    if left := [each for name, each in unknown.items() if name not in more_is_better]:
        named = ", ".join(
            f"{each.metric} ({f'{each.value:g} {each.unit}'.strip()})" for each in left
        )
        options = " ".join(f"--better {each.metric}=more|less" for each in left)
        raise UsageError(
            f"it is unknown whether more or less is better for {named}; say so once: {options}"
        )


def metric_of(value: RecordedValue, more_is_better: Mapping[str, bool]) -> OpenMetric:
    """Return the metric of an imported value; its name must be a key of `more_is_better`."""
    metric = metric_from_name(value.metric, value.unit, more_is_better=more_is_better[value.metric])
    assert metric is not None
    return metric


def published(
    value: RecordedValue, more_is_better: Mapping[str, bool]
) -> tuple[PublishedFigure, ToleranceOverride | None]:
    """Return a value's baseline figure, and the figure's own tolerance (None if it has none)."""
    assert value.published is not None, "not all values are published"
    if isinstance(value.published, PublishedFigure):
        return value.published, None
    metric = metric_of(value, more_is_better)
    figure = PublishedFigure(
        case=value.case,
        strategy=metric.name,
        gpus=value.gpus,
        value=value.published.value,
        metric=metric,
    )
    if (margin := value.published.tolerance(metric)) is None:
        return figure, None
    case, strategy, gpus = figure.key
    margin = min(max(0.0, margin), 0.99)
    return figure, ToleranceOverride(case=case, strategy=strategy, gpus=gpus, margin=margin)


def results_of(session: Session, more_is_better: dict[str, bool]) -> Results:
    """Convert a session to results, one run per value, and add its metrics to `more_is_better`."""
    add_directions(more_is_better, session.values)
    # Only values with the same time are numbered consecutively, so that the same value from a
    # report and from a log is the same run.
    made: Counter[tuple[object, ...]] = Counter()
    runs = []
    for value in session.values:
        metric = metric_of(value, more_is_better)
        point = value.case, value.metric, value.gpus, value.at_s
        made[point] += 1
        run = Run(
            configuration=Configuration(
                case=value.case, strategy=metric.name, device=value.device, metric=metric
            ),
            gpus=value.gpus,
            index=made[point],
            started_at_s=session.began_s if value.at_s is None else value.at_s,
            measured={metric.name: value.value},
            nodes=tuple(NodeEvidence(host=host) for host in value.hosts),
        )
        runs.append(run)
    where, revision = session.system, session.revision
    return Results(
        created_at=session.began_at.isoformat(timespec="seconds"),
        gpuscale_version=__version__,
        environment=Environment(
            device=UNRECORDED, host=session.host, system=where, cases_revision=revision
        ),
        runs=tuple(runs),
    )


class _State(msgspec.Struct):
    """State of a folder of imported nights, as stored in its `import.json`."""

    system: str | None = None
    more_is_better: dict[str, bool] = {}
    files: dict[str, tuple[int, int]] = {}
    """Size and modification time (ns) of each imported file, by path."""


class ImportFolder:
    """Context manager that writes sessions as nights to a folder and updates `import.json`."""

    def __init__(self, path: Path, better: Mapping[str, bool]) -> None:
        """`better` maps metrics to True if more is better; it overrides what the folder stores."""
        self._path, self._state = path, _State()
        make_folder(path)
        if (state := path / _STATE).exists():
            self._state = read_with(state, lambda text: from_json(_State, text))
        self._state.more_is_better |= better

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        write_report(self._path / _STATE, to_json(self._state))

    def has(self, path: Path) -> bool:
        """True if the file was imported before and has not changed since."""
        return self._state.files.get(os.path.realpath(path)) == _version(path)

    def remember(self, path: Path) -> None:
        """Record that a file has been imported."""
        self._state.files[os.path.realpath(path)] = _version(path)

    def add(self, session: Session, path: Path) -> bool:
        """Write a session, read from `path`, as a night; False if all runs were imported before."""
        known = self._state.system
        if known is not None and session.system not in (known, None):
            raise UsageError(
                f"{visible(str(path))} is of {session.system}, and {visible(str(self._path))} has "
                f"nights of {known}; name one with --system, and give each a folder of its own"
            )
        results = results_of(session, self._state.more_is_better)
        self._state.system = known or session.system
        key = re.sub(r"[^A-Za-z0-9_.-]", "_", session.key)
        file = self._path / f"{session.began_at:%Y-%m-%dT%H%M%S}-{key}.jsonl"
        # A performance log grows during the day, so more runs replace an earlier import.
        if file.exists() and len(read_results(file).runs) >= len(results.runs):
            return False
        lines = (encode_header(results), *map(to_json, results.runs))
        write_report(file, "".join(f"{line}\n" for line in lines))
        return True


def _version(path: Path) -> tuple[int, int]:
    with file_errors(path):
        status = path.stat()
    return status.st_size, status.st_mtime_ns
