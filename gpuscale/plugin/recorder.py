"""Where an invocation's runs go: to the results file the moment they end, and to the table."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from gpuscale.records import Environment, Results, Run, RunRequest
from gpuscale.run_directory import NodeSamples
from gpuscale.store import RESULTS_FOLDER, ResultsWriter, ResumedResults, default_results_path
from gpuscale.telemetry import TelemetryReport
from gpuscale.telemetry.beside_run import RunSampling, sampling_beside
from gpuscale.telemetry.on_nodes import NodeSampling
from gpuscale.version import __version__

_NOT_SAMPLED = TelemetryReport(absent="no GPU: measured on CPU")


class Recorder:
    """Collects the runs of one invocation; the results file is created with the first of them.

    With `resumed`, its runs come first and new ones are appended to its file.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        results: Path | None,
        folder: Path,
        injections: tuple[str, ...] = (),
        resumed: ResumedResults | None = None,
        samples_on_nodes: Callable[[], Sequence[NodeSamples]] | None = None,
    ) -> None:
        self.environment = environment
        self.injections = injections
        self.earlier_runs = () if resumed is None else resumed.results.runs
        self.runs = list(self.earlier_runs)
        self.path = None if resumed is None else resumed.path
        self._results = results
        self._folder = folder
        self._created_at = datetime.now(UTC)
        self._resumed = resumed
        self._samples_on_nodes = samples_on_nodes
        self._writer: ResultsWriter | ResumedResults | None = resumed

    @property
    def measured(self) -> Results:
        """Everything that the results file holds, earlier runs included."""
        if self._resumed is not None:
            return replace(self._resumed.results, runs=tuple(self.runs))
        return Results(
            created_at=self._created_at.isoformat(timespec="milliseconds"),
            gpuscale_version=__version__,
            environment=self.environment,
            injections=self.injections,
            runs=tuple(self.runs),
        )

    @contextmanager
    def sampling(self, request: RunRequest) -> Iterator[RunSampling | NodeSampling | None]:
        """Sample the devices of a run for as long as the context lasts; None on CPU."""
        has_gpus = any(gpu.index in request.devices for gpu in self.environment.gpus)
        if has_gpus and self.environment.nodes and self._samples_on_nodes is not None:
            yield NodeSampling(self._samples_on_nodes)
            return
        with sampling_beside(request, self.environment) as sampling:
            yield sampling

    def append(self, run: Run, sampling: RunSampling | NodeSampling | None) -> Run:
        """Write a run with its telemetry to the disk, and remember it for the table."""
        telemetry = _NOT_SAMPLED if sampling is None else sampling.summarize(run)
        run = replace(
            run,
            gpu_summaries=telemetry.gpu_summaries,
            telemetry_absent=telemetry.absent,
            allocation=self.environment.job_id,
        )
        if telemetry.driver_version is not None:
            self.environment = replace(self.environment, driver_version=telemetry.driver_version)
        if self._writer is None:
            path = self._results or default_results_path(
                self._folder / RESULTS_FOLDER, self._created_at
            )
            self._writer = ResultsWriter(
                path,
                environment=self.environment,
                created_at=self._created_at,
                injections=self.injections,
            )
            self.path = path
        self._writer.append(run)
        self.runs.append(run)
        return run

    def close(self) -> None:
        """Close the results file."""
        if self._writer is not None:
            self._writer.close()
