"""Where an invocation's runs go: to the results file the moment they end, and to the table."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gpuscale.records import Environment, Run, RunRequest
from gpuscale.store import RESULTS_FOLDER, ResultsWriter, ResumedResults, default_results_path
from gpuscale.telemetry import Sampler, TelemetryReport, summarize

_NOT_SAMPLED = TelemetryReport(absent="no GPU: measured on CPU")


class RunSampling:
    """The samples that are taken beside one run."""

    def __init__(self, sampler: Sampler, samples: Path, uuids: tuple[str, ...]) -> None:
        self._sampler = sampler
        self._samples = samples
        self._uuids = uuids

    def summarize(self, run: Run) -> TelemetryReport:
        """End the sampling; what NVML saw during the run's windows."""
        self._sampler.stop()
        windows = [(w.started_at_s, w.started_at_s + w.time_s) for w in run.windows]
        return summarize(self._samples, uuids=self._uuids, intervals=windows)


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
    ) -> None:
        self.environment = environment
        self.injections = injections
        self.earlier_runs = () if resumed is None else resumed.results.runs
        self.runs = list(self.earlier_runs)
        self.path = None if resumed is None else resumed.path
        self._results = results
        self._folder = folder
        self._writer: ResultsWriter | ResumedResults | None = resumed

    @contextmanager
    def sampling(self, request: RunRequest) -> Iterator[RunSampling | None]:
        """Sample the devices of a run for as long as the context lasts; None on CPU."""
        uuids = tuple(
            gpu.uuid for gpu in self.environment.gpus if gpu.index in request.devices and gpu.uuid
        )
        if not uuids:
            yield None
            return
        with tempfile.TemporaryDirectory(prefix="gpuscale-telemetry-") as folder:
            samples = Path(folder) / "samples.jsonl"
            sampler = Sampler.start(uuids=uuids, output=samples)
            try:
                yield RunSampling(sampler, samples, uuids)
            finally:
                sampler.stop()

    def append(self, run: Run, sampling: RunSampling | None) -> Run:
        """Write a run with its telemetry to the disk, and remember it for the table."""
        telemetry = _NOT_SAMPLED if sampling is None else sampling.summarize(run)
        run = replace(run, gpu_summaries=telemetry.gpu_summaries, telemetry_absent=telemetry.absent)
        if telemetry.driver_version is not None:
            self.environment = replace(self.environment, driver_version=telemetry.driver_version)
        if self._writer is None:
            now = datetime.now(UTC)
            path = self._results or default_results_path(self._folder / RESULTS_FOLDER, now)
            self._writer = ResultsWriter(
                path, environment=self.environment, created_at=now, injections=self.injections
            )
            self.path = path
        self._writer.append(run)
        self.runs.append(run)
        return run

    def close(self) -> None:
        """Close the results file."""
        if self._writer is not None:
            self._writer.close()
