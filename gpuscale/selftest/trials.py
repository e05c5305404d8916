"""Identical measurements must raise no alarm, and faults made on purpose must be found."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpuscale.cases import TrainingCase
from gpuscale.compare import compare
from gpuscale.diagnose import diagnose
from gpuscale.errors import GpuscaleError
from gpuscale.recording.from_results import baseline_from_results
from gpuscale.records import (
    DetectableLoss,
    EntryKey,
    EntryVerdict,
    Environment,
    Fault,
    FaultResult,
    OverheadReport,
    Rate,
    Results,
    Run,
    RunRequest,
    TrialsReport,
    Verdict,
)
from gpuscale.selftest.plan import BASELINE_BLOCKS, RUNS_PER_BLOCK, case_request, injection_text
from gpuscale.statistics.significance import rate_of
from gpuscale.telemetry.summary import sampling_beside
from gpuscale.version import __version__

_FEWEST_BASELINE_RUNS = 2
"""Runs that are not steady leave fewer than were made; a baseline of such few is a wide one."""


@dataclass(slots=True)
class Trials:
    """Makes blocks of runs on this machine, one after the other, and judges them."""

    make_run: Callable[[RunRequest], Run]
    case: type[TrainingCase]
    environment: Environment
    gpus: Sequence[int]
    after_run: Callable[[], None]
    _clean: list[Results] = field(default_factory=list)
    _runs: list[Run] = field(default_factory=list)
    _judged: list[tuple[Fault | None, tuple[EntryVerdict, ...]]] = field(default_factory=list)
    """Each block's fault, and its rows beside the clean blocks before it."""
    _started: float = field(default_factory=time.monotonic)

    def make(self, fault: Fault | None) -> None:
        """Measure a block, and hold it against the clean ones before it, if there are enough."""
        results = self._measure(fault)
        before = self._clean[-BASELINE_BLOCKS:]
        if len(before) == BASELINE_BLOCKS:
            # Where no run before it was steady nothing can be judged, which the report counts.
            with suppress(GpuscaleError):
                baseline = baseline_from_results(
                    before, name="before", cluster="here", minimum_runs=_FEWEST_BASELINE_RUNS
                )
                judged = diagnose(baseline, [results], compare(baseline, [results]))
                self._judged.append((fault, judged.entries))
        if fault is None:
            self._clean.append(results)

    def report(
        self, faults: Sequence[Fault], not_tried: Sequence[str], overhead: OverheadReport
    ) -> TrialsReport:
        """The rates over all blocks so far, beside the overhead."""
        clean = [rows for fault, rows in self._judged if fault is None]
        return TrialsReport(
            configuration=self._runs[0].configuration,
            environment=self.environment,
            gpus=tuple(self.gpus),
            runs_per_block=RUNS_PER_BLOCK,
            comparisons=len(clean),
            false_alarms=_rate(_alarms(rows) for rows in clean),
            detectable_losses=_detectable(row for rows in clean for row in rows),
            faults=tuple(self._fault_result(fault) for fault in faults),
            not_tried=tuple(not_tried),
            runs=len(self._runs),
            failed_runs=sum(not run.is_valid for run in self._runs),
            overhead=overhead,
            wall_s=time.monotonic() - self._started,
        )

    def _measure(self, fault: Fault | None) -> Results:
        created_at = datetime.now(UTC)
        injections: tuple[str, ...] = ()
        if fault is not None:
            injections = (injection_text(fault, step_time_s=self._step_time_s(), gpus=self.gpus),)
        runs = [
            self._run(run, gpus, injections)
            for run in range(1, RUNS_PER_BLOCK + 1)
            for gpus in self.gpus
        ]
        self._runs += runs
        return Results(
            created_at=created_at.isoformat(timespec="milliseconds"),
            gpuscale_version=__version__,
            environment=self.environment,
            injections=injections,
            runs=tuple(runs),
        )

    def _run(self, run: int, gpus: int, injections: tuple[str, ...]) -> Run:
        where = self.environment
        request = case_request(self.case, where, gpus=gpus, run=run, injections=injections)
        with sampling_beside(request, where) as sampling:
            made = self.make_run(request)
            if sampling is not None:
                made = sampling.summarize(made).added_to(made)
        self.after_run()
        return made

    def _step_time_s(self) -> float:
        """Of the clean runs so far on one GPU, or on the fewest that there are."""
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
        """Over the blocks whose row on the most GPUs, which every fault strikes, was judged."""
        most = max(self.gpus)
        judged = [
            rows
            for made, rows in self._judged
            if made == fault and any(row.key.gpus == most and row.verdict.is_judged for row in rows)
        ]
        regressed = [
            [
                row
                for row in rows
                if row.verdict is Verdict.REGRESSED
                and (row.key.gpus == most or fault.injection != "slow-rank")
            ]
            for rows in judged
        ]
        first = [max(rows, key=lambda row: row.key.gpus).causes[:1] for rows in regressed if rows]
        return FaultResult(
            fault=fault,
            found=_rate((int(bool(rows)), 1) for rows in regressed),
            named=_rate((sum(cause.kind is fault.kind for cause in its), 1) for its in first),
        )


def _alarms(rows: Iterable[EntryVerdict]) -> tuple[int, int]:
    """Rows called regressed among the rows that were judged."""
    judged = [row for row in rows if row.verdict.is_judged]
    return sum(row.verdict is Verdict.REGRESSED for row in judged), len(judged)


def _detectable(rows: Iterable[EntryVerdict]) -> tuple[DetectableLoss, ...]:
    losses: dict[EntryKey, list[float]] = {}
    for row in rows:
        if row.minimum_detectable_loss is not None:
            losses.setdefault(row.key, []).append(row.minimum_detectable_loss)
    return tuple(
        DetectableLoss(key=key, loss=statistics.median(its)) for key, its in losses.items()
    )


def _rate(counts: Iterable[tuple[int, int]]) -> Rate | None:
    filled = [(events, trials) for events, trials in counts if trials]
    return rate_of(filled) if filled else None
