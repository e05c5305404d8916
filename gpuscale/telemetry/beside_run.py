"""Sampling the devices of one run on this node for as long as it lasts."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuscale.records import Environment, Run, RunRequest
from gpuscale.scratch import scratch_folder
from gpuscale.telemetry.control import Sampler
from gpuscale.telemetry.summary import TelemetryReport, summarize


class RunSampling:
    """The samples that are taken beside one run."""

    def __init__(self, sampler: Sampler, samples: Path, uuids: tuple[str, ...]) -> None:
        self._sampler = sampler
        self._samples = samples
        self._uuids = uuids

    @property
    def pid(self) -> int:
        """The process id of the sampling process."""
        return self._sampler.pid

    def summarize(self, run: Run) -> TelemetryReport:
        """End the sampling; what NVML saw during the run's windows."""
        self._sampler.stop()
        windows = [(w.started_at_s, w.started_at_s + w.time_s) for w in run.windows]
        return summarize(self._samples, uuids=self._uuids, intervals=windows)


@contextmanager
def sampling_beside(request: RunRequest, environment: Environment) -> Iterator[RunSampling | None]:
    """Sample the devices of a run for as long as the context lasts; None on CPU."""
    uuids = tuple(g.uuid for g in environment.gpus if g.index in request.devices and g.uuid)
    if not uuids:
        yield None
        return
    with scratch_folder("gpuscale-telemetry-") as folder:
        samples = folder / "samples.jsonl"
        sampler = Sampler.start(uuids=uuids, output=samples)
        try:
            yield RunSampling(sampler, samples, uuids)
        finally:
            sampler.stop()
