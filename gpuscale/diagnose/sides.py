"""The runs of the baseline and of now that a row stands for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuscale.diagnose.steps import Step, step_of
from gpuscale.records import Configuration, Run
from gpuscale.scaling import PointKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What explains a change on one number of GPUs, of the baseline and of now."""

    gpus: int
    then: tuple[Step, ...]
    """Of the runs whose evidence tells the parts of their step, on either side."""
    now: tuple[Step, ...]

    @property
    def nodes(self) -> int:
        """On how many hosts the ranks of now ran."""
        return max((len({rank.host for rank in step.ranks}) for step in self.now), default=1)


def runs_by_point(runs: Iterable[Run]) -> dict[PointKey, list[Run]]:
    """The valid runs of each point."""
    points: dict[PointKey, list[Run]] = {}
    for run in runs:
        if run.is_valid:
            points.setdefault(PointKey.of(run), []).append(run)
    return points


def sides_of(
    before: Mapping[PointKey, Sequence[Run]],
    after: Mapping[PointKey, Sequence[Run]],
    configuration: Configuration,
) -> dict[int, Sides]:
    """Both sides of every number of GPUs that the baseline has measured, by that number."""
    return {
        key.gpus: Sides(
            gpus=key.gpus,
            then=_steps(runs),
            now=_steps(after.get(key, ())),
        )
        for key, runs in before.items()
        if key.configuration == configuration
    }


def _steps(runs: Sequence[Run]) -> tuple[Step, ...]:
    return tuple(step for run in runs if (step := step_of(run)) is not None)
