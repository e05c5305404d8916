"""Requests of a launcher to the ranks, and the answers of the ranks."""

import statistics
from collections.abc import Mapping

import msgspec

from gpuscale.base.strategies import STRATEGIES
from gpuscale.records.configuration import Configuration, EntryKey
from gpuscale.records.run_evidence import Failure, Phases, RankReport

_WITH_UNSYNCED = 4 / 3
"""One unsynchronised window follows every three synchronised ones."""


class TimingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The length of a run: its warm-up and its windows."""

    warmup_steps: int
    warmup_s: float
    """Shortest warm-up, which also takes `warmup_steps`; the first step is not counted."""
    windows: int
    """Maximum of synchronised windows; slow cases get fewer, but at least 10 if this allows it."""
    window_s: float
    """Target length of a window, which holds at least one step."""
    run_seconds: float
    """Time limit for all windows together."""

    @property
    def most_windows_s(self) -> float:
        """Duration of the maximum of windows, including unsynchronised ones."""
        return self.windows * self.window_s * _WITH_UNSYNCED


class CommandRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run in place of gpuscale's ranks, and the format of its lines."""

    words: tuple[str, ...]
    """Arguments of the command, with placeholders."""
    folder: str
    """Working directory of the command."""
    launch: str
    """One of `gpuscale.workload.command_case.LAUNCHES`."""
    log_format: str | None
    """Name of a format; None to recognise the format from the lines."""
    step_regex: str | None
    tells_batch: bool
    """The batch size is only known from the command's lines."""


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One requested run: everything that a rank needs on any node."""

    configuration: Configuration
    gpus: int
    index: int
    batch_per_gpu: int | None
    """None if a command's lines report it."""
    sample_shape: tuple[int, ...] | None = None
    case_module: str
    case_file: str
    case_class: str
    import_paths: tuple[str, ...] = ()
    """`sys.path` of the test process, with which ranks find the imports of the case."""
    devices: tuple[int, ...]
    """CUDA devices by local rank, equal on all nodes; all devices of a rank that drives several
    come one after the other; empty on CPU."""
    data_root: str | None = None
    download: bool = False
    timing: TimingPlan
    timeout_s: float = 600.0
    samples_per_epoch: int | None = None
    memory_limit_bytes: int | None = None
    """Host memory that a rank may allocate after its start, for the model and the training."""
    injections: tuple[str, ...] = ()
    """Faults to inject, such as `data=5ms` (gpuscale/workload/injections.py)."""
    command: CommandRequest | None = None
    """None if gpuscale itself trains the case."""

    @property
    def key(self) -> EntryKey:
        """The table row of this run."""
        return EntryKey(self.configuration.case, self.configuration.strategy, self.gpus)

    @property
    def job(self) -> str:
        """The name of a process in messages: `rank` or `command`."""
        return "rank" if self.command is None else "command"

    @property
    def processes(self) -> int:
        """Number of ranks that the strategy starts."""
        return STRATEGIES[self.configuration.strategy].processes(self.gpus)


class SampledDevices(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that the keepers of a run sample, by host."""

    uuids: Mapping[str, tuple[str, ...]]


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The failure that a rank reports itself."""

    failure: Failure
    lost_peer: bool
    """Communication with another rank failed, which most likely ended before."""
    line: str | None = None
    """Line of the user's code that raised, `test_mine.py:12`; None if none did."""
    steps_told: float = 0.0
    """Steps in a command's lines; of several timed-out ranks, one with the most is reported."""


class RankWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One window by the clock of one rank."""

    started_at_s: float
    """Unix time of its start."""
    busy_s: float
    """Seconds from the opening barrier to this rank's synchronisation."""
    synchronized: bool
    phases: Phases

    @property
    def own_s(self) -> float:
        """Busy time without the wait for other stages of a pipeline."""
        return self.busy_s - self.phases.wait_s


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Warm-up and windows of one rank, by its clock."""

    warmup_steps: int
    warmup_s: float
    steps_per_window: int
    windows: tuple[RankWindow, ...]

    def pace_s(self, *, ranks: int) -> float:
        """Median seconds per step of this rank without synchronisation, or of a single rank."""
        alone = [window for window in self.windows if window.synchronized is (ranks == 1)]
        alone = alone or list(self.windows)
        return statistics.median(window.own_s for window in alone) / self.steps_per_window

    def phases_per_step(self) -> Phases:
        """Median of each phase over the synchronised windows, in seconds per step.

        Time that synchronisation adds to the forward counts as backward.
        """
        synced, alone = (
            [window.phases for window in self.windows if window.synchronized is synchronized]
            for synchronized in (True, False)
        )
        medians = {
            name: statistics.median(getattr(phases, name) for phases in synced)
            for name in Phases.__struct_fields__
        }
        if alone:
            alone_s = statistics.median(phases.forward_s for phases in alone)
            own_s = min(medians["forward_s"], alone_s)
            medians["backward_s"] += medians["forward_s"] - own_s
            medians["forward_s"] = own_s
        return Phases(**medians).scaled(1 / self.steps_per_window)


class RankOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The report and measurement of one rank, before the launcher joins the ranks to a run."""

    report: RankReport
    joined_at_s: float
    """Unix time at which the rank joined the process group."""
    measurement: Measurement


class CommandWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a command, timed from the arrival of one line to that of another."""

    started_at_s: float
    time_s: float


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Warm-up and windows of a command."""

    batch_per_gpu: int
    warmup_steps: int
    warmup_s: float
    steps_per_window: int
    windows: tuple[CommandWindow, ...]
    reported_step_s: float | None
    """Same as `Run.reported_step_s`."""


class NodeProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A probe of the nodes of a job, by one rank on each."""

    device: str
    message_bytes: int
    """Size of the messages between each two nodes."""
    repeats: int
    timeout_s: float


class SendTime(msgspec.Struct, frozen=True, kw_only=True):
    """The round-trip time of a message to another node."""

    to: int
    """Index of the other node."""
    time_s: float
    """Shortest of several round trips."""


class NodeProbe(msgspec.Struct, frozen=True, kw_only=True):
    """Speed of a node's devices and links, measured by the rank on it."""

    host: str
    compute_s: tuple[float, ...]
    """Shortest time of a fixed computation on each GPU in turn, or on one CPU core."""
    sends: tuple[SendTime, ...]
