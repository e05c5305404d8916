"""The samples of a run whose GPUs are on several nodes, where its launcher had them sampled."""

from collections.abc import Callable, Sequence

from gpuscale.records import Run
from gpuscale.run_directory import NodeSamples
from gpuscale.telemetry.summary import TelemetryReport, summarize


class NodeSampling:
    """What the samplers on all nodes left of one run."""

    def __init__(self, samples: Callable[[], Sequence[NodeSamples]]) -> None:
        self._samples = samples

    def summarize(self, run: Run) -> TelemetryReport:
        """What NVML saw during the run's windows; nodes without samples are named with the reason.

        Windows are told by the clock of rank 0's node and samples by that of their own: nodes of a
        cluster agree to some milliseconds, and a window lasts hundreds.
        """
        windows = [(w.started_at_s, w.started_at_s + w.time_s) for w in run.windows]
        reports = {
            left.host: summarize(left.path, uuids=left.uuids, intervals=windows)
            for left in self._samples()
        }
        absent = [f"{host}: {report.absent}" for host, report in reports.items() if report.absent]
        versions = [report.driver_version for report in reports.values()]
        return TelemetryReport(
            gpu_summaries=tuple(s for report in reports.values() for s in report.gpu_summaries),
            absent="; ".join(absent) or None,
            driver_version=next((version for version in versions if version), None),
        )
