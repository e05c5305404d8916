"""Everything that is known of one row when its causes are looked for."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpuscale.diagnose.changes import Change
from gpuscale.diagnose.reach import Point, reach_of
from gpuscale.diagnose.sides import Sides
from gpuscale.diagnose.steps import Part, Rank, Step
from gpuscale.diagnose.symptoms import Symptom
from gpuscale.diagnose.wording import numbers
from gpuscale.records import Configuration

_TAKES_PART = 0.5
"""A rank takes part in the change of the median rank from this part of it on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of GPUs of one configuration, on both sides."""

    configuration: Configuration
    sides: Sides
    points: Mapping[int, Point]
    """Of the configuration's numbers of GPUs, where the baseline tells the parts of a step."""
    symptoms: tuple[Symptom, ...]

    @property
    def changes(self) -> Mapping[Part, Change]:
        """Of this number of GPUs; empty where a side does not tell the parts of its steps."""
        point = self.points.get(self.sides.gpus)
        return {} if point is None else point.changes

    @property
    def device_uuids(self) -> frozenset[str]:
        """All devices of the runs of now."""
        ranks = (rank for step in self.sides.now for rank in step.ranks)
        return frozenset(uuid for rank in ranks for uuid in rank.device_uuids)

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts of the runs of now."""
        return tuple(sorted({rank.host for step in self.sides.now for rank in step.ranks}))

    def scope(self, part: Part) -> str:
        """From which number of GPUs on the part is lost."""
        return reach_of(part, self.sides.gpus, self.points)

    def symptoms_on(self, uuids: frozenset[str]) -> tuple[Symptom, ...]:
        """The symptoms of those devices."""
        return tuple(symptom for symptom in self.symptoms if symptom.uuid in uuids)

    def whose(self, seconds: Callable[[Rank], float]) -> str:
        """Which ranks share the change of the median rank: `all ranks`, `ranks 1 and 2 of 4`.

        Empty where there is only one.
        """
        then, now = (_by_rank(steps, seconds) for steps in (self.sides.then, self.sides.now))
        if len(now) < 2:
            return ""
        change_s = statistics.median_low(now.values()) - statistics.median_low(then.values())
        ranks = [rank for rank in now if now[rank] - then.get(rank, 0.0) >= _TAKES_PART * change_s]
        if len(ranks) in (0, len(now)):
            return "all ranks"
        return f"rank{'s' if len(ranks) > 1 else ''} {numbers(ranks)} of {len(now)}"


def _by_rank(steps: Sequence[Step], seconds: Callable[[Rank], float]) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for step in steps:
        for rank in step.ranks:
            values.setdefault(rank.rank, []).append(seconds(rank))
    return {rank: statistics.fmean(found) for rank, found in values.items()}
