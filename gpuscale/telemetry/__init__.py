"""What the GPUs did while a run was timed, sampled beside the ranks and not inside them.

`Sampler` starts and stops the process that samples, `summarize` reduces its file to the
timed windows of a run. The process itself is `python -m gpuscale.telemetry.sampler`.
"""

from gpuscale.telemetry.control import Sampler
from gpuscale.telemetry.summary import TelemetryReport, summarize

__all__ = ["Sampler", "TelemetryReport", "summarize"]
