"""A launcher's requests to ranks, and the answer of each rank."""

import statistics
from collections.abc import Mapping

import msgspec

from gpuscale.base.strategies import STRATEGIES
from gpuscale.records.configuration import Configuration, EntryKey
from gpuscale.records.run_evidence import Failure, Phases, RankReport

_WITH_UNSYNCED = 4 / 3
"""A window that is not synchronised comes after every third that is."""


class TimingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The length of a run: its warm-up and its windows."""

    warmup_steps: int
    warmup_s: float
    """Warm-up lasts until both its steps and its seconds have passed, first step excepted."""
    windows: int
    """The most windows of synchronised training; slow cases get fewer, but 10 of so many."""
    window_s: float
    """Aimed-at length of a window; a window holds at least one step."""
    run_seconds: float
    """Budget of all windows together."""

    @property
    def most_windows_s(self) -> float:
        """Seconds of as many windows as there may be, with those that are not synchronised."""
        return self.windows * self.window_s * _WITH_UNSYNCED


class CommandRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A command to be started in place of ranks of gpuscale's own, and how its lines are read."""

    words: tuple[str, ...]
    """Its arguments, with placeholders."""
    folder: str
    """Where it is started."""
    launch: str
    """One of `gpuscale.workload.command_case.LAUNCHES`."""
    log_format: str | None
    """The name of a format; None for the one that its lines fit."""
    step_regex: str | None
    tells_batch: bool
    """Its lines are to tell how many samples a step has; nobody else does."""


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One run to be made: everything that a rank needs to know, on any node."""

    configuration: Configuration
    gpus: int
    index: int
    batch_per_gpu: int | None
    """None where the lines of a command are to tell it."""
    sample_shape: tuple[int, ...] | None = None
    case_module: str
    case_file: str
    case_class: str
    import_paths: tuple[str, ...] = ()
    """The `sys.path` of the test process, so that ranks find the imports of the case."""
    devices: tuple[int, ...]
    """CUDA devices by local rank, the same on every node; one after the other where a rank drives
    several; empty on CPU."""
    data_root: str | None = None
    download: bool = False
    timing: TimingPlan
    timeout_s: float = 600.0
    samples_per_epoch: int | None = None
    memory_limit_bytes: int | None = None
    """What a rank may take of the host's memory beyond what it has before it builds its model."""
    injections: tuple[str, ...] = ()
    """Faults to be made on purpose, such as `data=5ms` (gpuscale/workload/injections.py)."""
    command: CommandRequest | None = None
    """None for a case that gpuscale trains itself."""

    @property
    def key(self) -> EntryKey:
        """The table row that this run belongs to."""
        return EntryKey(self.configuration.case, self.configuration.strategy, self.gpus)

    @property
    def job(self) -> str:
        """The work of each of its processes, as launchers name it."""
        return "rank" if self.command is None else "command"

    @property
    def processes(self) -> int:
        """The number of ranks to start, as the strategy demands."""
        return STRATEGIES[self.configuration.strategy].processes(self.gpus)


class SampledDevices(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that the tasks of a run are to sample."""

    uuids: Mapping[str, tuple[str, ...]]
    """By host."""


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a rank, as it says itself."""

    failure: Failure
    lost_peer: bool
    """It failed in talking to another rank, which most likely ended before."""
    line: str | None = None
    """The line of the user's code that raised, `test_mine.py:12`; None where none did."""
    steps_told: float = 0.0
    """By the lines of a command: of several that did not end in time, one with the most tells."""


class RankExit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a rank's process, as seen beside it on its node."""

    rank: int
    host: str
    code: int
    """The exit code; the number of the signal with a minus where one ended it."""


class RankWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One window as one rank's clock saw it."""

    started_at_s: float
    """Unix time at its opening."""
    busy_s: float
    """Seconds from the opening barrier to this rank's synchronisation."""
    synchronized: bool
    """Gradients were synchronised."""
    phases: Phases

    @property
    def own_s(self) -> float:
        """Seconds in which the rank did not wait for other stages of a pipeline."""
        return self.busy_s - self.phases.wait_s


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The windows of one rank by its own clock."""

    warmup_steps: int
    warmup_s: float
    steps_per_window: int
    windows: tuple[RankWindow, ...]

    def pace_s(self, *, ranks: int) -> float:
        """Median seconds per step of this rank alone; a single rank's training tells it."""
        alone = [window for window in self.windows if window.synchronized is (ranks == 1)]
        alone = alone or list(self.windows)
        return statistics.median(window.own_s for window in alone) / self.steps_per_window

    def phases_per_step(self) -> Phases:
        """Median of each phase over the synchronised windows, in seconds per step.

        What synchronisation adds to the forward is in the backward, as the rest of it is.
        """
        synced, alone = (
            [window.phases for window in self.windows if window.synchronized is synchronized]
            for synchronized in (True, False)
        )
        medians = {
            name: statistics.median(getattr(each, name) for each in synced)
            for name in Phases.__struct_fields__
        }
        if alone:
            own_s = min(medians["forward_s"], statistics.median(each.forward_s for each in alone))
            medians["backward_s"] += medians["forward_s"] - own_s
            medians["forward_s"] = own_s
        return Phases(**medians).scaled(1 / self.steps_per_window)


class RankOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The measurement of one rank, before the launcher joins the ranks into a run."""

    report: RankReport
    joined_at_s: float
    """Unix time at which the rank had joined the process group."""
    measurement: Measurement


class CommandWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Some steps of a command, from the arrival of one of its lines to that of another."""

    started_at_s: float
    """Unix time."""
    time_s: float


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The windows of a command, by the arrival of its lines."""

    batch_per_gpu: int
    warmup_steps: int
    warmup_s: float
    steps_per_window: int
    windows: tuple[CommandWindow, ...]
    reported_step_s: float | None
    """As in `Run`."""


class NodeProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A look at the nodes of a job, by one rank on each."""

    device: str
    message_bytes: int
    """Sent from each node to each other one, several times."""
    repeats: int
    timeout_s: float


class SendTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a message to another node and of its receipt back."""

    to: int
    """The other's place among the nodes."""
    time_s: float
    """The shortest of several, in seconds."""


class NodeProbe(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of a node's computing and of its links, as the rank on it saw them."""

    host: str
    compute_s: tuple[float, ...]
    """Seconds for the same computation, of each of its GPUs in turn, or of one CPU core; the
    shortest of several."""
    sends: tuple[SendTime, ...]
