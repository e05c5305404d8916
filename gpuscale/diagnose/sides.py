"""The runs of the baseline and of now that a row stands for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuscale.diagnose.steps import Step, step_of
from gpuscale.evidence import evidence_of
from gpuscale.records import Baseline, Configuration, MeasuredEntry, Results, Run
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


def runs_by_point(results: Sequence[Results]) -> dict[PointKey, list[Run]]:
    """The valid runs of all results together."""
    runs: dict[PointKey, list[Run]] = {}
    for result in results:
        for run in result.runs:
            if run.is_valid:
                runs.setdefault(PointKey.of(run), []).append(run)
    return runs


def sides_of(
    baseline: Baseline, runs: Mapping[PointKey, Sequence[Run]], configuration: Configuration
) -> dict[int, Sides]:
    """Both sides of every number of GPUs that the baseline has measured, by that number."""
    return {
        entry.gpus: _sides(entry, runs)
        for entry in baseline.measured
        if entry.configuration == configuration
    }


def _sides(entry: MeasuredEntry, runs: Mapping[PointKey, Sequence[Run]]) -> Sides:
    key = PointKey(entry.configuration, entry.gpus, entry.batch_per_gpu, entry.sample_shape)
    then = (step_of(run.step_time_s, run.evidence) for run in entry.runs)
    now = (step_of(run.median_step_time_s, evidence_of(run)) for run in runs.get(key, ()))
    return Sides(
        gpus=entry.gpus,
        then=tuple(step for step in then if step is not None),
        now=tuple(step for step in now if step is not None),
    )
