"""The results file of a session: where runs go, and whether they may join those it has."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

from msgspec.structs import replace

from gpuscale import __version__
from gpuscale.base.errors import UsageError
from gpuscale.measure.telemetry.summary import RunSampling, TelemetryReport
from gpuscale.plugin.options import MeasureOptions
from gpuscale.records import Environment, PointKey, Results, Run, RunRequest, environment_diff
from gpuscale.records.configuration import differences
from gpuscale.store import ResultsWriter, ResumedResults, default_results_path

_NOT_SAMPLED = TelemetryReport(absent="no GPU: measured on CPU")
_LOADED_DRIVER = Path("/sys/module/nvidia/version")
_REMEDY = (
    "measure into a new file, without --resume; gpuscale compare and baseline record take several"
)


class Recorder:
    """Keeps the runs of a session, in a file that is made with the first or is resumed."""

    def __init__(
        self,
        environment: Environment,
        options: MeasureOptions,
        *,
        folder: Path,
        resumed: ResumedResults | None = None,
    ) -> None:
        now = datetime.now(UTC)
        self.environment = environment
        self.resumed = resumed
        self.path = options.resume or options.results or default_results_path(folder, now)
        self.new_runs: list[Run] = []
        self._before = Results(
            created_at=now.isoformat(timespec="milliseconds"),
            gpuscale_version=__version__,
            environment=environment,
            injections=options.injections,
        )
        if resumed is not None:
            self._before = resumed.results
        self._writer: ResultsWriter | ResumedResults | None = resumed

    @property
    def measured(self) -> Results:
        """Everything that the results file holds, earlier runs included."""
        return replace(self._before, runs=(*self._before.runs, *self.new_runs))

    def append(self, run: Run, sampling: RunSampling | None) -> Run:
        """Write a run with its telemetry to the disk; where that fails, those before it are."""
        telemetry = _NOT_SAMPLED if sampling is None else sampling.summarize(run)
        run = replace(telemetry.added_to(run), allocation=self.environment.job_id)
        if telemetry.driver_version is not None:
            self.environment = replace(self.environment, driver_version=telemetry.driver_version)
        if self._writer is None:
            self._before = replace(self._before, environment=self.environment)
            self._writer = ResultsWriter(self.path, self._before)
        self._writer.append(run)
        self.new_runs.append(run)
        return run

    def close(self) -> None:
        """Close the results file."""
        if self._writer is not None:
            self._writer.close()


def is_recorded(request: RunRequest, runs: Iterable[Run]) -> bool:
    """True where a valid run of that number is among the runs; a failed one is made again."""
    return any(
        run.is_valid and run.index == request.index and PointKey.of(run) == PointKey.of(request)
        for run in runs
    )


def with_told_batch(request: RunRequest, runs: Iterable[Run]) -> RunRequest:
    """The request with the batch that lines of its command told in an earlier run."""
    if request.command is None or not request.command.tells_batch:
        return request
    asked = (request.configuration, request.gpus)
    alike = (each for each in runs if (each.configuration, each.gpus) == asked and each.is_valid)
    told = next((each.batch_per_gpu for each in alike), request.batch_per_gpu)
    return replace(request, batch_per_gpu=told)


def refuse_other_environment(
    path: Path, recorded: Results, environment: Environment, injections: tuple[str, ...]
) -> None:
    """Refuses an environment in which runs would mean others than the file's, and says why."""
    then, driver = recorded.environment, environment.driver_version or _loaded_driver()
    if driver is None or then.driver_version is None:
        then = replace(then, driver_version=driver)
    now = replace(environment, driver_version=driver)
    changes = (
        *environment_diff.differences(then, now, environment_diff.IN_SESSION),
        *environment_diff.variable_changes([then], [now]),
    )
    found = _changes(
        ("gpuscale", recorded.gpuscale_version, __version__),
        ("injections", ", ".join(recorded.injections) or "none", ", ".join(injections) or "none"),
        *((change.name, change.before[0], change.after[0]) for change in changes),
    )
    if found:
        raise UsageError(
            f"--resume: {path} was measured in another environment ({'; '.join(found)}); {_REMEDY}"
        )


def refuse_other_configurations(
    path: Path, runs: Sequence[Run], requests: Sequence[RunRequest]
) -> None:
    """Refuses what is asked for where it is not trained as the same case in the file was."""
    for request, run in product(requests, runs):
        then, now = run.configuration, request.configuration
        if then.label != now.label:
            continue
        # A curve over batches may be gone on with, as long as one of them is in the file.
        found = _changes(*differences(replace(then, batch=now.batch), now))
        if run.gpus == request.gpus and then.batch == now.batch and run.batch_per_gpu:
            found += _changes(
                ("batch_per_gpu", run.batch_per_gpu, request.batch_per_gpu),
                ("sample_shape", run.sample_shape, request.sample_shape),
            )
        if found:
            raise UsageError(
                f"--resume: {path} has {run.key.label} measured in another way "
                f"({'; '.join(found)}); give the options of that time, or {_REMEDY}"
            )
    _refuse_other_batches(path, [run for run in runs if run.is_valid], requests)


def _refuse_other_batches(path: Path, runs: Sequence[Run], requests: Sequence[RunRequest]) -> None:
    for label in dict.fromkeys(each.configuration.label for each in requests):
        then_at, now_at = (
            dict.fromkeys(
                each.configuration.batch for each in its if each.configuration.label == label
            )
            for its in (runs, requests)
        )
        if then_at and then_at.keys().isdisjoint(now_at):
            raise UsageError(
                f"--resume: {path} has {label} measured with none of the batches asked for "
                f"(batch: {_batches(then_at)} → {_batches(now_at)}); add one of those to "
                f"--batch, or {_REMEDY}"
            )


def _batches(batches: Iterable[int | None]) -> str:
    return ", ".join("that of the case" if each is None else str(each) for each in batches)


def _changes(*values: tuple[str, object, object]) -> list[str]:
    return [f"{name}: {then} → {now}" for name, then, now in values if then != now]


def _loaded_driver() -> str | None:
    # NVML tells it only once a run is being sampled, which is too late to refuse.
    try:
        return _LOADED_DRIVER.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
