"""Reduce runs to points of a scaling curve: step time, throughput, speedup and efficiency."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

import msgspec

from gpuscale.analysis.estimates import Sample, difference, exponential, log_sample
from gpuscale.base.grouping import by_key
from gpuscale.base.strategies import COMMAND
from gpuscale.records import (
    Baseline,
    Configuration,
    EntryKey,
    Estimate,
    PointKey,
    PublishedFigure,
    Run,
    Scaling,
    ScalingPoint,
    Statement,
)

UNIT_ERROR_EFFICIENCY = 1.1


class Entry(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The runs of one configuration on one number of GPUs, and the scaling point they yield."""

    key: PointKey
    placed: Sequence[tuple[str, Run]]
    """Each run with the allocation in which it was made."""
    reference: "Entry | None"
    """The entry on 1 GPU to which the speedup refers; None if there is none or it is this one."""

    @cached_property
    def runs(self) -> Mapping[str, Sequence[Run]]:
        """Valid runs by allocation."""
        return by_key((name, run) for name, run in self.placed if run.is_valid)

    @cached_property
    def logs(self) -> Mapping[str, tuple[float, ...]]:
        """Logarithms of the step times of the valid runs, by allocation."""
        return {name: tuple(run.log_cost for run in runs) for name, runs in self.runs.items()}

    @cached_property
    def valid(self) -> tuple[Run, ...]:
        """The valid runs of all allocations."""
        return tuple(run for runs in self.runs.values() for run in runs)

    @property
    def failed(self) -> list[Run]:
        """The failed runs of all allocations."""
        return [run for _, run in self.placed if not run.is_valid]

    @cached_property
    def sample(self) -> Sample:
        """Sample of the log step times of all valid runs; requires at least one valid run."""
        return log_sample([log for logs in self.logs.values() for log in logs])

    def log_speedup_over(self, other: "Entry") -> float:
        """Return the logarithm of this entry's throughput divided by the other's throughput."""
        batches = self.key.global_batch / other.key.global_batch
        return other.sample.mean - self.sample.mean + math.log(batches)

    @cached_property
    def speedup(self) -> Estimate | None:
        """Speedup over the reference, from valid runs; None if there is no reference."""
        if self.key.gpus == 1 and self.key.configuration.has_speedup:
            return Estimate(value=1.0)
        if (one := self.reference) is None:
            return None
        terms = [self.sample.term(), one.sample.term()]
        return difference(self.log_speedup_over(one), terms).exponential()

    @cached_property
    def point(self) -> ScalingPoint:
        """The runs reduced to a point of a scaling curve."""
        return _point(self)


def references_of(points: Collection[PointKey]) -> dict[PointKey, PointKey]:
    """Map each point to the single-GPU point that its speedup refers to; omit points without one.

    The batch per GPU may differ, as in strong scaling; the same batch is preferred.
    """
    singles = by_key(
        ((key.configuration, key.sample_shape), key)
        for key in points
        if key.gpus == 1 and key.configuration.has_speedup
    )
    return {
        key: max(found, key=lambda one: one.batch_per_gpu == key.batch_per_gpu)
        for key in points
        if (found := singles.get((key.configuration, key.sample_shape)))
    }


def grouped(placed: Sequence[tuple[str, Run]]) -> tuple[Entry, ...]:
    """Group runs, each given with its allocation, by configuration and number of GPUs.

    Groups are sorted by first appearance of their configurations, then by number of GPUs. Runs that
    differ in batch or sample shape form separate entries.
    """
    by_point = by_key(zip(point_keys([run for _, run in placed]), placed, strict=True))
    appearance = {key.configuration: i for i, key in reversed(list(enumerate(by_point)))}
    references = references_of(
        [key for key, pairs in by_point.items() if any(run.is_valid for _, run in pairs)]
    )
    entries: dict[PointKey | None, Entry] = {}
    # A reference, on 1 GPU, precedes the entries that refer to it.
    for key in sorted(by_point, key=lambda key: (appearance[key.configuration], key.gpus)):
        reference = entries.get(references.get(key))
        entries[key] = Entry(key=key, placed=by_point[key], reference=reference)
    return tuple(entries.values())


def scaling_points(runs: Sequence[Run]) -> tuple[ScalingPoint, ...]:
    """Return a point for each combination of configuration, GPU count, batch and sample shape."""
    return tuple(entry.point for entry in grouped([("", run) for run in runs]))


def point_keys(runs: Sequence[Run]) -> list[PointKey]:
    """Return each run's key; if its batch size is unknown, the key of the other runs of its row."""
    keys = [PointKey.of(run) for run in runs]
    known = {key[:2]: key for key in keys if key.batch_per_gpu is not None}
    return [known.get(key[:2], key) if key.batch_per_gpu is None else key for key in keys]


