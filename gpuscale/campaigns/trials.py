"""Trials of gpuscale itself on this machine: false alarms, detected faults, and overhead."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from typing import Literal

from msgspec.structs import replace

from gpuscale import __version__
from gpuscale.analysis.statistics.estimates import difference, log_sample
from gpuscale.analysis.statistics.significance import rate_of
from gpuscale.base.devices import GPU_KINDS
from gpuscale.base.errors import GpuscaleError
from gpuscale.base.strategies import STRATEGIES
from gpuscale.base.units import format_seconds
from gpuscale.judge.compare.comparison import Choice, compare_sides
from gpuscale.judge.diagnose import diagnose
from gpuscale.judge.recording import baseline_from_results
from gpuscale.judge.sides import sides_of
from gpuscale.measure.telemetry.summary import sample_run
from gpuscale.records import (
    Configuration,
    EntryKey,
    Environment,
    Estimate,
    Failure,
    Rate,
    Results,
    Run,
    RunRequest,
)
from gpuscale.records.cause import CauseKind
from gpuscale.records.trial_report import (
    DetectableLoss,
    Fault,
    FaultResult,
    OverheadOutcome,
    OverheadPlan,
    OverheadReport,
    OverheadResult,
    TrialsReport,
)
from gpuscale.records.verdict import EntryVerdict, Verdict
from gpuscale.workload.cases import TrainingCase
from gpuscale.workload.run_defaults import default_request

RUNS_PER_BLOCK = 3
"""Runs on each number of GPUs in a block; a block of trials simulates one nightly run."""
BASELINE_BLOCKS = 2
"""Number of preceding clean blocks with which each block is compared."""
OVERHEAD_PAIRS = 40
"""Number of window pairs in an overhead run; gpuscale runs one window, a bare loop the other."""

_FEWEST_BASELINE_RUNS = 2
"""Minimum number of steady runs in a trial's baseline; less than for an ordinary baseline."""
_FAULTS: Mapping[str, tuple[str, CauseKind]] = {
    "data stall": ("data={data_ms:.3f}ms", CauseKind.DATA),
    # The last rank is the slow one.
    "slow rank": ("slow-rank={last}:{factor:g}", CauseKind.SLOW_RANK),
    "slower compute": ("compute={factor:g}", CauseKind.COMPUTE),
}
_FAULT_SIZES = (0.2, 0.4)
_LIMITS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(GPU_KINDS, (1.005, 0.0)),
    "cpu": (1.01, 0.020),
}
"""Largest overhead ratio by device, and the shortest step (in seconds) that it applies to."""
_MOST_EVIDENCE_S = 0.05
"""Largest time that a run's evidence may take on a node."""
_TRIMMED = 0.2
"""Fraction of a run's sorted log ratios trimmed at each end."""

OverheadRun = Sequence[OverheadOutcome] | Failure
"""Result of an overhead run: the outcomes of all ranks, or the failure of the run."""


def possible_faults(
    configuration: Configuration, gpus: Sequence[int]
) -> tuple[tuple[Fault, ...], tuple[str, ...]]:
    """Return the faults to inject, each in two sizes, and why other faults cannot be injected."""
    alone = STRATEGIES[configuration.strategy].processes(max(gpus)) == 1
    faults = tuple(
        Fault(name=name, size=size, injection=text.partition("=")[0], kind=kind)
        for name, (text, kind) in _FAULTS.items()
        for size in _FAULT_SIZES
        if not (alone and kind is CauseKind.SLOW_RANK)
    )
    not_tried = "slow link: needs two hosts, and a link between them that can be limited"
    return faults, (*(["slow rank: needs ddp on 2 GPUs or more"] if alone else []), not_tried)


def injection_text(fault: Fault, *, step_time_s: float, gpus: Sequence[int]) -> str:
    """Return the value of `--inject` that causes a fault."""
    return _FAULTS[fault.name][0].format(
        data_ms=fault.size * step_time_s * 1e3, last=max(gpus) - 1, factor=1 + fault.size
    )


