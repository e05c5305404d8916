"""Identical measurements must raise no alarm, and faults made on purpose must be found."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from msgspec.structs import replace

from gpuscale.cases import TrainingCase
from gpuscale.compare import compare
from gpuscale.diagnose import diagnose
from gpuscale.errors import GpuscaleError
from gpuscale.recording import baseline_from_results
from gpuscale.records import (
    Comparison,
    DetectableLoss,
    EntryKey,
    Environment,
    Fault,
    FaultResult,
    Results,
    Run,
    RunRequest,
    TrialsReport,
    Verdict,
)
from gpuscale.records.simulation import Rate
from gpuscale.run_defaults import PACINGS
from gpuscale.selftest.case_choice import case_request
from gpuscale.selftest.plan import (
    BASELINE_BLOCKS,
    RUNS_PER_BLOCK,
    Block,
    injection_text,
)
from gpuscale.selftest.rates import rate_of
from gpuscale.telemetry.beside_run import sampling_beside
from gpuscale.version import __version__

_START_S = 1.5
_FEWEST_BASELINE_RUNS = 2
"""Runs that are not steady leave fewer than were made; a baseline of such few is a wide one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A block and what the comparison with those before it said."""

    fault: Fault | None
    comparison: Comparison


def expected_s(device: str, *, blocks: int, gpus: int) -> float:
    """About how long so many blocks take, where steps are short."""
    pacing = PACINGS[device]
    run_s = _START_S + pacing.warmup_s + min(pacing.run_seconds, pacing.most_windows_s)
    return blocks * RUNS_PER_BLOCK * gpus * run_s


class RunMaker(Protocol):
    """What a launcher does, as far as trials need it."""

    @property
    def environment(self) -> Environment:
        """The machine as the ranks see it."""
        ...

    def run(self, request: RunRequest) -> Run:
        """Make one run; what goes wrong in a rank is told in `Run.failure`, not raised."""
        ...


class Trials:
    """Makes blocks of runs on this machine, one after the other, and judges them."""

    def __init__(
        self,
        launcher: RunMaker,
        case: type[TrainingCase],
        gpus: Sequence[int],
        after_run: Callable[[], None],
    ) -> None:
        self._launcher = launcher
        self._case = case
        self._gpus = gpus
        self._after_run = after_run
        self._clean: list[Results] = []
        self._started = time.monotonic()
        self.runs: list[Run] = []
        self.judged: list[Judged] = []

    def make(self, block: Block) -> None:
        """Measure a block, and hold it against the clean ones before it."""
        results = self._measure(block)
        before = self._clean[-BASELINE_BLOCKS:]
        if len(before) == BASELINE_BLOCKS:
            try:
                comparison = _judge(before, results)
            except GpuscaleError:
                # No run before it was steady: nothing can be judged, which the report counts.
                pass
            else:
                self.judged.append(Judged(fault=block.fault, comparison=comparison))
        if block.fault is None:
            self._clean.append(results)

    def report(self, faults: Sequence[Fault], not_tried: Sequence[str]) -> TrialsReport:
        """What all blocks so far say."""
        clean = [judged.comparison for judged in self.judged if judged.fault is None]
        return TrialsReport(
            configuration=self.runs[0].configuration,
            environment=self._launcher.environment,
            gpus=tuple(self._gpus),
            runs_per_block=RUNS_PER_BLOCK,
            comparisons=len(clean),
            false_alarms=_rate(_alarms(comparison) for comparison in clean),
            detectable_losses=_detectable(clean),
            faults=tuple(self._fault_result(fault) for fault in faults),
            not_tried=tuple(not_tried),
            runs=len(self.runs),
            failed_runs=sum(not run.is_valid for run in self.runs),
            overhead=None,
            wall_s=time.monotonic() - self._started,
        )

    def _measure(self, block: Block) -> Results:
        created_at = datetime.now(UTC)
        environment = self._launcher.environment
        injections: tuple[str, ...] = ()
        if block.fault is not None:
            text = injection_text(block.fault, step_time_s=self._step_time_s(), gpus=self._gpus)
            injections = (text,)
        runs = []
        for run in range(1, RUNS_PER_BLOCK + 1):
            for gpus in self._gpus:
                runs.append(self._run(environment, run, gpus, injections))
                self._after_run()
        self.runs += runs
        return Results(
            created_at=created_at.isoformat(timespec="milliseconds"),
            gpuscale_version=__version__,
            environment=environment,
            injections=injections,
            runs=tuple(runs),
        )

    def _run(
        self, environment: Environment, run: int, gpus: int, injections: tuple[str, ...]
    ) -> Run:
        request = case_request(self._case, environment, gpus=gpus, run=run, injections=injections)
        with sampling_beside(request, environment) as sampling:
            made = self._launcher.run(request)
            if sampling is None:
                return made
            telemetry = sampling.summarize(made)
        return replace(
            made, gpu_summaries=telemetry.gpu_summaries, telemetry_absent=telemetry.absent
        )

    def _step_time_s(self) -> float:
        """Of the clean runs so far on one GPU, or on the fewest that there are."""
        times_s = [
            run.step_time_s
            for results in self._clean
            for run in results.runs
            if run.is_valid and run.gpus == min(self._gpus)
        ]
        if not times_s:
            raise GpuscaleError(
                f"no run of {self._case.name()} gave a number, so there is nothing to slow down; "
                "see 'gpuscale doctor' and whether other work runs on this machine"
            )
        return statistics.median(times_s)

    def _fault_result(self, fault: Fault) -> FaultResult:
        struck = [
            j.comparison for j in self.judged if j.fault == fault and _was_judged(j, self._gpus)
        ]
        found = [_is_found(comparison, fault, self._gpus) for comparison in struck]
        named = [
            _is_named(comparison, fault, self._gpus)
            for comparison, is_found in zip(struck, found, strict=True)
            if is_found
        ]
        return FaultResult(
            fault=fault,
            found=_rate((int(is_found), 1) for is_found in found),
            named=_rate((int(is_named), 1) for is_named in named),
        )


def _judge(before: Sequence[Results], now: Results) -> Comparison:
    baseline = baseline_from_results(
        before, name="before", cluster="this machine", minimum_runs=_FEWEST_BASELINE_RUNS
    )
    return diagnose(baseline, [now], compare(baseline, [now]))


def _alarms(comparison: Comparison) -> tuple[int, int]:
    """Rows called regressed among the rows that were judged."""
    judged = [entry for entry in comparison.entries if entry.verdict.is_judged]
    return sum(entry.verdict is Verdict.REGRESSED for entry in judged), len(judged)


def _was_judged(judged: Judged, gpus: Sequence[int]) -> bool:
    """Whether the row on the most GPUs, which every fault strikes, was judged."""
    return any(
        entry.key.gpus == max(gpus) and entry.verdict.is_judged
        for entry in judged.comparison.entries
    )


def _struck(fault: Fault, gpus: Sequence[int]) -> tuple[int, ...]:
    """The rows that a fault strikes, by their number of GPUs."""
    return (max(gpus),) if fault.injection == "slow-rank" else tuple(gpus)


def _is_found(comparison: Comparison, fault: Fault, gpus: Sequence[int]) -> bool:
    return any(
        entry.verdict is Verdict.REGRESSED and entry.key.gpus in _struck(fault, gpus)
        for entry in comparison.entries
    )


def _is_named(comparison: Comparison, fault: Fault, gpus: Sequence[int]) -> bool:
    """Whether the first cause of the regressed row on the most GPUs is the fault."""
    regressed = [
        entry
        for entry in comparison.entries
        if entry.verdict is Verdict.REGRESSED and entry.key.gpus in _struck(fault, gpus)
    ]
    causes = max(regressed, key=lambda entry: entry.key.gpus).causes
    return bool(causes) and causes[0].kind is fault.kind


def _detectable(comparisons: Iterable[Comparison]) -> tuple[DetectableLoss, ...]:
    losses: dict[EntryKey, list[float]] = {}
    for comparison in comparisons:
        for entry in comparison.entries:
            if entry.minimum_detectable_loss is not None:
                losses.setdefault(entry.key, []).append(entry.minimum_detectable_loss)
    return tuple(
        DetectableLoss(key=key, loss=statistics.median(its)) for key, its in losses.items()
    )


def _rate(counts: Iterable[tuple[int, int]]) -> Rate | None:
    filled = [(events, trials) for events, trials in counts if trials]
    return rate_of(filled) if filled else None