def _point(entry: Entry) -> ScalingPoint:
    key, valid = entry.key, entry.valid
    level = Scaling()
    if valid:
        level = level_of(key, geometric_mean(entry.sample), entry.speedup)
    epoch = entry.placed[0][1].samples_per_epoch
    ranks = [rank for run in valid for rank in run.ranks]
    nodes = {len({rank.host for rank in run.ranks}) for run in valid}
    energies_j = (run.measured.get("energy_per_sample_j") for run in valid)
    energy_logs = [math.log(energy_j) for energy_j in energies_j if energy_j]
    return ScalingPoint(
        configuration=key.configuration,
        gpus=key.gpus,
        batch_per_gpu=key.batch_per_gpu,
        sample_shape=key.sample_shape,
        nodes=nodes.pop() or None if len(nodes) == 1 else None,
        valid_runs=len(valid),
        failed_runs=len(entry.failed),
        value=level.value,
        unit=level.unit,
        step_time_s=level.step_time_s,
        samples_per_s=level.samples_per_s,
        epoch_s=epoch / level.samples_per_s.value if epoch and level.samples_per_s else None,
        samples_per_j=geometric_mean(log_sample(energy_logs)).inverse(1) if energy_logs else None,
        speedup=level.speedup,
        efficiency=level.efficiency,
        gpu_utilization=known_mean(
            summary.values.get("utilization_mean") for run in valid for summary in run.gpu_summaries
        ),
        peak_memory_bytes=_largest(rank.peak_memory_bytes for rank in ranks),
        peak_host_memory_bytes=_largest(rank.peak_host_memory_bytes for rank in ranks),
    )


def level_of(key: PointKey, cost: Estimate, speedup: Estimate | None = None) -> Scaling:
    """Convert a cost (less is better) to step time and throughput, or to the metric of `key`."""
    metric, per_s = key.configuration.metric, cost.inverse(key.global_batch)
    efficiency = None if speedup is None else speedup.scaled(1 / key.gpus)
    if metric is None:
        return Scaling(
            step_time_s=cost, samples_per_s=per_s, speedup=speedup, efficiency=efficiency
        )
    value = per_s if metric.more_is_better else cost
    return Scaling(value=value, unit=metric.unit, speedup=speedup, efficiency=efficiency)


def level_at(key: PointKey, log_cost: float) -> Scaling:
    """Return step time and throughput for the log of a cost; `level_of` adds intervals."""
    return level_of(key, Estimate(value=exponential(log_cost)))


def geometric_mean(sample: Sample) -> Estimate:
    """Convert a sample of logarithms to the geometric mean of the values, with an interval."""
    return difference(sample.mean, [sample.term()]).exponential()


def throughput_change(before: Sample, after: Sample) -> Estimate:
    """Return the relative change of throughput between two samples of log step times."""
    return difference(before.mean - after.mean, [before.term(), after.term()]).relative_change()


def known_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values; None if all values are unknown."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _largest(numbers: Iterable[int | None]) -> int | None:
    return max((number for number in numbers if number is not None), default=None)


def published_points(baseline: Baseline) -> dict[EntryKey, ScalingPoint]:
    """Return each published figure as a scaling point, with its speedup over 1 GPU if known."""
    figures = {figure.key: figure for figure in baseline.published}
    return {
        key: _published_point(figure, figures.get(key._replace(gpus=1)), baseline.hardware.device)
        for key, figure in figures.items()
    }


def _published_point(
    figure: PublishedFigure, one: PublishedFigure | None, device: str
) -> ScalingPoint:
    ratio = None if one is None else figure.speedup_over(one)
    speedup = None if ratio is None else Estimate(value=ratio)
    per_s = None if figure.samples_per_s is None else Estimate(value=figure.samples_per_s)
    return ScalingPoint(
        kind="published",
        configuration=figure.configuration_on(device),
        gpus=figure.gpus,
        nodes=figure.nodes,
        batch_per_gpu=figure.batch_per_gpu,
        valid_runs=figure.runs,
        # Published wall-clock times include more than the steps.
        step_time_s=per_s and per_s.inverse(figure.gpus * (figure.batch_per_gpu or 1)),
        samples_per_s=per_s,
        value=None if figure.value is None else Estimate(value=figure.value),
        unit="" if figure.metric is None else figure.metric.unit,
        speedup=speedup,
        efficiency=speedup and speedup.scaled(1 / figure.gpus),
        figure=figure,
    )


def unchecked_training_note(configurations: Iterable[Configuration]) -> Statement | None:
    """Return a note that training by users' commands is not verified; None if no command ran."""
    named = sorted({used.label for used in configurations if used.strategy == COMMAND})
    return Statement.of("unchecked_training", cases=named) if named else None


def unit_error_note(key: EntryKey, efficiency: Estimate | None) -> Statement | None:
    """Return a note if an efficiency is above 1.1, a sign of a unit error or noise; else None."""
    if efficiency is None or efficiency.value <= UNIT_ERROR_EFFICIENCY:
        return None
    return Statement.of("unit_error", row=key, value=efficiency.value)