def blocks(faults: Sequence[Fault], *, pairs: int, trials: int) -> Iterator[Fault | None]:
    """Yield the fault of each block, None for a clean block; faulty blocks are spread evenly."""
    yield from [None] * BASELINE_BLOCKS
    faulty = [fault for _ in range(trials) for fault in faults]
    for pair in range(pairs):
        yield None
        yield from faulty[len(faulty) * pair // pairs : len(faulty) * (pair + 1) // pairs]


@dataclass(slots=True)
class Trials:
    """Runs of a case on this machine, made one after the other and judged in blocks."""

    make_run: Callable[[RunRequest], Run]
    case: type[TrainingCase]
    environment: Environment
    gpus: Sequence[int]
    runs_made: int = 0
    """Number of runs of all kinds so far."""
    _clean: list[Results] = field(default_factory=list)
    _runs: list[Run] = field(default_factory=list)
    _judged: list[tuple[Fault | None, tuple[EntryVerdict, ...]]] = field(default_factory=list)
    """Fault of each judged block, and the verdicts against the preceding clean blocks."""
    _started: float = field(default_factory=time.monotonic)

    def make(self, fault: Fault | None) -> None:
        """Measure a block, and compare it with the clean blocks before it if there are enough."""
        results = self._measure(fault)
        before = self._clean[-BASELINE_BLOCKS:]
        if len(before) == BASELINE_BLOCKS:
            # Nothing can be judged if no earlier run was steady; the report counts that.
            with suppress(GpuscaleError):
                baseline = baseline_from_results(
                    before, name="before", cluster="here", minimum_runs=_FEWEST_BASELINE_RUNS
                )
                sides = sides_of(baseline, [results])
                judged = diagnose(sides, compare_sides(sides, Choice()))
                self._judged.append((fault, judged.entries))
        if fault is None:
            self._clean.append(results)

    def report(
        self, faults: Sequence[Fault], not_tried: Sequence[str], overhead: OverheadReport
    ) -> TrialsReport:
        """Return a report with the rates over all blocks so far and the overhead given."""
        clean = [rows for fault, rows in self._judged if fault is None]
        losses: dict[EntryKey, list[float]] = {}
        for row in (row for rows in clean for row in rows):
            if row.minimum_detectable_loss is not None:
                losses.setdefault(row.key, []).append(row.minimum_detectable_loss)
        return TrialsReport(
            configuration=self._runs[0].configuration,
            environment=self.environment,
            gpus=tuple(self.gpus),
            runs_per_block=RUNS_PER_BLOCK,
            comparisons=len(clean),
            false_alarms=_rate(
                (len(_regressed(rows)), sum(row.verdict.is_judged for row in rows))
                for rows in clean
            ),
            detectable_losses=tuple(
                DetectableLoss(key=key, loss=statistics.median(row_losses))
                for key, row_losses in losses.items()
            ),
            faults=tuple(self._fault_result(fault) for fault in faults),
            not_tried=tuple(not_tried),
            runs=len(self._runs),
            failed_runs=sum(not run.is_valid for run in self._runs),
            overhead=overhead,
            wall_s=time.monotonic() - self._started,
        )

    def measure_overhead(
        self, compare_with_bare_loop: Callable[[RunRequest, OverheadPlan], OverheadRun], runs: int
    ) -> OverheadReport:
        """Compare gpuscale with a bare loop, in `runs` runs on each number of GPUs."""
        started = time.monotonic()
        first = default_request(self.case, self.environment, gpus=self.gpus[0], run=1)
        made: dict[int, list[OverheadRun]] = {gpus: [] for gpus in self.gpus}
        for run, gpus in product(range(1, runs + 1), self.gpus):
            request = default_request(self.case, self.environment, gpus=gpus, run=run)
            with sample_run(request, self.environment) as sampling:
                pid = sampling.sampler.pid if sampling and sampling.sampler else None
                plan = OverheadPlan(pairs=OVERHEAD_PAIRS, sampler_pid=pid)
                made[gpus].append(compare_with_bare_loop(request, plan))
            self.runs_made += 1
        return OverheadReport(
            configuration=first.configuration,
            environment=self.environment,
            results=tuple(
                judge_overhead(self.environment.device, gpus, of_gpus)
                for gpus, of_gpus in made.items()
            ),
            wall_s=time.monotonic() - started,
        )

    def _measure(self, fault: Fault | None) -> Results:
        created_at = datetime.now(UTC)
        injections: tuple[str, ...] = ()
        if fault is not None:
            injections = (injection_text(fault, step_time_s=self._step_time_s(), gpus=self.gpus),)
        runs = []
        for run, gpus in product(range(1, RUNS_PER_BLOCK + 1), self.gpus):
            request = default_request(self.case, self.environment, gpus=gpus, run=run)
            with sample_run(request, self.environment) as sampling:
                made = self.make_run(replace(request, injections=injections))
                runs.append(sampling.summarize(made).added_to(made) if sampling else made)
            self.runs_made += 1
        self._runs += runs
        return Results(
            created_at=created_at.isoformat(timespec="milliseconds"),
            gpuscale_version=__version__,
            environment=self.environment,
            injections=injections,
            runs=tuple(runs),
        )

    def _step_time_s(self) -> float:
        """Median step time of the clean runs so far, on the fewest GPUs."""
        times_s = [
            run.step_time_s
            for results in self._clean
            for run in results.runs
            if run.is_valid and run.gpus == min(self.gpus)
        ]
        if not times_s:
            raise GpuscaleError(
                f"no run of {self.case.name()} gave a number, so there is nothing to slow down; "
                "see 'gpuscale doctor' and whether other work runs on this machine"
            )
        return statistics.median(times_s)

    def _fault_result(self, fault: Fault) -> FaultResult:
        """Return how often a fault is found and named in the row with the most GPUs.

        Only that row is used: every fault affects it, and a slowed rank exists in no other row.
        """
        most = max(self.gpus)
        regressed = [
            [
                row
                for row in _regressed(rows)
                if row.key.gpus == most or fault.injection != "slow-rank"
            ]
            for made, rows in self._judged
            if made == fault and any(row.key.gpus == most and row.verdict.is_judged for row in rows)
        ]
        first = [max(rows, key=lambda row: row.key.gpus).causes[:1] for rows in regressed if rows]
        return FaultResult(
            fault=fault,
            found=_rate((bool(rows), 1) for rows in regressed),
            named=_rate((sum(cause.kind is fault.kind for cause in causes), 1) for causes in first),
        )


def _regressed(rows: Iterable[EntryVerdict]) -> list[EntryVerdict]:
    return [row for row in rows if row.verdict is Verdict.REGRESSED]


def _rate(counts: Iterable[tuple[int, int]]) -> Rate | None:
    filled = [(events, trials) for events, trials in counts if trials]
    return rate_of(filled) if filled else None


def judge_overhead(device: str, gpus: int, runs: Sequence[OverheadRun]) -> OverheadResult:
    """Return the overhead of measuring at one GPU count, computed from at least one run.

    Windows with and without measuring are paired; each pair gives the log ratio of the slowest
    rank's times. A run's value is the trimmed mean of its log ratios; the interval reflects the
    spread between runs.
    """
    valid = [run for run in runs if not isinstance(run, Failure)]
    if not valid and isinstance(runs[0], Failure):
        raise GpuscaleError(f"every run on {gpus} GPUs failed: {runs[0].message}")
    means, step_times_s = [], []
    for run in valid:
        logs = []
        for pair_of_ranks in zip(*(rank.pairs for rank in run), strict=True):
            bare_s = max(pair.bare_s for pair in pair_of_ranks)
            step_times_s.append(bare_s / run[0].steps_per_window)
            logs.append(math.log(max(pair.measured_s for pair in pair_of_ranks) / bare_s))
        cut = int(_TRIMMED * len(logs))
        means.append(statistics.fmean(sorted(logs)[cut : len(logs) - cut]))
    sample = log_sample(means)
    ratio = difference(sample.mean, [sample.term()]).exponential()
    step_time_s = statistics.median(step_times_s)
    evidence_s = [max(rank.evidence_s for rank in run) for run in valid]
    verdict, reason = _verdict(ratio, step_time_s, statistics.median(evidence_s), device)
    logs_bytes = [size for run in valid for rank in run if (size := rank.log_bytes) is not None]
    return OverheadResult(
        gpus=gpus,
        runs=len(valid),
        pairs=len(step_times_s),
        step_time_s=step_time_s,
        ratio=ratio,
        evidence_s=statistics.median(evidence_s),
        most_evidence_s=max(evidence_s),
        log_bytes=sum(logs_bytes) if logs_bytes else None,
        limit=_LIMITS[device][0],
        verdict=verdict,
        reason=reason,
    )


def _verdict(
    ratio: Estimate, step_time_s: float, evidence_s: float, device: str
) -> tuple[Literal["within", "above", "not decided"], str]:
    limit, shortest_s = _LIMITS[device]
    if evidence_s > _MOST_EVIDENCE_S:
        return "above", f"evidence may take {format_seconds(_MOST_EVIDENCE_S)} a run"
    if ratio.low is None or ratio.high is None:
        return "not decided", "one run gives no interval; make more with --runs"
    if ratio.high <= limit:
        return "within", ""
    if step_time_s < shortest_s:
        return "not decided", (
            f"the limit is meant for steps of {format_seconds(shortest_s)} and more; "
            "name a larger case with --case"
        )
    if ratio.low > limit:
        return "above", ""
    return "not decided", "the limit lies inside the interval; make it narrower with more --runs"
