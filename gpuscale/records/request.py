"""Requests from the launcher to the ranks, and the answers of the ranks."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from gpuscale.base.host import GPU_KINDS, UNBOUND, bound_cpus
from gpuscale.base.strategies import STRATEGIES
from gpuscale.records.configuration import Configuration, RowMixin
from gpuscale.records.evidence import Failure, Phases, ProcessSoftware, RankReport, Window
from gpuscale.records.metrics import OpenMetric, metric_from_name

Launch = Literal["per-rank", "per-node", "once"]
"""Start mode of a command: once for each rank, once for each node, or once for all nodes."""
_WITH_UNSYNCED = 4 / 3
"""Ratio of all windows to synchronised windows; every fourth window is unsynchronised."""


class TimingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Planned length of a run: the warm-up and the windows."""

    warmup_steps: int
    warmup_s: float
    """Minimum duration of the warm-up, excluding the first step, in addition to `warmup_steps`."""
    windows: int
    """Maximum number of synchronised windows; slow cases get fewer, but at least 10 if allowed."""
    window_s: float
    """Target duration of a window; every window has at least one step."""
    run_seconds: float
    """Time limit for all windows together."""


MOST_WINDOWS = 30
TIMING_PLANS: Mapping[str, TimingPlan] = {
    **dict.fromkeys(
        GPU_KINDS,
        TimingPlan(warmup_steps=10, warmup_s=2.0, windows=20, window_s=0.5, run_seconds=20.0),
    ),
    "cpu": TimingPlan(warmup_steps=2, warmup_s=0.3, windows=10, window_s=0.15, run_seconds=4.0),
}


def timing_plan(device: str, run_seconds: float | None) -> TimingPlan:
    """Return the timing plan of a run; without `run_seconds`, the default plan of the device.

    If `run_seconds` exceeds the default, the plan has more windows, up to `MOST_WINDOWS`, and then
    longer ones. If it is below the default, the ranks measure fewer or shorter windows.
    """
    plan = TIMING_PLANS[device]
    run_seconds = run_seconds or plan.run_seconds
    if run_seconds <= plan.run_seconds:
        return replace(plan, run_seconds=run_seconds)
    longer = 1 + (run_seconds - plan.run_seconds) / (plan.windows * plan.window_s * _WITH_UNSYNCED)
    return replace(
        plan,
        windows=min(MOST_WINDOWS, math.floor(plan.windows * longer)),
        window_s=plan.window_s * max(1.0, longer * plan.windows / MOST_WINDOWS),
        run_seconds=run_seconds,
    )


class CommandRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run instead of gpuscale's own ranks, and the format of the lines it prints."""

    words: tuple[str, ...]
    """The command line, split into words; placeholders such as `{gpus}` are not yet filled in."""
    folder: str
    launch: Launch
    processes: int = 1
    """Number of processes that gpuscale starts: one for each rank, or one for each node if the
    command starts its own ranks. With launch `once`, only the first starts it; the others watch."""
    log_format: str | None
    """Name of the log format; None to recognise the format from the printed lines."""
    step_regex: str | None
    batch_from_output: bool
    """True if the batch size is only known from the lines that the command prints."""
    figure: str | None = None
    """Figures to read, as in `CommandCase.figure`; None if steps are timed."""
    metrics: tuple[OpenMetric, ...] = ()
    """Metrics that the command prints each time it is started, named by the groups of `figure`."""


