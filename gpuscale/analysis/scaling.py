"""From runs to the points of a scaling curve: T(n), throughput, S(n) and E(n)."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from gpuscale.analysis.statistics.estimates import Sample, difference, log_sample
from gpuscale.base.strategies import COMMAND, STRATEGIES
from gpuscale.records import (
    Baseline,
    Configuration,
    EntryKey,
    Estimate,
    PointKey,
    PublishedFigure,
    Run,
    ScalingPoint,
    Statement,
)

UNIT_ERROR_EFFICIENCY = 1.1
Figures = Mapping[EntryKey, PublishedFigure]


class References:
    """The points on 1 GPU among others; found by their configuration, since there are many."""

    def __init__(self, points: Iterable[PointKey]) -> None:
        self._found: dict[tuple[Configuration, tuple[int, ...] | None], list[PointKey]] = {}
        for key in points:
            if key.gpus == 1:
                self._found.setdefault((key.configuration, key.sample_shape), []).append(key)

    def of(self, key: PointKey) -> PointKey | None:
        """The point on 1 GPU that a speedup is taken over, or None where there is none.

        Its batch may differ from that on more GPUs (strong scaling divides it, JUWELS halved
        it); of several, the one with the same batch per GPU is taken, or else the first.
        """
        found = self._found.get((key.configuration, key.sample_shape), ())
        return max(found, key=lambda each: each.batch_per_gpu == key.batch_per_gpu, default=None)


def scaling_points(runs: Sequence[Run]) -> tuple[ScalingPoint, ...]:
    """One point for each configuration and number of GPUs.

    Configurations come in the order in which they first appear, each with its numbers of
    GPUs ascending. Runs that differ in batch or sample shape are points of their own.
    Intervals are 95% by Student's t on per-run log medians, and absent with a single run.
    """
    groups = _by_point(runs)
    samples = _samples(groups)
    references = References(samples)
    return tuple(_point(key, its, samples, references) for key, its in groups.items())


def valid_by_point(runs: Iterable[Run]) -> dict[PointKey, list[Run]]:
    """The valid runs of each point that has any, in the order of scaling points."""
    return _by_point([run for run in runs if run.is_valid])


def _by_point(runs: Sequence[Run]) -> dict[PointKey, list[Run]]:
    groups: dict[PointKey, list[Run]] = {}
    for key, run in zip(point_keys(runs), runs, strict=True):
        groups.setdefault(key, []).append(run)
    appearance = {key.configuration: i for i, key in reversed(list(enumerate(groups)))}
    ordered = sorted(groups, key=lambda key: (appearance[key.configuration], key.gpus))
    return {key: groups[key] for key in ordered}


def point_keys(runs: Sequence[Run]) -> list[PointKey]:
    """The point of each run; of a command whose lines told no batch, that of its other runs."""
    keys = [PointKey.of(run) for run in runs]
    told = {key[:2]: key for key in keys if key.batch_per_gpu is not None}
    return [told.get(key[:2], key) if key.batch_per_gpu is None else key for key in keys]


def _samples(groups: Mapping[PointKey, Sequence[Run]]) -> dict[PointKey, Sample]:
    """The logarithms of the step times, of points that have a valid run."""
    return {
        key: log_sample(logs)
        for key, group in groups.items()
        if (logs := [run.log_step_time for run in group if run.is_valid])
    }


def step_time_ratios(runs: Sequence[Run]) -> dict[PointKey, Estimate]:
    """T(n) of a strategy over T(n) of the one that it wraps, where both were measured alike."""
    samples = _samples(_by_point(runs))
    ratios = {}
    for key, sample in samples.items():
        demands = STRATEGIES.get(key.configuration.strategy)
        if demands is None or demands.wraps is None:
            continue
        configuration = replace(key.configuration, strategy=demands.wraps)
        if (wrapped := samples.get(key._replace(configuration=configuration))) is not None:
            terms = [sample.term(), wrapped.term()]
            ratios[key] = difference(sample.mean - wrapped.mean, terms).exponential()
    return ratios


def _point(
    key: PointKey,
    runs: Sequence[Run],
    samples: Mapping[PointKey, Sample],
    references: References,
) -> ScalingPoint:
    valid = [run for run in runs if run.is_valid]
    step_time = geometric_mean(samples[key]) if valid else None
    speedup = _speedup(key, samples, references.of(key)) if valid else None
    samples_per_s = None if step_time is None else step_time.inverse(key.global_batch)
    epoch = runs[0].samples_per_epoch
    ranks = [rank for run in valid for rank in run.ranks]
    return ScalingPoint(
        configuration=key.configuration,
        gpus=key.gpus,
        batch_per_gpu=key.batch_per_gpu,
        sample_shape=key.sample_shape,
        nodes=_nodes(valid),
        valid_runs=len(valid),
        failed_runs=len(runs) - len(valid),
        step_time_s=step_time,
        samples_per_s=samples_per_s,
        epoch_s=epoch / samples_per_s.value if epoch and samples_per_s else None,
        samples_per_j=_samples_per_j(valid),
        speedup=speedup,
        efficiency=None if speedup is None else speedup.scaled(1 / key.gpus),
        gpu_utilization=known_mean(
            each.values.get("utilization_mean") for run in valid for each in run.gpu_summaries
        ),
        peak_memory_bytes=_largest(rank.peak_memory_bytes for rank in ranks),
        peak_host_memory_bytes=_largest(rank.peak_host_memory_bytes for rank in ranks),
    )


def geometric_mean(sample: Sample) -> Estimate:
    """The geometric mean that a sample of logarithms stands for, with its interval."""
    return difference(sample.mean, [sample.term()]).exponential()


def log_speedup(
    sample: Sample, global_batch: int, reference: Sample, reference_batch: int
) -> float:
    """The logarithm of the speedup: throughput over that of the reference."""
    return reference.mean - sample.mean + math.log(global_batch / reference_batch)


def _speedup(
    key: PointKey, samples: Mapping[PointKey, Sample], reference: PointKey | None
) -> Estimate | None:
    if key.gpus == 1:
        return Estimate(value=1.0)
    if reference is None:
        return None
    sample, alone = samples[key], samples[reference]
    value = log_speedup(sample, key.global_batch, alone, reference.global_batch)
    return difference(value, [sample.term(), alone.term()]).exponential()


def _nodes(runs: Sequence[Run]) -> int | None:
    found = {len({rank.host for rank in run.ranks}) for run in runs}
    return found.pop() or None if len(found) == 1 else None


def _samples_per_j(runs: Sequence[Run]) -> Estimate | None:
    found = (run.measured.get("energy_per_sample_j") for run in runs)
    logs = [math.log(energy_j) for energy_j in found if energy_j]
    return geometric_mean(log_sample(logs)).inverse(1) if logs else None


def known_mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _largest(numbers: Iterable[int | None]) -> int | None:
    return max((number for number in numbers if number is not None), default=None)


def published_speedup(figure: PublishedFigure, figures: Figures) -> float | None:
    """The speedup that the publication itself reports, over its figure for 1 GPU.

    Times are of a fixed amount of training, so their ratio is the speedup under weak and
    strong scaling alike. None where there is no figure for 1 GPU of the same kind.
    """
    one = figures.get(figure.key._replace(gpus=1))
    if figure.gpus == 1 or one is None:
        return 1.0 if figure.gpus == 1 else None
    if figure.samples_per_s is not None and one.samples_per_s is not None:
        return figure.samples_per_s / one.samples_per_s
    time_s, one_s = figure.mean_time_s, one.mean_time_s
    if time_s is None or one_s is None or figure.timed != one.timed:
        return None
    return one_s / time_s


def published_points(baseline: Baseline) -> dict[EntryKey, ScalingPoint]:
    """The point of each published figure, with the speedup that the publication reports."""
    figures = {figure.key: figure for figure in baseline.published}
    return {
        key: _published_point(figure, published_speedup(figure, figures), baseline.hardware.device)
        for key, figure in figures.items()
    }


def _published_point(figure: PublishedFigure, speedup: float | None, device: str) -> ScalingPoint:
    known = None if speedup is None else Estimate(value=speedup)
    per_s = None if figure.samples_per_s is None else Estimate(value=figure.samples_per_s)
    return ScalingPoint(
        kind="published",
        configuration=Configuration(
            case=figure.case,
            strategy=figure.strategy,
            device=device,
            precision=figure.precision,
            data=figure.data,
        ),
        gpus=figure.gpus,
        nodes=figure.nodes,
        batch_per_gpu=figure.batch_per_gpu,
        valid_runs=figure.runs,
        # A wall clock holds more than steps.
        step_time_s=None if per_s is None else per_s.inverse(figure.gpus * figure.batch_per_gpu),
        samples_per_s=per_s,
        speedup=known,
        efficiency=None if known is None else known.scaled(1 / figure.gpus),
        figure=figure,
    )


def unchecked_training_note(configurations: Iterable[Configuration]) -> Statement | None:
    """A warning on speedups of commands, whose ranks need not train one model together."""
    named = sorted({each.label for each in configurations if each.strategy == COMMAND})
    return Statement.of("unchecked_training", cases=named) if named else None


def unit_error_note(key: EntryKey, efficiency: Estimate | None) -> Statement | None:
    """A warning where the efficiency is above 1.1: a unit error until proven otherwise.

    Where its interval holds 1 it is noise.
    """
    if efficiency is None or efficiency.value <= UNIT_ERROR_EFFICIENCY:
        return None
    value, low, high = efficiency.value, efficiency.low, efficiency.high
    if low is not None and low <= 1:
        return Statement.of("noisy_efficiency", row=key, value=value, low=low, high=high)
    return Statement.of("unit_error", row=key, value=value)
