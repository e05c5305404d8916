"""The entry point of a rank's process: carry out the request for a run."""

import faulthandler
import hashlib
import os
import pkgutil
import resource
import socket
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from gpuscale.base.errors import GpuscaleError, InvalidTrainingError
from gpuscale.base.known_error_messages import LOST_PEER, NCCL_ERROR, OUT_OF_MEMORY, SYSTEM
from gpuscale.base.strategies import STRATEGIES
from gpuscale.measure.evidence.software import own_software
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.measure.worker import loop, user_code
from gpuscale.measure.worker.data import SEED, real_dataset, training_batches
from gpuscale.measure.worker.training import Strategy, Training, local_part
from gpuscale.records import Failure, FailureKind, RunRequest
from gpuscale.records.evidence import RankReport
from gpuscale.records.request import Measurement, RankFailure, RankOutcome

_NCCL_LINES = 4
_PROGRESS_BYTES = 64
_YIELD_TO_PEERS_S = 1.0
_KEPT_TO_THE_END: list[Training] = []


class RankFiles:
    """Writes the progress and the failure of one rank into the run's directory."""

    def __init__(self, directory: RunDirectory, rank: int) -> None:
        self.directory, self.rank = directory, rank
        self._progress: int | None = None

    def report(self, stage: str, done: int, total: int) -> None:
        """On rank 0, write the run's progress to the progress file; on other ranks, do nothing."""
        if self.rank != 0:
            return
        if self._progress is None:
            self._progress = os.open(self.directory.progress, os.O_WRONLY | os.O_CREAT, 0o644)
        # Overwrite in place at a fixed length: a new file for each window takes half a millisecond,
        # or more on a shared file system, while all ranks wait at the barrier of the window.
        os.pwrite(self._progress, f"{stage}\t{done}\t{total}".ljust(_PROGRESS_BYTES).encode(), 0)

    def leave_failure(
        self, error: BaseException, batch_per_gpu: int | None, *, lost_peer: bool
    ) -> None:
        """Write the error that ended this rank, with a traceback unless it is a GpuscaleError."""
        host, message, detail = socket.gethostname(), " ".join(str(error).splitlines()), ""
        if not isinstance(error, GpuscaleError):
            summary = "".join(traceback.format_exception_only(error)).strip()
            lines = summary.splitlines() or [type(error).__name__]
            message = " ".join(lines[: _NCCL_LINES if NCCL_ERROR.search(lines[0]) else 1])
            detail = user_code.traceback_text(error)
        kind: FailureKind = "system" if SYSTEM.search(message) else "raised"
        if isinstance(error, InvalidTrainingError):
            kind = "invalid"
        elif detail and OUT_OF_MEMORY.search(message):
            kind = "out_of_memory"
            # The original message shows which memory: a GPU's allocator reports its size.
            message = (
                f"rank {self.rank} on {host} ran out of memory with a batch of {batch_per_gpu} per "
                "GPU; give it more, or each node fewer ranks, or choose a smaller --size or batch: "
                f"{message}"
            )
        elif detail:
            line, rank = user_code.line_of_user(error), f"rank {self.rank}"
            rank += f" on {host}" if self.directory.launched.path.exists() else ""
            message = f"{rank} raised {message.rstrip('.')}{user_code.too_few_outputs(error)}"
            message = message if line is None else f"{line}: {message}"
        failure = Failure(kind=kind, message=message, rank=self.rank, host=host, detail=detail)
        self.directory.failure(self.rank).write(RankFailure(failure=failure, lost_peer=lost_peer))


def is_lost_peer_error(error: BaseException) -> bool:
    """Return True if communication failed, most likely because another rank had ended."""
    text = str(error)
    # NCCL also allocates memory on this rank's GPU, and may find too little left by torch.
    if OUT_OF_MEMORY.search(text):
        return False
    return isinstance(error, dist.DistError) or LOST_PEER.search(text) is not None