class RunRequest(RowMixin, msgspec.Struct, frozen=True, kw_only=True):
    """One requested run: everything that a rank on any node needs to know."""

    configuration: Configuration
    gpus: int
    index: int
    batch_per_gpu: int | None
    """Samples per GPU and step; None if a command prints the batch size itself."""
    sample_shape: tuple[int, ...] | None = None
    case_module: str
    case_file: str
    case_class: str
    import_paths: tuple[str, ...] = ()
    """`sys.path` of the launching process, so that ranks can import what the case imports."""
    devices: tuple[int, ...]
    """CUDA devices in order of local rank, the same on all nodes; empty on CPU. If a rank drives
    several devices, they are adjacent in the list."""
    data_root: str | None = None
    download: bool = False
    timing: TimingPlan
    timeout_s: float = 600.0
    samples_per_epoch: int | None = None
    injections: tuple[str, ...] = ()
    """Faults to inject, such as `data=5ms` (gpuscale/workload/injections.py)."""
    command: CommandRequest | None = None
    """Command to run; None if gpuscale itself trains the case."""
    measured_by: str = "gpuscale.measure.worker.loop:measure"
    """Function that times training in the ranks, as `module:name`; ci/overhead.py replaces it."""
    cpu_bind: str = UNBOUND
    """CPU binding of ranks: `site` (site default), `none`, or a map like `mask_cpu:0xff,0xff00`."""

    @property
    def by_metric(self) -> "tuple[RunRequest, ...]":
        """This request alone or, if its command has metrics, a copy configured for each metric."""
        metrics = () if self.command is None else self.command.metrics
        of = self.configuration
        asked = (replace(of, strategy=metric.name, metric=metric) for metric in metrics)
        return tuple(replace(self, configuration=each) for each in asked) or (self,)

    def with_metrics(self, names: Iterable[str]) -> "RunRequest":
        """Return a copy with a metric for each new name that `metric_from_name` can interpret."""
        if self.command is None:
            return self
        known = {metric.name: metric for metric in self.command.metrics}
        new = (metric_from_name(name) for name in dict.fromkeys(names) if name not in known)
        metrics = (*known.values(), *filter(None, new))
        return replace(self, command=replace(self.command, metrics=metrics))

    def cpus_of(self, local_rank: int) -> set[int]:
        """Return the CPUs to which `cpu_bind` binds a rank; empty if `cpu_bind` names no CPUs."""
        each = -(-self.gpus // (self.processes if self.command is None else self.gpus))
        devices = self.devices[local_rank * each : (local_rank + 1) * each]
        return bound_cpus(self.cpu_bind, devices or (local_rank,))

    @property
    def processes(self) -> int:
        """Number of processes that the launcher starts for this run."""
        if self.command is not None:
            return self.command.processes
        return STRATEGIES[self.configuration.strategy].processes(self.gpus)

    @property
    def launch(self) -> Launch:
        """Start mode of the command (see `Launch`); `per-rank` if there is no command."""
        return "per-rank" if self.command is None else self.command.launch


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure as reported by the failed rank itself."""

    failure: Failure
    lost_peer: bool
    """True if communication with another rank failed, most likely because that rank had ended."""
    steps_reported: float = 0.0
    """Latest step number that the command printed; shows which rank got furthest before timeout."""


class RankWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One window of training steps, timed by the clock of one rank."""

    started_at_s: float
    busy_s: float
    """Seconds from the opening barrier until this rank's own work was finished."""
    synchronized: bool
    phases: Phases

    @property
    def own_s(self) -> float:
        """Seconds of the rank's own work, without waits for other stages of a pipeline."""
        return self.busy_s - self.phases.wait_s


def window_of_ranks(by_rank: Sequence[RankWindow], slowest: int) -> Window:
    """Combine one window's times from all ranks; the duration is the longest time of any rank.

    The phases are always those of `slowest`, the slowest rank of the whole run. If another rank
    took longer in this window, `slowest` waited for it. This wait is added to `wait_s` if waits are
    measured, and otherwise to `backward_s`, the phase that synchronises ranks.
    """
    busy_s = tuple(window.busy_s for window in by_rank)
    phases, lag_s = by_rank[slowest].phases, max(busy_s) - busy_s[slowest]
    if phases.wait_s:
        phases = replace(phases, wait_s=phases.wait_s + lag_s)
    else:
        phases = replace(phases, backward_s=phases.backward_s + lag_s)
    started_at_s = by_rank[0].started_at_s
    return Window(time_s=max(busy_s), started_at_s=started_at_s, busy_s=busy_s, phases=phases)


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Warm-up and windows of one rank, timed by that rank's clock."""

    warmup_steps: int
    warmup_s: float
    steps_per_window: int
    windows: tuple[RankWindow, ...]

    def pace_s(self, *, ranks: int) -> float:
        """Return median `own_s` per step, in unsynchronised windows if present and `ranks` > 1."""
        alone = [window for window in self.windows if window.synchronized is (ranks == 1)]
        own_s = statistics.median(window.own_s for window in alone or self.windows)
        return own_s / self.steps_per_window

    def phases_per_step(self) -> Phases:
        """Return the median of each phase over the synchronised windows, in seconds per step."""
        synced, alone = (
            [window.phases for window in self.windows if window.synchronized is synchronized]
            for synchronized in (True, False)
        )
        medians = {
            name: statistics.median(getattr(phases, name) for phases in synced)
            for name in Phases.__struct_fields__
        }
        if alone:
            # Time that synchronisation adds to the forward pass belongs to the backward pass.
            alone_s = statistics.median(phases.forward_s for phases in alone)
            own_s = min(medians["forward_s"], alone_s)
            medians["backward_s"] += medians["forward_s"] - own_s
            medians["forward_s"] = own_s
        return Phases(**medians).scaled(1 / self.steps_per_window)


class RankOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Report and measurement of one rank; the launcher combines all ranks' outcomes into a run."""

    report: RankReport
    joined_at_s: float
    measurement: Measurement
    software: ProcessSoftware


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of running a command: its warm-up and its measured windows."""

    batch_per_gpu: int
    warmup_steps: int
    warmup_s: float
    steps_per_window: int
    windows: tuple[Window, ...]


class FigureOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Values that one process of a command printed, or the reason why a value is missing."""

    values: tuple[tuple[str, float], ...]
    """Metrics with their values, in the order of the output."""
    failure: Failure | None = None
