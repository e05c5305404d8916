"""Values that another tool recorded, and their conversion to results."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from gpuscale import __version__
from gpuscale.base.errors import UsageError
from gpuscale.records import Configuration, Environment, PublishedFigure, Results, Run
from gpuscale.records.environment import UNRECORDED
from gpuscale.records.metrics import OpenMetric, described
from gpuscale.records.node_evidence import NodeEvidence
from gpuscale.records.tolerances import ToleranceOverride


class Reference(NamedTuple):
    """The value that a tool expected; the thresholds are fractions of it."""

    value: float
    lower: float | None
    upper: float | None

    def tolerance(self, metric: OpenMetric) -> float | None:
        """Return the loss of speed that the thresholds allow; None if they do not limit it."""
        if metric.more_is_better:
            return None if self.lower is None else -self.lower
        return None if self.upper is None else 1 - 1 / (1 + self.upper)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedValue:
    """One value of a test, as another tool recorded it; a field is None if it was not recorded."""

    case: str
    metric: str
    value: float
    unit: str = ""
    more_is_better: bool | None = None
    gpus: int = 1
    hosts: tuple[str, ...] = ()
    at_s: float | None = None
    reference: Reference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Everything that a tool recorded in one session on one system; it becomes one night."""

    key: str
    """The tool's identifier of the session; sessions with the same key are imported only once."""
    began_at: datetime
    system: str | None = None
    """Name of the system and its partition, such as `lumi:gpu`."""
    host: str | None = None
    values: tuple[RecordedValue, ...]
    without_value: tuple[str, ...] = ()
    """Tests that failed or recorded no usable value, each with the reason."""

    @property
    def file_name(self) -> str:
        """Name of the results file, sorted by age within its folder."""
        return f"{self.began_at:%Y-%m-%dT%H%M%S}-{re.sub(r'[^A-Za-z0-9_.-]', '_', self.key)}.jsonl"


class Directions:
    """The better direction of each metric, as given, as recorded by the tool, or by its unit."""

    def __init__(self, given: Mapping[str, bool]) -> None:
        """`given` has the known directions by name of metric; True if more is better."""
        self.known = dict(given)

    def metric_of(self, value: RecordedValue) -> OpenMetric:
        """Return the metric of a value; its direction must be known."""
        more = self.known[value.metric]
        metric = described(value.metric, value.unit, more_is_better=more)
        assert metric is not None
        return metric

    def learn(self, values: Iterable[RecordedValue]) -> None:
        """Add the directions of new metrics; raise a UsageError that names those still unknown."""
        unknown: dict[str, RecordedValue] = {}
        for value in values:
            metric = described(value.metric, value.unit, more_is_better=value.more_is_better)
            if metric is None:
                unknown.setdefault(value.metric, value)
            else:
                self.known.setdefault(value.metric, metric.more_is_better)
        if left := [each for name, each in unknown.items() if name not in self.known]:
            named = ", ".join(
                f"{each.metric} ({f'{each.value:g} {each.unit}'.strip()})" for each in left
            )
            options = " ".join(f"--better {each.metric}=more|less" for each in left)
            raise UsageError(
                f"nothing says whether more or less is better of {named}; say so once: {options}"
            )


def published(
    value: RecordedValue, metric: OpenMetric
) -> tuple[PublishedFigure, ToleranceOverride | None]:
    """Return a value's reference as a published figure, with the allowed loss if it sets one."""
    assert value.reference is not None, "only values with a reference are published"
    figure = PublishedFigure(
        case=value.case,
        strategy=metric.name,
        gpus=value.gpus,
        value=value.reference.value,
        metric=metric,
    )
    margin = value.reference.tolerance(metric)
    if margin is None:
        return figure, None
    case, strategy, gpus = figure.key
    margin = min(max(0.0, margin), 0.99)
    return figure, ToleranceOverride(case=case, strategy=strategy, gpus=gpus, margin=margin)


def results_of(session: Session, directions: Directions) -> Results:
    """Return the results of a session, with a run for each value."""
    directions.learn(session.values)
    environment = Environment(device=UNRECORDED, host=session.host, system=session.system)
    return Results(
        created_at=session.began_at.isoformat(timespec="seconds"),
        gpuscale_version=__version__,
        environment=environment,
        runs=tuple(_runs(session, directions)),
    )


def _runs(session: Session, directions: Directions) -> Iterator[Run]:
    made: Counter[tuple[str, str, int]] = Counter()
    for value in session.values:
        metric = directions.metric_of(value)
        made[value.case, value.metric, value.gpus] += 1
        yield Run(
            configuration=Configuration(
                case=value.case, strategy=metric.name, device=UNRECORDED, metric=metric
            ),
            gpus=value.gpus,
            index=made[value.case, value.metric, value.gpus],
            started_at_s=value.at_s,
            measured={metric.name: value.value},
            nodes=tuple(NodeEvidence(host=host) for host in value.hosts),
        )