def main(directory: str, stacks: str) -> None:
    """Carry out the request in a run's directory; at a timeout, write stack traces to `stacks`."""
    run_directory = RunDirectory(path=Path(directory))
    request = run_directory.request.read()
    files = RankFiles(run_directory, int(os.environ.get("RANK", "0")))
    # A thread that needs no GIL writes the stack traces, so a rank stuck in a collective leaves one
    # too. The launcher ends the ranks after all have left their stack traces.
    with Path(stacks).open("w") as file:
        faulthandler.dump_traceback_later(request.timeout_s, exit=False, file=file)
        try:
            _run(request, files)
        except BaseException as error:
            lost_peer = is_lost_peer_error(error)
            files.leave_failure(error, request.batch_per_gpu, lost_peer=lost_peer)
            if lost_peer:
                # The launcher ends all ranks when the first one exits. That should be the lost
                # peer, whose exit code shows what happened.
                time.sleep(_YIELD_TO_PEERS_S)
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()


def _prepare(request: RunRequest) -> tuple[Training, float]:
    """Return a request's `Training`, and the Unix time when this rank joined the process group."""
    if cpus := request.cpus_of(int(os.environ.get("LOCAL_RANK", "0"))):
        os.sched_setaffinity(0, cpus)
    torch.set_num_threads(request.configuration.threads_per_rank or 1)
    torch.manual_seed(SEED)
    case = user_code.load_case(request)
    implementation = STRATEGIES[request.configuration.strategy].implementation
    assert implementation is not None, "gpuscale has no ranks of its own for a command"
    of_strategy = pkgutil.resolve_name(f"gpuscale.measure.worker.strategies.{implementation}")
    strategy: Strategy = of_strategy(request)
    joined_at_s = time.time()
    if request.data_root is not None and request.download:
        if strategy.local_rank == 0:
            real_dataset(case, request)
        strategy.barrier()
    assert request.batch_per_gpu is not None, "a case that gpuscale trains has a batch"
    accumulate = request.configuration.accumulate or 1
    batches = training_batches(
        case,
        request,
        batch=request.batch_per_gpu * request.gpus // strategy.shares // accumulate,
        rank=strategy.rank % strategy.shares,
        world_size=strategy.shares,
    )
    return (strategy.training or Training)(case, request, strategy, batches), joined_at_s


def _run(request: RunRequest, files: RankFiles) -> None:
    training, joined_at_s = _prepare(request)
    strategy = training.strategy
    if training.faults.any_is_slow:
        # Measure on every rank, slowed or not, since all ranks take part in steps.
        training.faults.set_pace(loop.own_pace_s(training))
        # Runs with and without this fault last equally long apart from their start-up.
        joined_at_s = time.time()
    demands = STRATEGIES[request.configuration.strategy]
    measurement: Measurement = pkgutil.resolve_name(request.measured_by)(
        training,
        request.timing,
        files.report,
        pausing=demands.inside_computing is None and strategy.can_pause,
        loaders=request.configuration.data_workers or 0,
    )
    training.validate_finite()
    # Report memory before `verify`, which takes more memory than training.
    report = _report(training, measurement)
    strategy.verify(training)
    outcome = RankOutcome(
        report=report, joined_at_s=joined_at_s, measurement=measurement, software=own_software()
    )
    if outcomes := strategy.gathered(outcome):
        files.directory.outcomes.write(outcomes)
    # No rank ends before the file is complete.
    strategy.barrier()
    # Destroying gloo's process group while holding the GIL can deadlock with a gloo thread that
    # waits for the GIL. With torch 2.11, two of the first eleven runs hung in this way.
    _KEPT_TO_THE_END.append(training)


def _report(training: Training, measurement: Measurement) -> RankReport:
    strategy = training.strategy
    uuids = (torch.cuda.get_device_properties(device).uuid for device in strategy.devices)
    peaks_bytes = (torch.cuda.max_memory_allocated(device) for device in strategy.devices)
    return RankReport(
        rank=strategy.rank,
        local_rank=strategy.local_rank,
        host=socket.gethostname(),
        devices=strategy.devices,
        device_uuids=tuple(str(uuid) for uuid in uuids),
        parameter_digest=parameter_digest(training.model),
        final_loss=training.final_loss(),
        peak_memory_bytes=max(peaks_bytes, default=None),
        peak_host_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        pace_s=measurement.pace_s(ranks=strategy.world_size),
        phases=measurement.phases_per_step(),
    )


def parameter_digest(model: torch.nn.Module) -> str:
    """Return a SHA-256 digest of the parameters; if sharded, only of this rank's shards.

    Buffers are left out because batch-norm statistics may differ between ranks after a step.
    """
    digest = hashlib.sha256()
    for parameter in model.parameters():
        flat = local_part(parameter).reshape(-1).contiguous().cpu()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
